//! Metrics of the traces that the join stage emits: count, latency, bytes and errors by node,
//! layer, device and operation.
//!
//! *In*: traces, as they are emitted. *Out*: histograms for Prometheus, with an exemplar trace for
//! each bucket.
//!
//! *Invariant*: at most [`SERIES_MAX`] series. Traces beyond that count in one overflow series, so
//! the sums cover all traces.
//!
//! The metrics are not part of a snapshot. A member that takes over a partition starts at zero, as
//! counters may, and counts records again that it reads again after a crash. Traces are exact,
//! metrics are for monitoring.
//!
//! *Rejected*: a series for each path, program or call, since their number is unbounded.
//! *Rejected*: quantiles, since those of several members cannot be aggregated; buckets can.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::SyscallOutcome;
use blkkin_wire::ids::{DeviceId, NodeId, TraceId};
use blkkin_wire::syscalls::{SyscallClass, errno_of};

use crate::latency::io_kind::IoKind;
use crate::trace::{Root, Trace};

/// Maximum number of series of all nodes: about 30 for a node with four devices. A series takes 900
/// bytes.
pub const SERIES_MAX: usize = 4_096;

/// Upper bounds of the buckets, ns. One more bucket follows the last bound.
pub const BUCKET_BOUNDS: [u64; 19] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

const BUCKETS: usize = BUCKET_BOUNDS.len() + 1;

/// Layer of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// System calls on storage. The device is that of their file's file system.
    Call,
    /// Journal commits.
    Commit,
    /// Bios.
    Bio,
    /// Block requests.
    Request,
}

impl Layer {
    /// Returns the label value.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Call => "call",
            Layer::Commit => "commit",
            Layer::Bio => "bio",
            Layer::Request => "request",
        }
    }
}

/// Labels of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Series {
    /// Node.
    pub node: NodeId,
    /// Layer.
    pub layer: Layer,
    /// Device number of the node's kernel. None if a call's file is not known.
    pub device: Option<DeviceId>,
    /// Operation.
    pub operation: &'static str,
}

/// Histogram, bytes and errors of a series.
#[derive(Clone, Debug)]
pub struct SeriesStats {
    /// Number of observations in each bucket of [`BUCKET_BOUNDS`].
    pub buckets: [u64; BUCKETS],
    /// Last trace of each non-empty bucket.
    exemplars: [(TraceId, DurationNs); BUCKETS],
    /// Sum of all durations.
    pub time: DurationNs,
    /// Bytes moved.
    pub bytes: u64,
    /// Number of errors.
    pub errors: u64,
}

impl Default for SeriesStats {
    fn default() -> SeriesStats {
        let nothing = (TraceId(0), DurationNs(0));
        let (buckets, exemplars) = ([0; BUCKETS], [nothing; BUCKETS]);
        SeriesStats { buckets, exemplars, time: DurationNs(0), bytes: 0, errors: 0 }
    }
}

impl SeriesStats {
    /// Returns the last trace of a bucket, and its duration.
    pub fn exemplar(&self, bucket: usize) -> Option<(TraceId, DurationNs)> {
        (self.buckets.get(bucket).copied()? > 0).then(|| self.exemplars[bucket])
    }

    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn record(&mut self, trace: TraceId, time: DurationNs, bytes: u64, failed: bool) {
        let bucket = BUCKET_BOUNDS.partition_point(|bound| *bound < time.0);
        self.buckets[bucket] += 1;
        self.exemplars[bucket] = (trace, time);
        self.time = DurationNs(self.time.0.saturating_add(time.0));
        self.bytes = self.bytes.saturating_add(bytes);
        self.errors += u64::from(failed);
    }
}

/// Metrics of every series.
#[derive(Clone, Debug, Default)]
pub struct TraceMetrics {
    series: BTreeMap<Series, SeriesStats>,
    names: BTreeMap<(NodeId, DeviceId), Arc<str>>,
    overflow: SeriesStats,
}

impl TraceMetrics {
    /// Records a trace.
    pub fn record(&mut self, trace: &Trace) {
        let id = trace.id;
        match &trace.root {
            Root::Call(call) if IoKind::of(trace) == IoKind::Storage => {
                let spec = call.call.spec();
                let (moved, failed) = match call.outcome {
                    SyscallOutcome::Returned(ret) => (spec.bytes(ret).unwrap_or(0), errno_of(ret).is_some()),
                    SyscallOutcome::NoExit => (0, false),
                };
                let device = call.file.map(|file| file.file.device);
                self.series_stats(trace, Layer::Call, device, operation(spec.class)).record(
                    id,
                    trace.duration(),
                    moved,
                    failed,
                );
            }
            Root::Commit(commit) => {
                let stats = self.series_stats(trace, Layer::Commit, Some(commit.device), "commit");
                stats.record(id, trace.duration(), 0, false);
            }
            Root::Fault(fault) => {
                let device = fault.file.map(|file| file.device);
                let stats = self.series_stats(trace, Layer::Call, device, "page fault");
                stats.record(id, trace.duration(), 0, false);
            }
            Root::Call(_) | Root::AsyncIo | Root::DaemonSpan(_) | Root::Kernel | Root::Missing => {}
        }
        for bio in &trace.bios {
            let stats = self.series_stats(trace, Layer::Bio, Some(bio.device), bio.op.name_for(bio.bytes));
            stats.record(id, bio.end.since(bio.queue), bio.bytes.into(), !bio.status.is_ok());
        }
        for request in &trace.requests {
            let operation = request.op.name_for(request.bytes);
            let stats = self.series_stats(trace, Layer::Request, Some(request.device), operation);
            let time = request.complete.since(request.start);
            stats.record(id, time, request.bytes.into(), !request.status.is_ok());
        }
    }

    /// Returns each series with the name of its device, or the device's number if it has no known
    /// name.
    pub fn series(&self) -> impl Iterator<Item = (Series, String, &SeriesStats)> {
        self.series.iter().map(|(series, stats)| {
            let device = series.device.map_or_else(
                || "unknown".to_owned(),
                |device| {
                    let name = self.names.get(&(series.node, device));
                    name.map_or_else(|| device.to_string(), |name| name.to_string())
                },
            );
            (*series, device, stats)
        })
    }

    /// Returns the overflow series.
    pub fn overflow(&self) -> &SeriesStats {
        &self.overflow
    }

    fn series_stats(
        &mut self,
        trace: &Trace,
        layer: Layer,
        device: Option<DeviceId>,
        operation: &'static str,
    ) -> &mut SeriesStats {
        let series = Series { node: trace.source.node, layer, device, operation };
        if !self.series.contains_key(&series) {
            if self.series.len() >= SERIES_MAX {
                return &mut self.overflow;
            }
            let name = device.and_then(|device| Some((device, trace.names.devices.names.get(&device)?)));
            if let Some((device, name)) = name {
                self.names.insert((series.node, device), Arc::clone(name));
            }
        }
        self.series.entry(series).or_default()
    }
}

/// Maps the many calls to few operations.
fn operation(class: SyscallClass) -> &'static str {
    match class {
        SyscallClass::Read => "read",
        SyscallClass::Write => "write",
        SyscallClass::Sync => "sync",
        SyscallClass::Async => "async",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_includes_its_upper_bound() {
        let mut stats = SeriesStats::default();
        for (n, time) in [0, 10_000, 10_001, 10_000_000_000, 10_000_000_001].into_iter().enumerate() {
            stats.record(TraceId(n as u128), DurationNs(time), 512, n == 2);
        }
        assert_eq!((stats.buckets[0], stats.buckets[1], stats.buckets[18], stats.buckets[19]), (2, 1, 1, 1));
        assert_eq!((stats.count(), stats.bytes, stats.errors), (5, 2_560, 1));
        assert_eq!(stats.exemplar(0), Some((TraceId(1), DurationNs(10_000))), "the last");
        assert_eq!(stats.exemplar(2), None);
        assert_eq!(stats.exemplar(BUCKETS), None);
    }

    #[test]
    fn a_series_has_the_documented_size() {
        assert!(size_of::<SeriesStats>() <= 900, "{}", size_of::<SeriesStats>());
    }
}
