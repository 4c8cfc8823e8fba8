//! Agents and aggregators of neighbouring releases at the same time, with a real broker: no trace
//! is lost or doubled while they are upgraded one by one, and a state of a newer release is refused
//! and kept.
//!
//! *Input*: synthetic events of three nodes, as the previous, this and the next release write them.
//! An aggregator of another release is one with another fingerprint: the release is a part of it,
//! as the configuration is, and either has the same effect. *Independent count*: the fragments that
//! the join stage alone, without Kafka, makes of the same batches.

use std::path::Path;
use std::time::Duration;

use blkkin_aggregator::stage::snapshot::VERSION;
use blkkin_bus::kafka::{EVENTS, EventProducer, Record, SPANS, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1;

use crate::broker::Broker;
use crate::support::or_skip;
use crate::support::service::Service;
use crate::support::skewed_records::{of_next_release, of_previous_release};
use crate::support::stored_state::StoredState;
use crate::support::synthetic_batches;
use crate::support::traces;
use crate::support::traces::{TraceReader, total};

const NODES: usize = 3;
const CALLS: u64 = 2_000;
const PARTITIONS: u32 = 4;
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Options that change the fingerprint of the join and the assemble stage, and nothing else here.
const NEXT: [&str; 4] = ["--idle-after", "31s", "--await-client", "11s"];
/// Steps of the upgrade, with a part of the events before each.
const STEPS: usize = 5;

fn start(settings: &Settings, folder: &Path, name: &str, more_args: &[&str]) -> Service {
    let partitions = PARTITIONS.to_string();
    let args =
        ["aggregator", "--brokers", &settings.brokers, "--partitions", &partitions, "--metrics", "off"];
    Service::start(folder, name, &[&args, more_args].concat())
}

/// Stops an aggregator as a package's upgrade does, and starts that of the other release.
fn upgrade(old: Service, settings: &Settings, folder: &Path, name: &str, more_args: &[&str]) -> Service {
    old.finish_without_error();
    start(settings, folder, name, more_args)
}

/// Returns the batch as a node's agent of this step writes it: each node is upgraded twice, at a
/// step of its own.
fn as_written(batch: &EventBatch, node: usize, step: usize) -> Vec<u8> {
    let record = v1::encode(batch);
    let written = match step.saturating_sub(node) {
        0 => of_previous_release(&record),
        1 => record,
        _ => of_next_release(&record),
    };
    assert_eq!(v1::decode(&written).unwrap().batch.events, batch.events);
    written
}

/// Sends a step's part of every node's batches.
fn feed(settings: &Settings, all: &[Vec<EventBatch>], step: usize) {
    for (node, batches) in all.iter().enumerate() {
        let producer = EventProducer::new(settings, NodeId(node as u128 + 1)).unwrap();
        let range = batches.len() * step / STEPS..batches.len() * (step + 1) / STEPS;
        for batch in &batches[range] {
            let events = batch.events.len() as u64;
            producer.send(Record { bytes: as_written(batch, node, step), events }, || false).unwrap();
        }
        assert_eq!(producer.finish(TIME_LIMIT).waiting(), 0);
    }
}

fn node_batches() -> Vec<Vec<EventBatch>> {
    (1..=NODES as u128).map(|node| synthetic_batches::batches(node, CALLS)).collect()
}

#[test]
fn a_rolling_upgrade_loses_and_doubles_nothing() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let all = node_batches();
    let expected = traces::joined_alone(&all, PARTITIONS);
    let mut one = start(&settings, folder, "one", &[]);
    let mut two = start(&settings, folder, "two", &[]);
    traces::wait_for_topics(&settings, TIME_LIMIT);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    for step in 0..STEPS {
        feed(&settings, &all, step);
        // Output shows that the stages work before the next step.
        let before = total(&reader.fragments);
        reader.read_until(TIME_LIMIT, |fragments| total(fragments) > before);
        // The second one is rolled back once, together with one of the next release.
        match step {
            0 => one = upgrade(one, &settings, folder, "one", &NEXT),
            1 | 3 => two = upgrade(two, &settings, folder, "two", &NEXT),
            2 => two = upgrade(two, &settings, folder, "two", &[]),
            _ => {}
        }
    }
    reader.read(total(&expected), TIME_LIMIT);
    let ended = [one, two].map(Service::finish);
    traces::assert_same(&expected, &reader, &format!("{ended:?}"));
    let restarted = ended.iter().filter(|(_, output)| output.contains("sequence numbers restart")).count();
    assert!(restarted > 0, "no state was one of another release: {ended:?}");
    for (status, output) in &ended {
        assert_eq!(*status, Some(0), "{output}");
        assert!(
            !output.contains("could not be decoded") && !output.contains("could not be saved"),
            "{output}"
        );
    }
}

/// An aggregator that is older than the saved state does nothing: neither state nor offset changes,
/// and the newer one continues from there.
#[test]
fn a_state_of_a_newer_release_is_refused_and_kept() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let all = node_batches();
    let expected = traces::joined_alone(&all, PARTITIONS);
    let first = start(&settings, folder, "first", &[]);
    traces::wait_for_topics(&settings, TIME_LIMIT);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    feed(&settings, &all, 0);
    reader.read_until(TIME_LIMIT, |fragments| total(fragments) > 0);
    first.finish_without_error();

    // The next release has saved the states since.
    let partitions = PARTITIONS as i32;
    let saved = StoredState::committed(&settings, "blkkin-join", EVENTS, partitions);
    assert_eq!(saved.len(), partitions as usize);
    let newer: Vec<_> = saved.iter().map(|state| state.with_version(&settings, VERSION + 1)).collect();
    newer.iter().for_each(|state| state.commit(&settings));

    let mut older = start(&settings, folder, "older", &[]);
    feed(&settings, &all, 1);
    let (status, output) = older.wait();
    assert_eq!(status, Some(1), "{output}");
    let reason = format!("format version {}, and this release reads version {VERSION}", VERSION + 1);
    assert!(output.contains(&reason) && output.contains("no record is lost meanwhile"), "{output}");
    let after = StoredState::committed(&settings, "blkkin-join", EVENTS, partitions);
    assert_eq!(after, newer, "neither state nor offset has changed");
    assert!(!StoredState::committed(&settings, "blkkin-assemble", SPANS, partitions).is_empty());

    // The release that can read them continues.
    saved.iter().for_each(|state| state.commit(&settings));
    let newest = start(&settings, folder, "newest", &[]);
    (2..STEPS).for_each(|step| feed(&settings, &all, step));
    reader.read(total(&expected), TIME_LIMIT);
    let output = newest.finish_without_error();
    traces::assert_same(&expected, &reader, &output);
}
