//! What an aggregator shows of the traces that pass through it: how many, how long, how much, how many failed, by node, layer,
//! device and operation, with a trace to look at for each range of times.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blkkin_aggregator::live::{BOUNDS, Live, Row};

use crate::service::{Example, Family, Figures, Kind, Labels, Pulse, Sample, Times};

/// Shared by the first stage's machines and who asks.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    live: Arc<Mutex<Live>>,
    /// A beat for each turn of a stage.
    pub(super) pulse: Pulse,
    silence_max: Duration,
}

impl Metrics {
    /// Of nothing yet. Without a turn for `silence_max` the aggregator is not well.
    pub(super) fn new(silence_max: Duration) -> Metrics {
        Metrics { live: Arc::default(), pulse: Pulse::new(), silence_max }
    }

    /// To note traces in.
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
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
        vec![seconds, bytes, errors]
    }

    fn ill(&self) -> Option<String> {
        let silence = self.pulse.silence();
        (silence > self.silence_max).then(|| format!("no stage has turned for {} s", silence.as_secs()))
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
