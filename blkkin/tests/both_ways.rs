//! The same events, by way of Kafka (agent, aggregator, exporter, Zipkin: all real) and joined in one process, as `--to` does:
//! the same spans, each as often.
//!
//! *Documented differences*: none here. Two are by design, and do not come up: where an aggregator samples, roots say by which
//! rule (`blkkin.sampled.*`); a trace of more than 1,000 spans goes in several pieces, of the same spans.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod exporting;
#[path = "support/links.rs"]
mod links;
#[path = "support/nodes.rs"]
mod nodes;
mod support;
#[path = "support/zipkin.rs"]
mod zipkin;

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::translate;
use blkkin_bus::recording::Recorder;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::span::Span;
use blkkin_wire::v1;
use blkkin_zipkin_export::json;
use serde_json::Value;

use broker::Broker;
use exporting::shown;
use support::live::eventually;
use support::or_skip;
use zipkin::Zipkin;

const NODES: u128 = 2;
const CALLS: u64 = 600;

/// A process that is killed with the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_goes_through_kafka_is_shown_as_what_does_not() {
    let broker = or_skip!(Broker::start());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let batches: Vec<EventBatch> = (1..=NODES).flat_map(|node| nodes::batches(node, CALLS)).collect();
    let direct = directly(&batches);
    assert!(direct.len() as u64 > NODES as u64 * CALLS, "{}", direct.len());

    let recording = folder.path().join("recording");
    fs::create_dir(&recording).unwrap();
    record(&batches, &recording);
    let said = folder.path().join("aggregator.said");
    let log = fs::File::create(&said).unwrap();
    let words = ["aggregator", "--brokers", &settings.brokers, "--metrics", "off"];
    let aggregator = common::blkkin(&words).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let _aggregator = Killed(aggregator);
    let to = format!("zipkin={}", zipkin.url());
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    exporter.says("exporting ", Duration::from_secs(60));
    let run =
        common::run(&["agent", "--brokers", &settings.brokers, "--replay", recording.to_str().unwrap()]);
    assert_eq!(run.code, Some(0), "{run:?}");

    let all = eventually(|| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        in_zipkin(&zipkin).len() >= direct.len()
    });
    let found = in_zipkin(&zipkin);
    let said = || exporter.said() + &fs::read_to_string(&said).unwrap();
    assert!(
        all,
        "{} spans, not {}:\n{}\n{:?} {:?}",
        found.len(),
        direct.len(),
        said(),
        zipkin.get("/metrics"),
        run
    );
    let drawn = zipkin.links();
    println!("{} spans, {drawn:?}", found.len());
    assert_eq!(drawn, links::of(&direct));
    assert!(drawn.len() > 3, "{drawn:?}");
    // Each is counted, so that one too many is seen as well.
    let (meant, found) = (shown(direct), shown(found));
    let differs = meant.iter().find(|(span, count)| found.get(*span) != Some(count));
    assert!(meant == found, "for example {differs:?}");
    assert_eq!(exporter.finish().0, Some(0));
}

/// As `blkkin run --to zipkin=…` makes them: one join, one translation.
fn directly(batches: &[EventBatch]) -> Vec<Value> {
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut spans: Vec<Span> = Vec::new();
    let mut take = |trace: &Trace| spans.extend(translate::spans(trace));
    batches.iter().for_each(|batch| joiner.apply(batch.clone(), &mut take));
    joiner.finish(&mut take);
    let value = |span: &Span| {
        let mut bytes = Vec::new();
        json::encode(span, &mut bytes);
        serde_json::from_slice(&bytes).unwrap()
    };
    spans.iter().map(value).collect()
}

fn record(batches: &[EventBatch], folder: &Path) {
    let mut recorder = Recorder::open(folder).unwrap();
    batches.iter().for_each(|batch| recorder.add(&v1::encode(batch)).unwrap());
}

/// All spans that it has.
fn in_zipkin(zipkin: &Zipkin) -> Vec<Value> {
    let path = format!("/api/v2/traces?limit=1000000&lookback={}", zipkin::LOOKBACK_MS);
    let traces: Option<Vec<Vec<Value>>> =
        zipkin.get(&path).and_then(|traces| serde_json::from_value(traces).ok());
    traces.unwrap_or_default().into_iter().flatten().collect()
}
