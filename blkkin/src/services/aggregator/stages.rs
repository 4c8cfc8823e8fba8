//! Adapters between the stages of the crate `aggregator` and the stage runner of the crate `bus`.

use blkkin_aggregator::stage::assemble::{AssembleStage, AssembleStageConfig};
use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::link::clock_bounds::ClockBound;
use blkkin_aggregator::stage::link::{LinkStage, LinkStageConfig};
use blkkin_aggregator::stage::{LogTime, Record, StageOutput};
use blkkin_aggregator::trace::Trace;
use blkkin_bus::kafka::stage::{InputRecord, RecordBatcher, StageProcessor, StageProcessorFactory};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::{FragmentBatch, Incarnation, StageId, TraceFragment};
use blkkin_wire::v1;

use super::metrics::AggregatorMetrics;

/// Creates and restores the join stage of each assigned partition.
#[derive(Clone, Debug)]
pub(super) struct JoinStageFactory {
    pub(super) config: JoinStageConfig,
    pub(super) metrics: AggregatorMetrics,
}

/// Creates and restores the assemble stage of each assigned partition.
#[derive(Clone, Debug)]
pub(super) struct AssembleStageFactory {
    pub(super) config: AssembleStageConfig,
}

/// Creates and restores the link stage of each assigned partition.
#[derive(Clone, Debug)]
pub(super) struct LinkStageFactory {
    pub(super) config: LinkStageConfig,
    pub(super) metrics: AggregatorMetrics,
}

/// The join stage of a partition.
pub(super) struct JoinPartition(pub(super) JoinStage, AggregatorMetrics);

/// The assemble stage of a partition.
pub(super) struct AssemblePartition(pub(super) AssembleStage);

/// The link stage of a partition.
pub(super) struct LinkPartition(pub(super) LinkStage, AggregatorMetrics);

struct OutputAdapter<'a> {
    batcher: &'a mut RecordBatcher,
    metrics: Option<&'a AggregatorMetrics>,
}

impl StageOutput for OutputAdapter<'_> {
    fn fragment(&mut self, partition: u32, number: u64, piece: TraceFragment) {
        self.batcher.push(partition, number, piece);
    }

    fn side_output(&mut self, partition: u32, number: u64, piece: TraceFragment) {
        self.batcher.push_side(partition, number, piece);
    }

    fn dead_letter(&mut self, why: String) {
        self.batcher.reject_input(why);
    }

    fn on_trace(&mut self, trace: &Trace) {
        if let Some(metrics) = self.metrics {
            metrics.live().record(trace);
        }
    }

    fn on_clock_bound(&mut self, clocks: &ClockBound) {
        if let Some(metrics) = self.metrics {
            metrics.clock_offsets().record(clocks);
        }
    }
}

fn record<'a>(input: &InputRecord<'a>) -> Record<'a> {
    Record { at: input.at_ms.map(LogTime), bytes: input.bytes }
}

macro_rules! stage_processor {
    ($processor:ty, needs_ticks: $ticks:expr, metrics: $metrics:expr) => {
        impl StageProcessor for $processor {
            fn apply(&mut self, input: InputRecord<'_>, out: &mut RecordBatcher) {
                let metrics: fn(&$processor) -> Option<&AggregatorMetrics> = $metrics;
                let metrics = metrics(self).cloned();
                self.0.apply(record(&input), &mut OutputAdapter { batcher: out, metrics: metrics.as_ref() });
            }

            fn save(&mut self) -> Result<Vec<u8>, String> {
                self.0.save().map_err(|error| error.to_string())
            }

            fn epoch(&self) -> Incarnation {
                self.0.incarnation()
            }

            fn needs_ticks(&self) -> bool {
                let ticks: fn(&$processor) -> bool = $ticks;
                ticks(self)
            }
        }
    };
}

stage_processor!(JoinPartition, needs_ticks: |partition| partition.0.pending() > 0, metrics: |partition| Some(&partition.1));
stage_processor!(AssemblePartition, needs_ticks: |partition| partition.0.pending() > 0, metrics: |_| None);
stage_processor!(LinkPartition, needs_ticks: |partition| partition.0.pending() > 0, metrics: |partition| Some(&partition.1));

macro_rules! stage_factory {
    ($factory:ty, $processor:ident($inner:ty), $stage:expr, tick: $tick:expr, of: $of:expr) => {
        impl StageProcessorFactory for $factory {
            type Processor = $processor;

            fn stage(&self) -> StageId {
                $stage
            }

            fn create(&self, incarnation: Incarnation) -> $processor {
                let of: fn(&$factory, $inner) -> $processor = $of;
                of(self, <$inner>::new(incarnation, self.config.clone()))
            }

            fn restore(&self, bytes: &[u8], incarnation: Incarnation) -> Result<$processor, String> {
                let restored = <$inner>::restore(bytes, self.config.clone(), incarnation);
                let of: fn(&$factory, $inner) -> $processor = $of;
                restored.map(|stage| of(self, stage)).map_err(|error| error.to_string())
            }

            fn tick(&self) -> Option<Vec<u8>> {
                $tick
            }
        }
    };
}

stage_factory!(JoinStageFactory, JoinPartition(JoinStage), StageId::Join, tick: Some(v1::encode(&EventBatch::tick())),
    of: |factory, stage| JoinPartition(stage, factory.metrics.clone()));
stage_factory!(AssembleStageFactory, AssemblePartition(AssembleStage), StageId::Assemble, tick: Some(v1::encode_fragments(&FragmentBatch::tick())),
    of: |_, stage| AssemblePartition(stage));
stage_factory!(LinkStageFactory, LinkPartition(LinkStage), StageId::Link, tick: Some(v1::encode_fragments(&FragmentBatch::tick())),
    of: |factory, stage| LinkPartition(stage, factory.metrics.clone()));
