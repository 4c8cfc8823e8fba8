//! The content of the topic of events, and its sums.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventConsumer, Group, Received, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::crash_report::{LossReport, RecordCounts};
use blkkin_wire::ids::StartEpoch;

use super::TIMEOUT;
use crate::broker::client::record_count;

/// Reads all batches that the topic has now, in order, and asserts that none is missing. No writer may be at work.
pub(crate) fn consume(settings: &Settings) -> Vec<EventBatch> {
    let group = Group { name: "test".to_owned(), member: None };
    let mut consumer = EventConsumer::join(settings, &group).unwrap();
    let (mut batches, started, mut read) = (Vec::<EventBatch>::new(), Instant::now(), 0);
    let (mut next, records) = (HashMap::<StartEpoch, u64>::new(), record_count(settings, EVENTS));
    while read < records {
        assert!(started.elapsed() < TIMEOUT, "{read} of {records} records");
        match consumer.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(batch, missing) => {
                let expected = next.entry(batch.source.epoch).or_default();
                assert_eq!(
                    (missing, batch.sequence),
                    (0, *expected),
                    "no batch is missing, from the first one on"
                );
                *expected += 1;
                batches.push(*batch);
                read += 1;
            }
            // Sent again by the next start, and recognised as a duplicate.
            Received::Duplicate => read += 1,
            Received::Timeout | Received::Rebalanced { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    batches
}

pub(crate) fn record_counts(batches: &[EventBatch], epoch: StartEpoch) -> RecordCounts {
    let batches_of_start = batches.iter().filter(|batch| batch.source.epoch == epoch);
    batches_of_start
        .fold(RecordCounts::default(), |sum, batch| sum.saturating_add(&RecordCounts::of(&batch.events)))
}

/// Returns the losses that later starts have reported for this one.
pub(crate) fn reported_losses(batches: &[EventBatch], epoch: StartEpoch) -> Option<LossReport> {
    let all = batches.iter().flat_map(|batch| &batch.crashed_runs);
    let mut found: Vec<_> = all.filter(|crashed| crashed.epoch == Some(epoch)).collect();
    found.dedup();
    assert!(found.len() <= 1, "{found:?}");
    found.first()?.losses
}
