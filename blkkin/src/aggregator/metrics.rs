//! What an aggregator shows of the traces that pass through it: how many, how long, how much, how many failed, by node, layer,
//! device and operation, with a trace to look at for each range of times; and how far each stage is behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blkkin_aggregator::live::{BOUNDS, Live, Row};
use blkkin_bus::kafka::{EVENTS, LINKS, SPANS};

use super::clocks::Clocks;
use crate::args::StageChoice;
use crate::service::{Example, Family, Figures, Kind, Labels, LagGauge, Pulse, Sample, Search, Times};

/// Shared by the stages, the first one's machines, and who asks.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    live: Arc<Mutex<Live>>,
    clocks: Arc<Mutex<Clocks>>,
    /// Those that this aggregator has.
    stages: Vec<StageGauge>,
    /// For the cluster.
    search: Search,
    silence_max: Duration,
}

/// Of one stage.
#[derive(Clone, Debug)]
pub(super) struct StageGauge {
    pub(super) name: &'static str,
    /// The topic that it reads.
    pub(super) input: &'static str,
    /// A beat for each turn.
    pub(super) pulse: Pulse,
    pub(super) lag: LagGauge,
}

impl Metrics {
    /// Of nothing yet. Where a stage does not turn for `silence_max` the aggregator is not well.
    pub(super) fn new(choice: StageChoice, search: Search, silence_max: Duration) -> Metrics {
        let stage = |name, input| StageGauge { name, input, pulse: Pulse::new(), lag: LagGauge::default() };
        let mut stages = vec![stage("join", EVENTS), stage("meet", LINKS), stage("assemble", SPANS)];
        stages.retain(|stage| match choice {
            StageChoice::All => true,
            StageChoice::Join => stage.name == "join",
            StageChoice::Meet => stage.name == "meet",
            StageChoice::Assemble => stage.name == "assemble",
        });
        Metrics { live: Arc::default(), clocks: Arc::default(), stages, search, silence_max }
    }

    /// Those that this aggregator has.
    pub(super) fn stages(&self) -> &[StageGauge] {
        &self.stages
    }

    /// Since the last turn of the stage that was silent for longest.
    pub(super) fn silence(&self) -> Duration {
        self.stages.iter().map(|stage| stage.pulse.silence()).max().unwrap_or_default()
    }

    /// A turn of all: they wait.
    pub(super) fn beat(&self) {
        self.stages.iter().for_each(|stage| stage.pulse.beat());
    }

    /// To note traces in.
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To note in how far clocks are apart.
    pub(super) fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Figures for Metrics {
    fn families(&self) -> Vec<Family> {
        let family = |name, help, kind| Family { name, help, kind, samples: Vec::new() };
        let mut seconds = family("layer_seconds", "Time from begin to end in a layer", Kind::Histogram);
        let mut bytes = family("layer_bytes", "Bytes moved in a layer", Kind::Counter);
        let mut errors = family("layer_errors", "What failed in a layer", Kind::Counter);
        let live = self.live();
        let mut put = |labels: Labels, row: &Row| {
            seconds.samples.push((labels.clone(), Sample::Times(times(row))));
            bytes.samples.push((labels.clone(), Sample::Number(row.bytes as f64)));
            errors.samples.push((labels, Sample::Number(row.errors as f64)));
        };
        for (series, device, row) in live.rows() {
            put(
                labels(&format!("{:032x}", series.node.0), series.layer.name(), &device, series.operation),
                row,
            );
        }
        if live.others().count() > 0 {
            put(labels("others", "others", "others", "others"), live.others());
        }
        drop(live);
        let groups = self.stages.iter().map(|stage| (stage.name, &stage.lag));
        let names = ["aggregator_lag_records", "aggregator_partitions"];
        let [lag, partitions] = LagGauge::families("stage", names, groups);
        let [offset, error] = self.clocks().families();
        vec![seconds, bytes, errors, offset, error, lag, partitions]
    }

    fn ill(&self) -> Option<String> {
        let silent = self.stages.iter().find(|stage| stage.pulse.silence() > self.silence_max)?;
        Some(format!("the stage {} has not turned for {} s", silent.name, silent.pulse.silence().as_secs()))
    }

    fn remarks(&self) -> Vec<String> {
        self.search.remark().into_iter().collect()
    }
}

fn labels(node: &str, layer: &str, device: &str, operation: &str) -> Labels {
    let labels = [("node", node), ("layer", layer), ("device", device), ("operation", operation)];
    labels.map(|(name, value)| (name, value.to_owned())).to_vec()
}

fn times(row: &Row) -> Times {
    let ends = BOUNDS.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
    let range = |(range, end)| {
        let example = row.example(range);
        let example =
            example.map(|(trace, time)| Example { trace: trace.to_string(), seconds: time.0 as f64 / 1e9 });
        (end, row.ranges[range], example)
    };
    Times { sum: row.time.0 as f64 / 1e9, ranges: ends.enumerate().map(range).collect() }
}
