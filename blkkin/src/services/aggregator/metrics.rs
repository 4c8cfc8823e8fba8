//! Metrics of the aggregator: latency, throughput and errors by node, layer, device and kind of
//! request, with exemplar traces; consumer lag of each stage.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::metrics::{BUCKET_BOUNDS, SeriesStats, TraceMetrics};
use blkkin_bus::kafka::stage::Overflows;
use blkkin_bus::kafka::{EVENTS, LINKS, SPANS};

use super::clock_offsets::ClockOffsets;
use super::contested_nodes::ContestedNodes;
use crate::cli::StageChoice;
use crate::service::{
    ClusterWait, Exemplar, Heartbeat, Histogram, Labels, LagGauge, MetricFamily, MetricKind, Sample,
    ServiceStatus,
};

/// Metrics shared by the stages and the observers.
#[derive(Clone, Debug)]
pub(super) struct AggregatorMetrics {
    live: Arc<Mutex<TraceMetrics>>,
    clock_offsets: Arc<Mutex<ClockOffsets>>,
    contested_nodes: Arc<Mutex<ContestedNodes>>,
    /// The stages that this aggregator runs.
    stages: Vec<StageMetrics>,
    /// The wait for the cluster.
    cluster_wait: ClusterWait,
    stall_timeout: Duration,
}

/// The metrics of one stage.
#[derive(Clone, Debug)]
pub(super) struct StageMetrics {
    pub(super) name: &'static str,
    /// The input topic.
    pub(super) input: &'static str,
    /// Beats for each iteration.
    pub(super) heartbeat: Heartbeat,
    pub(super) lag: LagGauge,
    /// Counts of what full tables made the stage give up.
    pub(super) overflows: Overflows,
}

impl AggregatorMetrics {
    /// Creates the metrics. A stage without a beat for `stall_timeout` makes the aggregator
    /// unhealthy.
    pub(super) fn new(
        choice: StageChoice,
        cluster_wait: ClusterWait,
        stall_timeout: Duration,
    ) -> AggregatorMetrics {
        let stage = |name, input| StageMetrics {
            name,
            input,
            heartbeat: Heartbeat::new(),
            lag: LagGauge::default(),
            overflows: Overflows::default(),
        };
        let mut stages = vec![stage("join", EVENTS), stage("link", LINKS), stage("assemble", SPANS)];
        stages.retain(|stage| match choice {
            StageChoice::All => true,
            StageChoice::Join => stage.name == "join",
            StageChoice::Link => stage.name == "link",
            StageChoice::Assemble => stage.name == "assemble",
        });
        AggregatorMetrics {
            live: Arc::default(),
            clock_offsets: Arc::default(),
            contested_nodes: Arc::default(),
            stages,
            cluster_wait,
            stall_timeout,
        }
    }

    /// Returns the stages that this aggregator runs.
    pub(super) fn stages(&self) -> &[StageMetrics] {
        &self.stages
    }

    /// Returns the longest time since a stage's last beat.
    pub(super) fn since_last(&self) -> Duration {
        self.stages.iter().map(|stage| stage.heartbeat.since_last()).max().unwrap_or_default()
    }

    /// Records a beat of all stages, which wait for the cluster.
    pub(super) fn beat(&self) {
        self.stages.iter().for_each(|stage| stage.heartbeat.beat());
    }

    /// Locks the trace metrics.
    pub(super) fn live(&self) -> MutexGuard<'_, TraceMetrics> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the clock offsets.
    pub(super) fn clock_offsets(&self) -> MutexGuard<'_, ClockOffsets> {
        self.clock_offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the contested nodes.
    pub(super) fn contested_nodes(&self) -> MutexGuard<'_, ContestedNodes> {
        self.contested_nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServiceStatus for AggregatorMetrics {
    fn metric_families(&self) -> Vec<MetricFamily> {
        let family = |name, help, kind| MetricFamily { name, help, kind, samples: Vec::new() };
        let mut seconds = family("layer_seconds", "Latency in a layer", MetricKind::Histogram);
        let mut bytes = family("layer_bytes", "Bytes moved in a layer", MetricKind::Counter);
        let mut errors = family("layer_errors", "Errors in a layer", MetricKind::Counter);
        let live = self.live();
        let mut put = |labels: Labels, row: &SeriesStats| {
            seconds.samples.push((labels.clone(), Sample::Histogram(times(row))));
            bytes.samples.push((labels.clone(), Sample::Number(row.bytes as f64)));
            errors.samples.push((labels, Sample::Number(row.errors as f64)));
        };
        for (series, device, row) in live.series() {
            put(
                labels(&format!("{:032x}", series.node.0), series.layer.name(), &device, series.operation),
                row,
            );
        }
        if live.overflow().count() > 0 {
            put(labels("others", "others", "others", "others"), live.overflow());
        }
        drop(live);
        let groups = self.stages.iter().map(|stage| (stage.name, &stage.lag));
        let names = ["aggregator_lag_records", "aggregator_partitions"];
        let [lag, partitions] = LagGauge::metric_families("stage", names, groups);
        let [offset, error] = self.clock_offsets().metric_families();
        let mut overflows = family(
            "aggregator_overflows",
            "Times that a full table made a stage give something up, since the states of its partitions began",
            MetricKind::Gauge,
        );
        for stage in &self.stages {
            for (table, count) in stage.overflows.sums() {
                let labels = [("stage", stage.name), ("table", table)];
                let labels = labels.map(|(name, value)| (name, value.to_owned())).to_vec();
                overflows.samples.push((labels, Sample::Number(count as f64)));
            }
        }
        let contested = self.contested_nodes().metric_family(Instant::now());
        vec![seconds, bytes, errors, offset, error, lag, partitions, overflows, contested]
    }

    fn unhealthy_reason(&self) -> Option<String> {
        let stalled = self.stages.iter().find(|stage| stage.heartbeat.since_last() > self.stall_timeout)?;
        Some(format!(
            "the stage {} has made no progress for {} s",
            stalled.name,
            stalled.heartbeat.since_last().as_secs()
        ))
    }

    fn notes(&self) -> Vec<String> {
        let overflows = self.stages.iter().flat_map(|stage| {
            let full = stage.overflows.sums().into_iter().filter(|(_, count)| *count > 0);
            full.map(|(table, count)| {
                format!("{}: its table of {table} was full {count} times; docs/limits.md", stage.name)
            })
        });
        let contested = self.contested_nodes().note(Instant::now());
        self.cluster_wait.status().into_iter().chain(overflows).chain(contested).collect()
    }
}

fn labels(node: &str, layer: &str, device: &str, operation: &str) -> Labels {
    let labels = [("node", node), ("layer", layer), ("device", device), ("operation", operation)];
    labels.map(|(name, value)| (name, value.to_owned())).to_vec()
}

fn times(row: &SeriesStats) -> Histogram {
    let ends = BUCKET_BOUNDS.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
    let range = |(range, end)| {
        let exemplar = row.exemplar(range);
        let exemplar =
            exemplar.map(|(trace, time)| Exemplar { trace: trace.to_string(), seconds: time.0 as f64 / 1e9 });
        (end, row.buckets[range], exemplar)
    };
    Histogram { sum: row.time.0 as f64 / 1e9, buckets: ends.enumerate().map(range).collect() }
}
