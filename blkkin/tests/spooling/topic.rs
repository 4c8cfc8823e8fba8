//! What the topic of events has in the end, and what it adds up to.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EventConsumer, Group, Received, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::crash_report::{LossReport, RecordCounts};
use blkkin_wire::ids::StartEpoch;

use crate::PATIENCE;

/// What the topic has, in its order; nothing of it missing.
pub(crate) fn consume(settings: &Settings) -> Vec<EventBatch> {
    let group = Group { name: "test".to_owned(), member: None };
    let mut consumer = EventConsumer::join(settings, &group).unwrap();
    let (mut batches, begun, mut idle) = (Vec::<EventBatch>::new(), Instant::now(), 0);
    let mut next = HashMap::<StartEpoch, u64>::new();
    // Once something came, two seconds of nothing are the end.
    while begun.elapsed() < PATIENCE && (batches.is_empty() || idle < 20) {
        match consumer.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(batch, missing) => {
                let expected = next.entry(batch.source.epoch).or_default();
                assert_eq!(
                    (missing, batch.sequence),
                    (0, *expected),
                    "nothing is missing, from the first on"
                );
                *expected += 1;
                batches.push(*batch);
                idle = 0;
            }
            // Sent again by the next start, and seen to be that.
            Received::Duplicate => idle = 0,
            Received::Timeout => idle += 1,
            Received::Rebalanced { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    batches
}

pub(crate) fn tally(batches: &[EventBatch], epoch: StartEpoch) -> RecordCounts {
    let of_it = batches.iter().filter(|batch| batch.source.epoch == epoch);
    of_it.fold(RecordCounts::default(), |sum, batch| sum.saturating_add(&RecordCounts::of(&batch.events)))
}

/// What later starts have told of this one.
pub(crate) fn told(batches: &[EventBatch], epoch: StartEpoch) -> Option<LossReport> {
    let all = batches.iter().flat_map(|batch| &batch.crashed_runs);
    let mut found: Vec<_> = all.filter(|killed| killed.epoch == Some(epoch)).collect();
    found.dedup();
    assert!(found.len() <= 1, "{found:?}");
    found.first()?.losses
}
