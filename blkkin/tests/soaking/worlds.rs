//! What three nodes recorded, and what is to come of it.

use std::path::{Path, PathBuf};

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_bus::recording::Recorder;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::Incarnation;
use blkkin_wire::v1;

use super::books::SpanBooks;
use super::pipeline::PARTITIONS;
use crate::nodes;

pub(crate) const NODES: usize = 3;

/// Made up by a rule ([`nodes`]): calls alone and with I/O, commits, names; some events lost, some late, some batches twice.
pub(crate) struct Worlds {
    all: Vec<Vec<EventBatch>>,
    pub(crate) events: usize,
}

impl Worlds {
    /// Of at least so many events.
    pub(crate) fn of(events: u64) -> Worlds {
        // A call comes to 2.05 events, and a little more where some batches are there twice.
        let calls = (events * 100).div_ceil(NODES as u64 * 205) + 10;
        let all: Vec<_> = (1..=NODES as u128).map(|node| nodes::batches(node, calls)).collect();
        let made = all.iter().map(|batches| nodes::events(batches)).sum::<usize>();
        assert!(made as u64 >= events, "{made}");
        Worlds { all, events: made }
    }

    /// A recording of each node, which an agent replays.
    pub(crate) fn record(&self, folder: &Path) -> Vec<PathBuf> {
        let record = |(node, batches): (usize, &Vec<EventBatch>)| {
            let folder = folder.join(format!("node{node}"));
            let mut recorder = Recorder::open(&folder).unwrap();
            batches.iter().for_each(|batch| recorder.add(&v1::encode(batch)).unwrap());
            folder
        };
        self.all.iter().enumerate().map(record).collect()
    }

    /// What the state machine alone makes of it, a node by itself.
    pub(crate) fn meant(&self) -> SpanBooks {
        let mut books = SpanBooks::default();
        for batches in &self.all {
            let mut stage = JoinStage::begin(Incarnation(1), JoinStageConfig::new(PARTITIONS));
            for batch in batches {
                stage.take(batch.clone(), &mut books);
            }
            assert_eq!(stage.pending(), 0);
        }
        books
    }
}
