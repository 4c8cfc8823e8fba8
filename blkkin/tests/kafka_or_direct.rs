//! Events that pass through Kafka become the same spans as events that are joined in one process,
//! as `--to` does.
//!
//! *Input*: synthetic batches of two nodes, replayed by a real agent through a real broker,
//! aggregator and exporter to a real Zipkin. *Independent count*: the spans of one join of the same
//! batches, each with its number, and the dependencies derived from them.
//!
//! *Documented differences*: none here. Two are by design and do not occur in this test: where an
//! aggregator samples, roots have the rule as a tag (`blkkin.sampled.*`); a trace of more than
//! 1,000 spans is sent in several fragments with the same spans.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::spans;
use blkkin_aggregator::trace::Trace;
use blkkin_bus::recording::Recorder;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::span::Span;
use blkkin_wire::v1;
use blkkin_zipkin_export::json;
use serde_json::Value;

use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::common;
use crate::exporting;
use crate::exporting::found_spans;
use crate::support::dependencies;
use crate::support::live::eventually;
use crate::support::or_skip;
use crate::support::synthetic_batches;
use crate::support::zipkin;
use crate::support::zipkin::Zipkin;

const NODES: u128 = 2;
const CALLS: u64 = 600;

#[test]
fn events_through_kafka_become_the_same_spans_as_events_joined_in_process() {
    let broker = or_skip!(Broker::start());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let batches: Vec<EventBatch> =
        (1..=NODES).flat_map(|node| synthetic_batches::batches(node, CALLS)).collect();
    let direct = join_in_process(&batches);
    assert!(direct.len() as u64 > NODES as u64 * CALLS, "{}", direct.len());

    let recording = folder.path().join("recording");
    fs::create_dir(&recording).unwrap();
    record(&batches, &recording);
    let log_path = folder.path().join("aggregator.log");
    let log = fs::File::create(&log_path).unwrap();
    let args = ["aggregator", "--brokers", &settings.brokers, "--metrics", "off"];
    let aggregator = common::blkkin(&args).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let _aggregator = KillOnDrop(aggregator);
    let to = format!("zipkin={}", zipkin.url());
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    exporter.wait_for_output("exporting ", Duration::from_secs(60));
    let run =
        common::run(&["agent", "--brokers", &settings.brokers, "--replay", recording.to_str().unwrap()])
            .expect_code(0);

    let all = eventually(|| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        in_zipkin(&zipkin).len() >= direct.len()
    });
    let found = in_zipkin(&zipkin);
    let output = || exporter.output() + &fs::read_to_string(&log_path).unwrap();
    assert!(
        all,
        "{} spans, not {}:\n{}\n{:?} {:?}",
        found.len(),
        direct.len(),
        output(),
        zipkin.get("/metrics"),
        run
    );
    let found_dependencies = zipkin.dependencies();
    println!("{} spans, {found_dependencies:?}", found.len());
    assert_eq!(found_dependencies, dependencies::of(&direct));
    assert!(found_dependencies.len() > 3, "{found_dependencies:?}");
    // Each span is counted, so that a duplicate is found too.
    let (expected, found) = (found_spans(direct), found_spans(found));
    let differs = expected.iter().find(|(span, count)| found.get(*span) != Some(count));
    assert!(expected == found, "for example {differs:?}");
    assert_eq!(exporter.finish().0, Some(0));
}

/// Makes the spans as `blkkin run --to zipkin=…` does: one join, one translation.
fn join_in_process(batches: &[EventBatch]) -> Vec<Value> {
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut spans: Vec<Span> = Vec::new();
    let mut collect = |trace: &Trace| spans.extend(spans::spans_of(trace));
    for batch in batches {
        joiner.apply(batch.clone(), &mut collect);
    }
    joiner.finish(&mut collect);
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

/// Returns all spans of Zipkin.
fn in_zipkin(zipkin: &Zipkin) -> Vec<Value> {
    let path = format!("/api/v2/traces?limit=1000000&lookback={}", zipkin::LOOKBACK_MS);
    let traces: Option<Vec<Vec<Value>>> =
        zipkin.get(&path).and_then(|traces| serde_json::from_value(traces).ok());
    traces.unwrap_or_default().into_iter().flatten().collect()
}
