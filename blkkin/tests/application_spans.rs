//! Spans of an application and of blkkin in one trace: the application exports its own spans, and
//! blkkin the layers below them, to the same Zipkin and the same OpenTelemetry Collector.
//!
//! *Input*: `ust-provider/examples/publisher.rs`, which exports without blkkin, on a real ext4.
//! Both servers are real, and the traces are read back from both and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::collector::Collector;
use crate::common;
use crate::support::disk::Disk;
use crate::support::missed_ends::{Missed, until_all_ends_seen};
use crate::support::zipkin::Zipkin;
use crate::support::{needs, or_skip};

const ORDERS: usize = 300;
/// Minimum number of orders after the context was found. It takes longer on a busy machine. Without a pause between orders,
/// 82 of 300 were left on two CPUs during a test run, and none during one with builds next to it.
const LINKED_MIN: usize = 30;
/// System calls of each order, in this sequence.
const CALLS: [&str; 3] = ["pread64", "pwrite64", "fdatasync"];
/// Maximum difference of the two clocks in µs. Both halves use the wall clock; blkkin reads it once
/// at its start, the application at each order.
const CLOCKS_DIFFER: i64 = 50_000;

/// Id, parent and name of each span of a trace.
type Tree = BTreeSet<(String, String, String)>;

#[test]
fn spans_of_an_application_and_of_its_disk_are_one_trace() {
    needs!("losetup", "mkfs.ext4");
    let publisher = Path::new(env!("CARGO_BIN_EXE_blkkin")).with_file_name("examples").join("publisher");
    if !publisher.exists() {
        return println!("skipped: publisher is not built: cargo build -p blkkin-ust --example publisher");
    }
    let disk = or_skip!(Disk::ext4(64 << 20));
    let run_with_servers = || {
        let (zipkin, collector) = (Zipkin::start()?, Collector::start()?);
        let (sent, missed) = run(&publisher, &disk, &zipkin, &collector);
        Ok::<_, String>((zipkin, collector, sent, missed))
    };
    let missed =
        |run: &Result<(_, _, _, Missed), String>| run.iter().map(|(_, _, _, missed)| *missed).collect();
    let (zipkin, collector, sent, _) = or_skip!(until_all_ends_seen(run_with_servers, missed));
    wait_until_shown(&zipkin, sent + ORDERS);
    assert_both_servers_have_whole_traces(&zipkin, &collector);
}

/// Runs the application, and returns the number of spans that blkkin sent to Zipkin, and the ends
/// that it missed.
fn run(publisher: &Path, disk: &Disk, zipkin: &Zipkin, collector: &Collector) -> (usize, Missed) {
    let file = disk.mount_point().join("orders");
    std::fs::write(&file, [0; 4096]).unwrap();
    let otlp = format!("127.0.0.1:{}", collector.http);
    let to = [format!("zipkin={}", zipkin.url()), format!("otlp=http://{otlp}")];
    let calls = CALLS.iter().flat_map(|call| ["--syscall", call]);
    let mut args = vec!["run", "--to", &to[0], "--to", &to[1]];
    args.extend(calls);
    let address = zipkin.url();
    let address = address.trim_start_matches("http://");
    let (publisher, file) = (publisher.display().to_string(), file.display().to_string());
    args.extend(["--", "env", "BLKKIN_UST=0", &publisher, "shop", &file, address, &otlp]);
    let run = common::run(&args).expect_code(0);
    let sent = run.stderr.lines().find_map(|line| {
        let (count, _) = line.strip_prefix("blkkin: ")?.split_once(" spans sent to zipkin=")?;
        count.parse().ok()
    });
    let sent = sent.unwrap_or_else(|| panic!("no number of spans sent to Zipkin: {}", run.stderr));
    (sent, Missed::in_output(&run.stderr))
}

/// Waits until Zipkin shows all spans: it accepts a request before it has stored its spans.
fn wait_until_shown(zipkin: &Zipkin, spans: usize) {
    zipkin.wait_for(&format!("Zipkin shows {spans} spans"), || {
        let traces = zipkin.get("/api/v2/traces?limit=10000&lookback=3600000")?;
        let shown: usize = traces.as_array()?.iter().filter_map(|trace| Some(trace.as_array()?.len())).sum();
        (shown >= spans).then_some(())
    });
}

fn assert_both_servers_have_whole_traces(zipkin: &Zipkin, collector: &Collector) {
    let Some(Value::Array(traces)) =
        zipkin.get("/api/v2/traces?serviceName=shop&limit=1000&lookback=3600000")
    else {
        panic!("Zipkin has no traces of the application");
    };
    assert_eq!(traces.len(), ORDERS);
    // Some ms after its start the application's thread context is found, perhaps inside an order. From
    // the next order on each one is complete.
    let linked = traces.iter().filter(|trace| trace.as_array().unwrap().len() > 1);
    let first = linked.min_by_key(|trace| start_of(trace)).expect("an order with both halves");
    let names = call_names(order_of(first), first.as_array().unwrap());
    assert!(!names.is_empty() && CALLS.ends_with(&names), "{first:#}");
    let mut whole: Vec<(String, Tree)> = Vec::new();
    for trace in traces.iter().filter(|trace| start_of(trace) > start_of(first)) {
        let order = order_of(trace);
        let tree = checked_tree(order, trace.as_array().unwrap());
        whole.push((order["traceId"].as_str().unwrap().to_owned(), tree));
    }
    println!("{} of {ORDERS} orders have both halves", whole.len());
    assert!(whole.len() >= LINKED_MIN, "{}", whole.len());

    collector.until("all spans are there", || trees(&collector.output()).len() >= ORDERS);
    let all: usize = whole.iter().map(|(_, tree)| tree.len()).sum();
    let spans_received = |of: &BTreeMap<String, Tree>| -> usize {
        whole.iter().filter_map(|(trace, _)| of.get(trace)).map(BTreeSet::len).sum()
    };
    collector.until("both halves are there", || spans_received(&trees(&collector.output())) >= all);
    let output = trees(&collector.output());
    for (trace, tree) in &whole {
        assert_eq!(&output[trace], tree, "Zipkin and the Collector have the same spans");
    }
}

fn order_of(trace: &Value) -> &Value {
    trace.as_array().unwrap().iter().find(|span| span["name"] == "get /order").unwrap()
}

fn start_of(trace: &Value) -> i64 {
    order_of(trace)["timestamp"].as_i64().unwrap()
}

/// Returns the order's system calls, in sequence.
fn calls_of<'a>(order: &Value, spans: &'a [Value]) -> Vec<&'a Value> {
    let mut calls: Vec<&Value> = spans.iter().filter(|span| span["parentId"] == order["id"]).collect();
    calls.sort_by_key(|call| call["tags"]["blkkin.start.ns"].as_str().unwrap().parse::<u64>().unwrap());
    calls
}

fn call_names<'a>(order: &Value, spans: &'a [Value]) -> Vec<&'a str> {
    calls_of(order, spans).iter().map(|call| call["name"].as_str().unwrap()).collect()
}

/// Asserts that the order's calls are its children, in sequence and inside its time, and that every
/// other span has its parent in the trace.
fn checked_tree(order: &Value, spans: &[Value]) -> Tree {
    let word = |span: &Value, key: &str| span[key].as_str().unwrap_or_default().to_owned();
    let number = |span: &Value, key: &str| span[key].as_i64().unwrap_or_default();
    assert!(order.get("parentId").is_none(), "{order}");
    assert_eq!(call_names(order, spans), CALLS, "{spans:#?}");
    let (from, until) = (number(order, "timestamp"), number(order, "timestamp") + number(order, "duration"));
    for call in calls_of(order, spans) {
        let link = call["tags"]["blkkin.parent.evidence"].as_str().unwrap();
        assert!(link.starts_with("exact: the thread's own context named this span"), "{link}");
        let (begin, end) = (number(call, "timestamp"), number(call, "timestamp") + number(call, "duration"));
        assert!(begin >= from - CLOCKS_DIFFER && end <= until + CLOCKS_DIFFER, "{call} in {order}");
    }
    let known: BTreeSet<&str> = spans.iter().map(|span| span["id"].as_str().unwrap()).collect();
    let mut descendants = spans.iter().filter(|span| span["id"] != order["id"]);
    assert!(descendants.all(|span| known.contains(span["parentId"].as_str().unwrap())), "{spans:#?}");
    assert!(
        spans.iter().any(|span| word(span, "name").starts_with("request ")),
        "no request of the disk: {spans:#?}"
    );
    spans.iter().map(|span| (word(span, "id"), word(span, "parentId"), word(span, "name"))).collect()
}

/// Parses the output of the Collector's debug exporter into the spans of each trace.
fn trees(text: &str) -> BTreeMap<String, Tree> {
    let mut trees: BTreeMap<String, Tree> = BTreeMap::new();
    for span in text.split("Span #").skip(1) {
        let field = |name: &str| {
            let lines = span.lines().map(str::trim);
            let mut values =
                lines.filter_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name));
            values.next().map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let tree = trees.entry(field("Trace ID")).or_default();
        tree.insert((field("ID"), field("Parent ID"), field("Name").to_lowercase()));
    }
    trees
}
