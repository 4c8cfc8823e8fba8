//! Incremental rebalances: a member that dropped all its records receives those of the partitions
//! that it kept again, and no record goes to two members.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventConsumer, EventProducer, Group, Received, Record, Sent, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};
use blkkin_wire::v1;
use support::{Broker, or_skip};

const PATIENCE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);
/// Number of nodes, large enough for each partition to have some.
const NODES: u128 = 40;

/// Settings of members with which partitions are revoked one by one.
const INCREMENTAL: [(&str, &str); 2] =
    [("partition.assignment.strategy", "cooperative-sticky"), ("group.protocol", "consumer")];

/// Sends one batch of each node.
fn send(settings: &Settings, sequence: u64) {
    let producer = EventProducer::new(settings, NodeId(0)).unwrap();
    for node in (1..=NODES).map(NodeId) {
        let source = Source { node, boot: BootId(1), epoch: StartEpoch(1) };
        let bytes = v1::encode(&EventBatch { source, sequence, ..EventBatch::tick() });
        let sent = producer.send_for(node, Record { bytes, events: 1 }, || false);
        assert_eq!(sent, Ok(Sent::Queued));
    }
    assert_eq!(producer.finish(PATIENCE).delivered, NODES as u64);
}

/// Receives a batch. Returns its node and sequence, or the revoked partitions as an error.
fn next(consumer: &mut EventConsumer) -> Result<Option<(u128, u64)>, Vec<i32>> {
    match consumer.next(POLL).unwrap() {
        Received::Batch(batch, missing) => {
            assert_eq!(missing, 0);
            Ok(Some((batch.source.node.0, batch.sequence)))
        }
        Received::Rebalanced { revoked, .. } if !revoked.is_empty() => Err(revoked),
        Received::Rebalanced { .. } | Received::Timeout => Ok(None),
        other => panic!("{other:?}"),
    }
}

fn all(sequence: u64) -> BTreeSet<(u128, u64)> {
    (1..=NODES).map(|node| (node, sequence)).collect()
}

/// Receives until the batch with this sequence has arrived from each node.
fn receive_all(consumer: &mut EventConsumer, sequence: u64) {
    let (mut found, begun) = (BTreeSet::new(), Instant::now());
    while found != all(sequence) {
        assert!(begun.elapsed() < PATIENCE, "{found:?}");
        found.extend(next(consumer).unwrap().filter(|(_, of)| *of == sequence));
    }
}

#[test]
fn after_an_incremental_rebalance_uncommitted_records_of_kept_partitions_are_received_again() {
    // The cluster's defaults are a session timeout of 45 s and a heartbeat interval of 5 s. With
    // KIP-848 members cannot set them.
    let fast_heartbeat =
        "group.consumer.min.heartbeat.interval.ms=500\ngroup.consumer.heartbeat.interval.ms=500\n";
    let Some(broker) = or_skip(Broker::start_with(fast_heartbeat)) else { return };
    let plain = broker.settings();
    plain.create_topic(EVENTS, 4, Some(1)).unwrap();
    for (round, (name, value)) in (0_u64..).zip(INCREMENTAL) {
        send(&plain, 2 * round);
        let mut settings = plain.clone();
        settings.extra.insert(name.to_owned(), value.to_owned());
        let group = Group { name: format!("group-{name}"), member: None };
        let mut first = EventConsumer::join(&settings, &group).unwrap();
        receive_all(&mut first, 2 * round);
        assert!(first.commit_within(std::time::Duration::from_secs(30)).unwrap());
        // Received and not committed when the second member joins.
        send(&plain, 2 * round + 1);
        receive_all(&mut first, 2 * round + 1);
        let mut second = EventConsumer::join(&settings, &group).unwrap();
        let (mut of, mut revoked) = ([BTreeSet::new(), BTreeSet::new()], Vec::new());
        let begun = Instant::now();
        while revoked.is_empty() || &of[0] | &of[1] != all(2 * round + 1) {
            assert!(begun.elapsed() < PATIENCE, "{name}: {revoked:?}, {of:?}");
            match next(&mut first) {
                Ok(found) => of[0].extend(found),
                Err(partitions) => {
                    revoked = partitions;
                    of[0].clear();
                    first.refetch().unwrap();
                }
            }
            of[1].extend(next(&mut second).unwrap());
        }
        println!("{name}: {revoked:?} revoked, {} records stayed, {} moved", of[0].len(), of[1].len());
        assert!(revoked.len() < 4, "{name}: {revoked:?}: all at once");
        assert!(of[0].is_disjoint(&of[1]) && !of[0].is_empty(), "{name}: {of:?}");
    }
}
