//! `blkkin agent --replay` with a real Kafka broker: each recorded batch is in the topic once,
//! however often the agent is killed.
//!
//! *Input*: recordings of two nodes, written by this test. The batches that a consumer receives are
//! compared with those that were recorded.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventConsumer, Group, Received, Settings};
use blkkin_bus::recording::Recorder;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::v1;

use crate::broker::Broker;
use crate::common;
use crate::support::or_skip;
use crate::support::synthetic_batches;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Records two nodes, each batch once.
fn record(folder: &Path) -> HashMap<u128, Vec<EventBatch>> {
    let mut all = HashMap::new();
    let mut recorder = Recorder::open(folder).unwrap();
    for node in 1..=2 {
        let mut batches = synthetic_batches::batches(node, 12_000);
        batches.dedup_by_key(|batch| batch.sequence);
        batches.iter().for_each(|batch| recorder.add(&v1::encode(batch)).unwrap());
        all.insert(node, batches);
    }
    assert!(all.values().map(|batches| synthetic_batches::event_count(batches)).sum::<usize>() > 40_000);
    all
}

fn receive(settings: &Settings, wanted: usize) -> (HashMap<u128, Vec<EventBatch>>, u64) {
    let mut consumer =
        EventConsumer::join(settings, &Group { name: "test".to_owned(), member: None }).unwrap();
    let (mut all, mut duplicates, start) = (HashMap::<u128, Vec<EventBatch>>::new(), 0, Instant::now());
    while all.values().map(Vec::len).sum::<usize>() < wanted && start.elapsed() < TIMEOUT {
        match consumer.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(batch, missing) => {
                assert_eq!(missing, 0);
                all.entry(batch.source.node.0).or_default().push(*batch);
            }
            Received::Duplicate => duplicates += 1,
            Received::Timeout | Received::Rebalanced { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    (all, duplicates)
}

#[test]
fn a_recording_arrives_once_although_its_agent_is_killed() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let all = record(folder.path());
    let path = folder.path().to_str().unwrap();
    let args = ["agent", "--brokers", &settings.brokers, "--replay", path];
    let mut killed = 0;
    // Each round waits longer before it kills, so that the replay finishes.
    for round in 1.. {
        let mut agent = common::blkkin(&args).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(40 * round));
        match agent.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}");
                break;
            }
            None => killed += 1,
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    let (received, duplicates) = receive(&settings, all.values().map(Vec::len).sum());
    println!("killed {killed} times; {duplicates} duplicate batches");
    assert!(killed > 0);
    assert!(received == all, "{} nodes", received.len());
    let run = common::run(&args);
    assert!(run.code == Some(0) && run.stderr.contains("0 events in 0 batches"), "{run:?}");
    assert_eq!(settings.partitions(EVENTS), Ok(12));
}

#[test]
fn a_missing_folder_is_refused() {
    let run = common::run(&["agent", "--brokers", "127.0.0.1:1", "--replay", "/nonexistent"]);
    run.assert_refused(1, "cannot use the recording in /nonexistent", "a writable folder");
    let run = common::run(&["agent"]);
    assert!(run.code == Some(2) && run.stderr.contains("--brokers"), "{run:?}");
}
