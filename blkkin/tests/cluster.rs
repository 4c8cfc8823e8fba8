//! The complete pipeline with real parts: a disk, an agent, Kafka, an aggregator, an exporter and
//! Zipkin.
//!
//! *Input*: 1,000 writes of fio on a loop device. *Independent count*: fio's number of requests,
//! each of which must be one trace of a call, a bio and a request in Zipkin.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::broker::Broker;
use crate::support::disk::Disk;
use crate::support::fio::Fio;
use crate::support::live::eventually;
use crate::support::metrics::{address, get, value};
use crate::support::missed_ends::{Missed, until_all_ends_seen};
use crate::support::service::Service;
use crate::support::zipkin::Zipkin;
use crate::support::{needs, or_skip};

const REQUESTS: u32 = 1_000;
const BYTES: u32 = 4096;
/// Ten times the start of a service.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Starts a service and waits until its output contains `ready`.
fn start(disk: &Disk, name: &str, args: &[&str], ready: &str) -> Service {
    let service = Service::start(&disk.file(""), name, &[&[name], args].concat());
    service.wait_for_output(ready, TIME_LIMIT);
    service
}

/// Returns fio's writes that Zipkin shows, each a trace.
fn writes(zipkin: &Zipkin) -> Vec<Vec<Value>> {
    let path = "/api/v2/traces?serviceName=fio&spanName=pwrite64&limit=10000&lookback=3600000";
    zipkin.get(path).and_then(|found| serde_json::from_value(found).ok()).unwrap_or_default()
}

/// Returns the shape of a trace: each span's name with its parent's.
fn shape(trace: &[Value]) -> Vec<(String, Option<String>)> {
    let name = |span: &Value| span["name"].as_str().unwrap().to_owned();
    let names: BTreeMap<&str, String> =
        trace.iter().map(|span| (span["id"].as_str().unwrap(), name(span))).collect();
    let parent = |span: &Value| span["parentId"].as_str().map(|id| names[id].clone());
    let mut shape: Vec<_> = trace.iter().map(|span| (name(span), parent(span))).collect();
    shape.sort();
    shape
}

/// Results of one run of fio.
struct Run {
    /// The writes in Zipkin, each a trace.
    found: Vec<Vec<Value>>,
    /// Metrics of the aggregator.
    metrics: String,
    /// Output of all services.
    output: String,
}

impl Run {
    /// Returns the number of bios and requests that the traces lack.
    fn missed(&self) -> Missed {
        let spans: usize = self.found.iter().map(Vec::len).sum();
        Missed { ends: (self.found.len() * SPANS).saturating_sub(spans) as u64, ..Missed::default() }
    }
}

/// Spans of each trace. fio allocates and syncs nothing here: each write is a bio and a request, and
/// no lower device is traced.
const SPANS: usize = 3;

/// Runs fio below all services.
fn run(disk: &Disk) -> Result<Run, String> {
    let (broker, zipkin) = (Broker::start()?, Zipkin::start()?);
    let brokers = broker.settings().brokers;
    let to = format!("zipkin={}", zipkin.url());
    let cluster = ["--brokers", brokers.as_str()];
    let agent = [&cluster[..], &["--metrics", "off", "--device", disk.name()]].concat();
    let agent = start(disk, "agent", &agent, "tracing; events go to");
    let aggregator = [&cluster[..], &["--metrics", "127.0.0.1:0"]].concat();
    let aggregator = start(disk, "aggregator", &aggregator, "aggregating; events from");
    let exporter = [&cluster[..], &["--to", &to]].concat();
    let exporter = start(disk, "exporter", &exporter, "exporting");

    let report = disk.file("fio.json");
    let (target, pattern, jobs) = (disk.node(), "randwrite", 2);
    let fio = Fio { target, pattern, jobs, requests: REQUESTS / jobs, bytes: BYTES, report: &report };
    let args = fio.args();
    assert!(std::process::Command::new(&args[0]).args(&args[1..]).status().unwrap().success());

    let all = eventually(|| {
        // The response is long, so requests are spaced.
        std::thread::sleep(std::time::Duration::from_millis(200));
        writes(&zipkin).len() as u32 >= REQUESTS
    });
    let output = [&agent, &aggregator, &exporter].map(Service::output).join("\n");
    // A missed end is counted by the agent, and its trace is emitted only after a long inactivity.
    let found = writes(&zipkin);
    assert!(all || found.len() as u32 + 3 >= REQUESTS, "{} of {REQUESTS}:\n{output}", found.len());
    let metrics = get(address(&aggregator.output()), "/metrics");

    let last = agent.finish_without_error();
    assert!(last.contains("events delivered to blkkin.events"), "{last}");
    aggregator.finish_without_error();
    exporter.finish_without_error();
    Ok(Run { found, metrics, output })
}

/// Asserts that the aggregator's metrics equal Zipkin's traces, and that an exemplar leads to one
/// of them.
fn assert_metrics_equal_zipkin(disk: &Disk, Run { found, metrics, .. }: &Run) {
    let line = metrics.lines().find(|line| line.contains("layer=\"request\"") && line.contains("_count{"));
    let series = line.unwrap_or_else(|| panic!("{metrics}")).rsplit_once(' ').unwrap().0;
    assert!(series.contains(&format!("device=\"{}\",operation=\"write\"", disk.name())), "{series}");
    assert_eq!(value(metrics, series), found.len() as f64, "{metrics}");
    let bytes = series.replace("layer_seconds_count", "layer_bytes_total");
    assert_eq!(value(metrics, &bytes), (found.len() * BYTES as usize) as f64);
    let exemplar = metrics.lines().find_map(|line| line.split("trace_id=\"").nth(1)?.split('"').next());
    let exemplar = exemplar.unwrap_or_else(|| panic!("{metrics}"));
    assert!(found.iter().any(|trace| trace[0]["traceId"] == exemplar), "{exemplar}");
}

#[test]
fn zipkin_has_one_trace_for_each_request_of_fio() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let missed = |run: &Result<Run, String>| run.iter().map(Run::missed).collect();
    let run = or_skip!(until_all_ends_seen(|| run(&disk), missed));
    let Run { found, output, .. } = &run;
    assert!(found.len() as u32 <= REQUESTS, "{}", found.len());
    let span = |name: &str, parent: Option<&str>| (name.to_owned(), parent.map(str::to_owned));
    let expected: [_; SPANS] = [
        span("bio write", Some("pwrite64")),
        span("pwrite64", None),
        span("request write", Some("bio write")),
    ];
    let complete = found.iter().filter(|trace| shape(trace) == expected).count();
    assert_eq!(
        complete,
        found.len(),
        "{:?}\n{output}",
        found.iter().map(|trace| shape(trace)).find(|shape| *shape != expected)
    );
    assert_metrics_equal_zipkin(&disk, &run);
}
