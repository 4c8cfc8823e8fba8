//! The stages as machines of a partition: the only place that knows both `aggregator` and `bus`' words for it.

use blkkin_aggregator::stage::assemble::{AssembleStage, AssembleStageConfig};
use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::{LogTime, Outlet, Record};
use blkkin_bus::kafka::stage::{Entry, Machine, Machines, Outbox};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::piece::{Epoch, Piece, Stage};
use blkkin_wire::v1;

/// Makes first stages.
#[derive(Clone, Debug)]
pub(super) struct Joins {
    pub(super) config: JoinStageConfig,
}

/// Makes second stages.
#[derive(Clone, Debug)]
pub(super) struct Assembles {
    pub(super) config: AssembleStageConfig,
}

/// The first stage at work.
pub(super) struct Joining(pub(super) JoinStage);

/// The second stage at work.
pub(super) struct Assembling(pub(super) AssembleStage);

struct Out<'a>(&'a mut Outbox);

impl Outlet for Out<'_> {
    fn piece(&mut self, partition: u32, number: u64, piece: Piece) {
        self.0.piece(partition, number, piece);
    }

    fn dead(&mut self, why: String) {
        self.0.dead(why);
    }
}

fn record<'a>(entry: &Entry<'a>) -> Record<'a> {
    Record { at: entry.at_ms.map(LogTime), bytes: entry.bytes }
}

macro_rules! machine {
    ($machine:ty, needs_ticks: $ticks:expr) => {
        impl Machine for $machine {
            fn apply(&mut self, entry: Entry<'_>, out: &mut Outbox) {
                self.0.apply(record(&entry), &mut Out(out));
            }

            fn save(&mut self) -> Result<Vec<u8>, String> {
                self.0.save().map_err(|error| error.to_string())
            }

            fn epoch(&self) -> Epoch {
                self.0.epoch()
            }

            fn needs_ticks(&self) -> bool {
                let ticks: fn(&$machine) -> bool = $ticks;
                ticks(self)
            }
        }
    };
}

machine!(Joining, needs_ticks: |joining| joining.0.pending() > 0);
machine!(Assembling, needs_ticks: |_| false);

macro_rules! machines {
    ($machines:ty, $machine:ident($inner:ty), $stage:expr, tick: $tick:expr) => {
        impl Machines for $machines {
            type Machine = $machine;

            fn stage(&self) -> Stage {
                $stage
            }

            fn begin(&self, epoch: Epoch) -> $machine {
                $machine(<$inner>::begin(epoch, self.config.clone()))
            }

            fn restore(&self, bytes: &[u8], epoch: Epoch) -> Result<$machine, String> {
                let restored = <$inner>::restore(bytes, self.config.clone(), epoch);
                restored.map($machine).map_err(|error| error.to_string())
            }

            fn tick(&self) -> Option<Vec<u8>> {
                $tick
            }
        }
    };
}

machines!(Joins, Joining(JoinStage), Stage::Join, tick: Some(v1::encode(&EventBatch::tick())));
machines!(Assembles, Assembling(AssembleStage), Stage::Assemble, tick: None);
