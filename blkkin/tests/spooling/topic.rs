//! The content of the topic of events, and its sums.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EventConsumer, Group, Received, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::crash_report::{LossReport, RecordCounts};
use blkkin_wire::ids::StartEpoch;

use super::TIMEOUT;

/// Reads all batches of the topic in order and asserts that none is missing.
pub(crate) fn consume(settings: &Settings) -> Vec<EventBatch> {
    let group = Group { name: "test".to_owned(), member: None };
    let mut consumer = EventConsumer::join(settings, &group).unwrap();
    let (mut batches, started, mut idle) = (Vec::<EventBatch>::new(), Instant::now(), 0);
    let mut next = HashMap::<StartEpoch, u64>::new();
    // After the first batch, two seconds without one are the end.
    while started.elapsed() < TIMEOUT && (batches.is_empty() || idle < 20) {
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
                idle = 0;
            }
            // Sent again by the next start, and recognised as a duplicate.
            Received::Duplicate => idle = 0,
            Received::Timeout => idle += 1,
            Received::Rebalanced { .. } => {}
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
