//! The stages as machines of a partition: the only place that knows both `aggregator` and `bus`' words for it.

use blkkin_aggregator::stage::assemble::{AssembleStage, AssembleStageConfig};
use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::meet::clocks::Apart;
use blkkin_aggregator::stage::meet::{MeetStage, MeetStageConfig};
use blkkin_aggregator::stage::{LogTime, Outlet, Record};
use blkkin_aggregator::trace::Trace;
use blkkin_bus::kafka::stage::{Entry, Machine, Machines, Outbox};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::piece::{Epoch, Piece, PieceBatch, Stage};
use blkkin_wire::v1;

use super::metrics::Metrics;

/// Makes first stages.
#[derive(Clone, Debug)]
pub(super) struct Joins {
    pub(super) config: JoinStageConfig,
    pub(super) metrics: Metrics,
}

/// Makes second stages.
#[derive(Clone, Debug)]
pub(super) struct Assembles {
    pub(super) config: AssembleStageConfig,
}

/// Makes stages in which links meet.
#[derive(Clone, Debug)]
pub(super) struct Meets {
    pub(super) config: MeetStageConfig,
    pub(super) metrics: Metrics,
}

/// The first stage at work.
pub(super) struct Joining(pub(super) JoinStage, Metrics);

/// The second stage at work.
pub(super) struct Assembling(pub(super) AssembleStage);

/// The stage between nodes at work.
pub(super) struct Meeting(pub(super) MeetStage, Metrics);

struct Out<'a> {
    outbox: &'a mut Outbox,
    metrics: Option<&'a Metrics>,
}

impl Outlet for Out<'_> {
    fn piece(&mut self, partition: u32, number: u64, piece: Piece) {
        self.outbox.piece(partition, number, piece);
    }

    fn aside(&mut self, partition: u32, number: u64, piece: Piece) {
        self.outbox.aside(partition, number, piece);
    }

    fn dead(&mut self, why: String) {
        self.outbox.dead(why);
    }

    fn seen(&mut self, trace: &Trace) {
        if let Some(metrics) = self.metrics {
            metrics.live().note(trace);
        }
    }

    fn apart(&mut self, clocks: &Apart) {
        if let Some(metrics) = self.metrics {
            metrics.clocks().note(clocks);
        }
    }
}

fn record<'a>(entry: &Entry<'a>) -> Record<'a> {
    Record { at: entry.at_ms.map(LogTime), bytes: entry.bytes }
}

macro_rules! machine {
    ($machine:ty, needs_ticks: $ticks:expr, metrics: $metrics:expr) => {
        impl Machine for $machine {
            fn apply(&mut self, entry: Entry<'_>, out: &mut Outbox) {
                let metrics: fn(&$machine) -> Option<&Metrics> = $metrics;
                let metrics = metrics(self).cloned();
                self.0.apply(record(&entry), &mut Out { outbox: out, metrics: metrics.as_ref() });
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

machine!(Joining, needs_ticks: |joining| joining.0.pending() > 0, metrics: |joining| Some(&joining.1));
machine!(Assembling, needs_ticks: |assembling| assembling.0.pending() > 0, metrics: |_| None);
machine!(Meeting, needs_ticks: |meeting| meeting.0.pending() > 0, metrics: |meeting| Some(&meeting.1));

macro_rules! machines {
    ($machines:ty, $machine:ident($inner:ty), $stage:expr, tick: $tick:expr, of: $of:expr) => {
        impl Machines for $machines {
            type Machine = $machine;

            fn stage(&self) -> Stage {
                $stage
            }

            fn begin(&self, epoch: Epoch) -> $machine {
                let of: fn(&$machines, $inner) -> $machine = $of;
                of(self, <$inner>::begin(epoch, self.config.clone()))
            }

            fn restore(&self, bytes: &[u8], epoch: Epoch) -> Result<$machine, String> {
                let restored = <$inner>::restore(bytes, self.config.clone(), epoch);
                let of: fn(&$machines, $inner) -> $machine = $of;
                restored.map(|stage| of(self, stage)).map_err(|error| error.to_string())
            }

            fn tick(&self) -> Option<Vec<u8>> {
                $tick
            }
        }
    };
}

machines!(Joins, Joining(JoinStage), Stage::Join, tick: Some(v1::encode(&EventBatch::tick())),
    of: |joins, stage| Joining(stage, joins.metrics.clone()));
machines!(Assembles, Assembling(AssembleStage), Stage::Assemble, tick: Some(v1::encode_pieces(&PieceBatch::tick())),
    of: |_, stage| Assembling(stage));
machines!(Meets, Meeting(MeetStage), Stage::Meet, tick: Some(v1::encode_pieces(&PieceBatch::tick())),
    of: |meets, stage| Meeting(stage, meets.metrics.clone()));
