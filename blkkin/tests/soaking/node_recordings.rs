//! Synthetic recordings of three nodes, and the spans that must result.

use std::path::{Path, PathBuf};

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_bus::recording::Recorder;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::Incarnation;
use blkkin_wire::stage::Stage;
use blkkin_wire::v1;

use super::pipeline::PARTITIONS;
use super::span_multiset::SpanMultiset;
use crate::support::synthetic_batches;

pub(crate) const NODES: usize = 3;

/// Event batches of all nodes from a rule ([`synthetic_batches`]): calls with and without I/O,
/// commits and metadata; some events are lost, some late, and some batches occur twice.
pub(crate) struct NodeRecordings {
    all: Vec<Vec<EventBatch>>,
    pub(crate) events: usize,
}

impl NodeRecordings {
    /// Generates at least `events` events.
    pub(crate) fn of(events: u64) -> NodeRecordings {
        NodeRecordings::of_start(0, events)
    }

    /// Generates events of another start of each node's tracer.
    pub(crate) fn of_start(start: u64, events: u64) -> NodeRecordings {
        // A call makes 2.05 events on average, and slightly more because some batches occur twice.
        let calls = (events * 100).div_ceil(NODES as u64 * 205) + 10;
        let all: Vec<_> =
            (1..=NODES as u128).map(|node| synthetic_batches::batches_of_start(node, start, calls)).collect();
        let generated = all.iter().map(|batches| synthetic_batches::event_count(batches)).sum::<usize>();
        assert!(generated as u64 >= events, "{generated}");
        NodeRecordings { all, events: generated }
    }

    /// Returns the number of events and names that a join has of them.
    pub(crate) fn joined_events(&self) -> u64 {
        synthetic_batches::joined_event_count(&self.all)
    }

    /// Writes a recording of each node, which an agent replays.
    pub(crate) fn record(&self, folder: &Path) -> Vec<PathBuf> {
        let record = |(node, batches): (usize, &Vec<EventBatch>)| {
            let folder = folder.join(format!("node{node}"));
            let mut recorder = Recorder::open(&folder).unwrap();
            batches.iter().for_each(|batch| recorder.add(&v1::encode(batch)).unwrap());
            folder
        };
        self.all.iter().enumerate().map(record).collect()
    }

    /// Returns the spans that the join stage alone makes of the batches, one node at a time.
    pub(crate) fn expected(&self) -> SpanMultiset {
        self.expected_of(SamplingRules::default())
    }

    /// Returns the spans of the traces that the rules sample.
    pub(crate) fn expected_of(&self, rules: SamplingRules) -> SpanMultiset {
        let mut multiset = SpanMultiset::sampled_by(rules);
        for batches in &self.all {
            let mut stage = JoinStage::new(Incarnation(1), JoinStageConfig::new(PARTITIONS));
            for batch in batches {
                stage.add_batch(batch.clone(), &mut multiset);
            }
            assert_eq!(stage.pending(), 0);
        }
        multiset
    }
}
