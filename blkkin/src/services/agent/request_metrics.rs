//! Totals of block requests as metrics of the agent, with `--totals`: each request is counted, whatever is recorded.
//!
//! *In*: the kernel side's totals by disk and operation, at each scrape. *Out*: histograms of the time in the queue and in
//! the device, bytes and errors. *Invariant*: the histograms have what the kernel side counted, because each of their bounds
//! is one of its own; what it could not count has a counter.
//!
//! *Rejected*: totals by program. A node that runs for months has more programs and cgroups than the kernel side has
//! places, and Prometheus would keep a series for each. `blkkin top` has them, and so have the traces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use blkkin_probe_abi::totals::{BUCKETS, bounds_of};
use blkkin_tracer::capture::CaptureControl;
use blkkin_tracer::enrich::devices::{DeviceNames, disk_of_partition};
use blkkin_tracer::totals::{KeyKind, RequestCounter, RequestTotal, Totals};
use blkkin_tracer::{TracerConfig, TracerError};
use blkkin_wire::ids::DeviceId;
use tracing::warn;

use crate::service::{Histogram, Labels, MetricFamily, MetricKind, Sample};

/// Maximum time between two readings. A count of the kernel side has 32 bits, which 1 million requests a second fill in
/// 71 minutes.
const READ_EVERY: Duration = Duration::from_secs(60);

/// Powers of two in ns between the first and the last bound: 1.02 µs to 68.7 s.
const FIRST_POWER: u32 = 10;
const LAST_POWER: u32 = 36;

/// Label of requests with a key for which the kernel side had no room.
const OTHERS: &str = "others";

/// The kernel side's totals.
pub(super) struct RequestMetrics(Mutex<Reader>);

struct Reader {
    counter: RequestCounter,
    names: DeviceNames,
    read_at: Instant,
    last: Totals,
}

impl RequestMetrics {
    /// Loads and attaches the programs that count.
    pub(super) fn load(config: &TracerConfig) -> Result<RequestMetrics, TracerError> {
        // A request is one of the whole disk.
        let mut config = config.clone();
        config.filter.devices = disks_of(&config.filter.devices);
        let mut counter = RequestCounter::load(&config, KeyKind::Disk)?;
        let last = counter.read()?;
        let reader = Reader { counter, names: DeviceNames::snapshot(), read_at: Instant::now(), last };
        Ok(RequestMetrics(Mutex::new(reader)))
    }

    /// Takes the time of these programs into account where the tracer keeps a budget.
    pub(super) fn add_to_budget(&self, capture: &CaptureControl) {
        capture.add_to_budget(&self.0.lock().unwrap_or_else(PoisonError::into_inner).counter);
    }

    /// Reads the totals before their counts wrap, if the last reading is long ago. The agent calls it for each batch.
    pub(super) fn read_in_time(&self) {
        // Otherwise a scrape reads them now.
        let Ok(mut reader) = self.0.try_lock() else { return };
        if reader.read_at.elapsed() >= READ_EVERY {
            reader.read();
        }
    }

    pub(super) fn metric_families(&self) -> Vec<MetricFamily> {
        let reader = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.read();
        let Reader { names, last, .. } = reader;
        let mut rows = BTreeMap::<(String, &str), RequestTotal>::new();
        for (key, total) in &last.rows {
            rows.entry((names.name(key.disk).into(), key.operation)).or_default().add(total);
        }
        if last.others.requests > 0 {
            rows.entry((OTHERS.to_owned(), OTHERS)).or_default().add(&last.others);
        }
        families(&rows, [("table full", last.untracked), ("program skipped", last.missed)])
    }
}

impl fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestMetrics").finish_non_exhaustive()
    }
}

impl Reader {
    /// Reads the totals; after a failure the last ones stay.
    fn read(&mut self) {
        self.read_at = Instant::now();
        match self.counter.read() {
            Ok(totals) => self.last = totals,
            Err(error) => warn!("cannot read the totals of requests: {error}"),
        }
    }
}

/// Returns these disks, each once, with that of a partition instead of the partition.
fn disks_of(devices: &[DeviceId]) -> Vec<DeviceId> {
    let disks = devices.iter().map(|device| disk_of_partition(*device).unwrap_or(*device));
    disks.collect::<BTreeSet<_>>().into_iter().collect()
}

fn families(
    rows: &BTreeMap<(String, &str), RequestTotal>,
    uncounted: [(&'static str, u64); 2],
) -> Vec<MetricFamily> {
    let labels = |(disk, operation): &(String, &str)| -> Labels {
        vec![("disk", disk.clone()), ("operation", (*operation).to_owned())]
    };
    let family = |kind, name, help, sample: &dyn Fn(&RequestTotal) -> Sample| MetricFamily {
        name,
        help,
        kind,
        samples: rows.iter().map(|(key, total)| (labels(key), sample(total))).collect(),
    };
    vec![
        family(
            MetricKind::Histogram,
            "request_queue_seconds",
            "Time of block requests between their allocation and their issue to the device",
            &|total| Sample::Histogram(histogram(&total.queue, total.queue_ns)),
        ),
        family(
            MetricKind::Histogram,
            "request_device_seconds",
            "Time of block requests between their issue to the device and their completion",
            &|total| Sample::Histogram(histogram(&total.device, total.device_ns)),
        ),
        family(MetricKind::Counter, "request_bytes", "Bytes of completed block requests", &|total| {
            Sample::Number(total.bytes as f64)
        }),
        family(MetricKind::Counter, "request_errors", "Block requests that failed", &|total| {
            Sample::Number(total.errors as f64)
        }),
        MetricFamily::by_label(
            "reason",
            "requests_uncounted",
            "Block requests that are in no total for lack of room, and runs of the programs that the kernel skipped",
            uncounted,
        ),
    ]
}

/// Adds up the buckets between two powers of two.
fn histogram(counts: &[u64; BUCKETS], sum_ns: u64) -> Histogram {
    let mut at = 0;
    let mut below = |bound: Option<u64>| {
        let mut count = 0;
        while at < BUCKETS && bound.is_none_or(|bound| bounds_of(at).1.is_some_and(|end| end <= bound)) {
            count += counts[at];
            at += 1;
        }
        count
    };
    let mut buckets: Vec<_> = (FIRST_POWER..=LAST_POWER)
        .map(|power| 1_u64 << power)
        .map(|ns| (ns as f64 / 1e9, below(Some(ns)), None))
        .collect();
    buckets.push((f64::INFINITY, below(None), None));
    Histogram { sum: sum_ns as f64 / 1e9, buckets }
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::totals::bucket_of;

    use super::*;

    #[test]
    fn each_time_is_below_its_bound_and_no_other() {
        for ns in [0, 63, 64, 1_023, 1_024, 1_025, 123_456, (1 << 36) - 1, 1 << 36, 1 << 37, u64::MAX] {
            let mut counts = [0; BUCKETS];
            counts[bucket_of(ns)] += 1;
            let histogram = histogram(&counts, ns);
            let expected = (FIRST_POWER..=LAST_POWER).position(|power| ns < 1 << power).unwrap_or(27);
            let found: Vec<u64> = histogram.buckets.iter().map(|(_, count, _)| *count).collect();
            assert_eq!(found.iter().sum::<u64>(), 1, "{ns}");
            assert_eq!(found[expected], 1, "{ns}");
        }
        let all = histogram(&[1; BUCKETS], 0);
        assert_eq!(all.buckets.iter().map(|(_, count, _)| count).sum::<u64>(), BUCKETS as u64);
        assert_eq!(all.buckets.len(), 28);
    }
}
