//! The whole way, all of it real: a disk, an agent, Kafka, an aggregator, an exporter, Zipkin. What fio did is shown there,
//! request by request.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod support;
#[path = "support/zipkin.rs"]
mod zipkin;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use broker::Broker;
use support::disk::Disk;
use support::fio::Fio;
use support::live::eventually;
use support::metrics::{address, get, value};
use support::service::Service;
use support::{needs, or_skip};
use zipkin::Zipkin;

const REQUESTS: u32 = 1_000;
const BYTES: u32 = 4096;
/// Ten times what a start takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Started, and at work: it has said `begun`.
fn start(disk: &Disk, name: &str, words: &[&str], begun: &str) -> Service {
    let service = Service::start(&disk.beside(""), name, &[&[name], words].concat());
    service.says(begun, PATIENCE);
    service
}

/// Asks it to end; it has nothing to complain of.
fn finish(service: Service) -> String {
    let (status, said) = service.finish();
    assert_eq!(status, Some(0), "{said}");
    said
}

/// fio's writes that Zipkin shows, each a trace.
fn writes(zipkin: &Zipkin) -> Vec<Vec<Value>> {
    let path = "/api/v2/traces?serviceName=fio&spanName=pwrite64&limit=10000&lookback=3600000";
    zipkin.get(path).and_then(|found| serde_json::from_value(found).ok()).unwrap_or_default()
}

/// Where a trace's spans hang: each name with that of its parent.
fn shape(trace: &[Value]) -> Vec<(String, Option<String>)> {
    let name = |span: &Value| span["name"].as_str().unwrap().to_owned();
    let names: BTreeMap<&str, String> =
        trace.iter().map(|span| (span["id"].as_str().unwrap(), name(span))).collect();
    let parent = |span: &Value| span["parentId"].as_str().map(|id| names[id].clone());
    let mut shape: Vec<_> = trace.iter().map(|span| (name(span), parent(span))).collect();
    shape.sort();
    shape
}

/// What the aggregator shows for watching is what Zipkin has, and leads there.
fn assert_watched(aggregator: &Service, disk: &Disk, found: &[Vec<Value>]) {
    let metrics = get(address(&aggregator.said()), "/metrics");
    let line = metrics.lines().find(|line| line.contains("layer=\"request\"") && line.contains("_count{"));
    let series = line.unwrap_or_else(|| panic!("{metrics}")).rsplit_once(' ').unwrap().0;
    assert!(series.contains(&format!("device=\"{}\",operation=\"write\"", disk.name())), "{series}");
    assert_eq!(value(&metrics, series), found.len() as f64, "{metrics}");
    let bytes = series.replace("layer_seconds_count", "layer_bytes_total");
    assert_eq!(value(&metrics, &bytes), (found.len() * BYTES as usize) as f64);
    let example = metrics.lines().find_map(|line| line.split("trace_id=\"").nth(1)?.split('"').next());
    let example = example.unwrap_or_else(|| panic!("{metrics}"));
    assert!(found.iter().any(|trace| trace[0]["traceId"] == example), "{example}");
}

#[test]
fn what_fio_did_is_in_zipkin_request_by_request() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(Broker::start());
    let zipkin = or_skip!(Zipkin::start());
    let brokers = broker.settings().brokers;
    let to = format!("zipkin={}", zipkin.url());
    let cluster = ["--brokers", brokers.as_str()];
    let agent = [&cluster[..], &["--metrics", "off", "--device", disk.name()]].concat();
    let agent = start(&disk, "agent", &agent, "tracing; events go to");
    let aggregator = [&cluster[..], &["--metrics", "127.0.0.1:0"]].concat();
    let aggregator = start(&disk, "aggregator", &aggregator, "aggregating; events from");
    let exporter = [&cluster[..], &["--to", &to]].concat();
    let exporter = start(&disk, "exporter", &exporter, "exporting");

    let account = disk.beside("fio.json");
    let (target, pattern, jobs) = (disk.node(), "randwrite", 2);
    let fio = Fio { target, pattern, jobs, requests: REQUESTS / jobs, bytes: BYTES, account: &account };
    let words = fio.words();
    assert!(std::process::Command::new(&words[0]).args(&words[1..]).status().unwrap().success());

    let all = eventually(|| {
        // A long answer: not asked for as often as can be.
        std::thread::sleep(std::time::Duration::from_millis(200));
        writes(&zipkin).len() as u32 >= REQUESTS
    });
    let said = || [&agent, &aggregator, &exporter].map(Service::said).join("\n");
    // An end that no program could see is in the agent's books, and its trace comes when it has been silent for long.
    let found = writes(&zipkin);
    assert!(all || found.len() as u32 + 3 >= REQUESTS, "{} of {REQUESTS}:\n{}", found.len(), said());
    assert!(found.len() as u32 <= REQUESTS, "{}", found.len());
    let named = |name: &str, parent: Option<&str>| (name.to_owned(), parent.map(str::to_owned));
    let meant = [
        named("bio write", Some("pwrite64")),
        named("pwrite64", None),
        named("request write", Some("bio write")),
    ];
    let whole = found.iter().filter(|trace| shape(trace) == meant).count();
    // fio lays out nothing and syncs nothing here: each write is a bio and a request, and nothing below that is followed.
    assert_eq!(
        whole,
        found.len(),
        "{:?}",
        found.iter().map(|trace| shape(trace)).find(|shape| *shape != meant)
    );

    assert_watched(&aggregator, &disk, &found);

    let words = finish(agent);
    assert!(words.contains("events delivered to blkkin.events"), "{words}");
    finish(aggregator);
    finish(exporter);
}
