//! A traced run of SQLite in a real Zipkin, sent while the command ran and posted from the file
//! that the run wrote.
//!
//! *Input*: `sqlite3` on an ext4. The traces are read back from the server: the services are the
//! layers, each span is a child of its submitter, and the times are in order. The dependency graph
//! is compared with the spans.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Run, run};
use crate::support::dependencies;
use crate::support::disk::Disk;
use crate::support::missed_ends::{Missed, until_all_ends_seen};
use crate::support::zipkin::Zipkin;
use crate::support::{needs, or_skip};

const DISK: u64 = 64 << 20;
/// Each insert makes journal, data and deletion durable; some fdatasync among them writes data and
/// waits for a commit.
const INSERTS: usize = 10;
const PROGRAM: &str = "sqlite3";

#[test]
fn a_run_appears_in_zipkin_layer_by_layer() {
    needs!("sqlite3", "losetup", "mkfs.ext4");
    let server = or_skip!(Zipkin::start());
    let disk = or_skip!(Disk::ext4(DISK));
    let file = disk.file("trace.json");
    let all = trace_run(&disk, &file, &server);
    let list = fs::read(&file).unwrap();
    let spans: Vec<Value> = serde_json::from_slice(&list).unwrap();
    let (id, count) = a_durable_sync(&spans, disk.name());
    let sent = spans_of_server(&server, &disk, &all, &id, count);
    drop(server);

    let server = Zipkin::start().unwrap();
    assert_eq!(server.post(&list).0, 202, "the server accepts the file");
    let posted = spans_of_server(&server, &disk, &spans, &id, count);
    assert_eq!(sent, posted, "file and server got the same spans");
}

/// Traces SQLite to both destinations, and returns all spans that the server got. Repeats a run if
/// the completion of a bio was missed, which is counted (see `support::missed_ends`).
/// That happens on kernels that run no program inside some tasks.
fn trace_run(disk: &Disk, file: &Path, server: &Zipkin) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    let mut round = 0;
    let trace_run = || {
        round += 1;
        let run = trace_once(disk, &format!("{round}.db"), file, server).expect_code(0);
        assert_eq!(run.stderr.matches("spans sent to").count(), 2, "{run:?}");
        all.extend(serde_json::from_slice::<Vec<Value>>(&fs::read(file).unwrap()).unwrap());
        run
    };
    let run = until_all_ends_seen(trace_run, |run| vec![Missed::in_output(&run.stderr)]);
    assert!(run.stderr.contains("lost: nothing"), "{run:?}");
    all
}

fn trace_once(disk: &Disk, database: &str, file: &Path, server: &Zipkin) -> Run {
    let mut script = "PRAGMA synchronous = FULL; CREATE TABLE t (a, b);".to_owned();
    for row in 0..INSERTS {
        script += &format!("INSERT INTO t VALUES ({row}, zeroblob(2000));");
    }
    let database = disk.mount_point().join(database);
    let to = [format!("zipkin={}", file.display()), format!("zipkin={}", server.url())];
    let options = ["run", "--to", &to[0], "--to", &to[1], "--"];
    let program = [PROGRAM, "-batch", "-init", "/dev/null", database.to_str().unwrap(), &script];
    run(&[&options[..], &program].concat())
}

/// Returns the trace id and the number of spans of an fdatasync that wrote to the device and then
/// requested a commit. (Not one for which the kernel's timer had already begun the commit.)
fn a_durable_sync(spans: &[Value], device: &str) -> (String, usize) {
    let mut traces: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for span in spans {
        traces.entry(span["traceId"].as_str().unwrap()).or_default().push(span);
    }
    let wanted = |trace: &&(&str, Vec<&Value>)| {
        let spans = &trace.1;
        let root = spans.iter().find(|span| span["parentId"].is_null());
        let of = |service: &str| spans.iter().filter(|span| service_of(span) == service).count();
        root.is_some_and(|root| {
            let reaches = children_of(spans, "ext4").iter().any(|child| service_of(child) == "block");
            let commits = of("jbd2") == 1 && spans.iter().all(|span| start_us(span) >= start_us(root));
            root["name"] == "fdatasync" && service_of(root) == PROGRAM && reaches && commits && of(device) > 1
        })
    };
    let traces: Vec<_> = traces.into_iter().collect();
    let (id, spans) = traces.iter().find(wanted).expect("an fdatasync that wrote and waited for a commit");
    (id.to_string(), spans.len())
}

/// Checks everything on the server, and returns the spans of that trace.
fn spans_of_server(server: &Zipkin, disk: &Disk, all: &[Value], id: &str, count: usize) -> Vec<Value> {
    let mut spans = server.trace(id, count);
    assert_eq!(spans.len(), count);
    let services = server.get("/api/v2/services").unwrap();
    let services: BTreeSet<&str> = services.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let layers = BTreeSet::from([PROGRAM, "ext4", "jbd2", "block", disk.name()]);
    assert!(services.is_superset(&layers), "{services:?}");
    assert_layers(&spans.iter().collect::<Vec<_>>(), disk.name());
    assert_graph(server, all, disk.name());
    // The server adds the address of the client.
    for span in &mut spans {
        span["localEndpoint"].as_object_mut().unwrap().retain(|key, _| key == "serviceName");
    }
    spans.sort_by_key(|span| span["id"].to_string());
    spans
}

/// Asserts fdatasync → ext4 → first the data, then the commit → bios → requests, the last of which
/// flushes.
fn assert_layers(spans: &[&Value], device: &str) {
    let root = spans.iter().find(|span| span["parentId"].is_null()).unwrap();
    let end = end_us(root);
    let file_system = children(spans, root);
    assert_eq!(services(&file_system), ["ext4"], "{spans:#?}");
    let parts = children(spans, file_system[0]);
    let (commit, data) = parts.split_last().unwrap();
    assert!(!data.is_empty() && data.iter().all(|bio| service_of(bio) == "block"), "{parts:#?}");
    assert_eq!((service_of(commit), &commit["name"]), ("jbd2", &Value::from("journal commit")));
    let committed = children(spans, commit);
    assert!(committed.len() > 1, "descriptor, metadata, commit record: {committed:#?}");
    assert!(committed.iter().all(|bio| service_of(bio) == "block"), "{committed:#?}");
    for bio in data.iter().chain(&committed) {
        assert_has_request(spans, bio, device);
    }
    let record = committed.last().unwrap();
    assert!(text(record, "blkkin.flags").contains("preflush"), "the commit record comes last: {record}");
    for bio in data {
        assert!(
            end_us(bio) <= start_us(record) + 1,
            "data is written before the commit record: {bio} {record}"
        );
    }
    // All I/O. The commit itself ends after it has woken the waiting call. Times are truncated to a
    // µs.
    for span in spans.iter().filter(|span| ["block", device].contains(&service_of(span))) {
        assert!(end_us(span) <= end + 1, "ends after the call that waited for it: {span}");
    }
}

/// Asserts that the bio has a request as child, or names the request of this trace into which it
/// was merged.
fn assert_has_request(spans: &[&Value], bio: &Value, device: &str) {
    let requests = children(spans, bio);
    if requests.is_empty() {
        let request = spans.iter().find(|span| span["id"] == bio["tags"]["blkkin.merged_into"]);
        assert_eq!(service_of(request.unwrap_or_else(|| panic!("no request: {bio}"))), device);
    }
    assert!(requests.iter().all(|request| service_of(request) == device), "{requests:#?}");
}

/// Asserts that the dependency graph leads from the program down to the device. The server's links
/// and their counts must be exactly those of the spans.
fn assert_graph(server: &Zipkin, spans: &[Value], device: &str) {
    let drawn = server.dependencies();
    assert_eq!(drawn, dependencies::of(spans));
    for edge in [(PROGRAM, "ext4"), ("ext4", "block"), ("ext4", "jbd2"), ("jbd2", "block"), ("block", device)]
    {
        assert!(drawn.keys().any(|(one, other)| (&**one, &**other) == edge), "no {edge:?} among {drawn:?}");
    }
    // No lower layer calls an upper one, so the graph has no way back. (Other disks may appear:
    // those with the program's own pages.)
    let layers = ["kernel", PROGRAM, "ext4", "jbd2", "block", device];
    let depth = |name: &str| layers.iter().position(|layer| *layer == name).unwrap_or(layers.len() - 1);
    assert!(drawn.keys().all(|(one, other)| depth(one) < depth(other)), "{drawn:?}");
}

/// Returns the children of `parent` in the order of their start.
fn children<'a>(spans: &[&'a Value], parent: &Value) -> Vec<&'a Value> {
    let mut found: Vec<&Value> =
        spans.iter().filter(|span| span["parentId"] == parent["id"]).copied().collect();
    found.sort_by_key(|span| text(span, "blkkin.start.ns").parse::<u64>().unwrap_or(0));
    found
}

/// Returns the children of all spans of this service.
fn children_of<'a>(spans: &[&'a Value], service: &str) -> Vec<&'a Value> {
    let parents = spans.iter().filter(|span| service_of(span) == service);
    parents.flat_map(|parent| children(spans, parent)).collect()
}

fn services<'a>(spans: &[&'a Value]) -> Vec<&'a str> {
    spans.iter().map(|span| service_of(span)).collect()
}

fn service_of(span: &Value) -> &str {
    span["localEndpoint"]["serviceName"].as_str().unwrap_or_default()
}

fn text<'a>(span: &'a Value, tag: &str) -> &'a str {
    span["tags"][tag].as_str().unwrap_or_default()
}

fn start_us(span: &Value) -> u64 {
    span["timestamp"].as_u64().unwrap()
}

fn end_us(span: &Value) -> u64 {
    start_us(span) + span["duration"].as_u64().unwrap_or(0)
}
