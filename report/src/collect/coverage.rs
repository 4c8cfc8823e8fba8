//! Share of each disk's own byte count that the trace explains, by cause.
//!
//! *In*: every trace, before any filter of traces, and what the kernel counted for each disk over
//! the same time ([`DiskCount`]). *Out*: one [`CoverageRow`] per disk.
//!
//! *Invariant*: each recorded byte has exactly one cause, that of the trace with its request. Bytes
//! that the disk counted and no record has are `not_recorded`: they are never divided among causes.
//!
//! *Rejected*: the sum of the losses as the measure. A worker that writes dirty pages later belongs
//! to no traced task, so its requests are not lost and yet explain nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::ids::DeviceId;

use super::kernel::WorkKind;

/// Cause of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A recorded system call.
    Call,
    /// A journal commit.
    Journal,
    /// File system metadata that the kernel wrote or read.
    Metadata,
    /// Recorded, and neither a call nor a reason of the kernel is known.
    Unknown,
}

impl Cause {
    /// Causes in the order of the table.
    pub const ALL: [Cause; 4] = [Cause::Call, Cause::Journal, Cause::Metadata, Cause::Unknown];

    fn of(trace: &Trace) -> Cause {
        match (&trace.root, WorkKind::of(trace)) {
            (Root::Call(_) | Root::DaemonSpan(_), _) => Cause::Call,
            (Root::Commit(_), _) => Cause::Journal,
            (Root::Kernel, Some(WorkKind::Metadata)) => Cause::Metadata,
            (Root::Kernel | Root::Missing, _) => Cause::Unknown,
        }
    }

    /// Returns the heading of its column, and its key in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Call => "calls",
            Cause::Journal => "journal",
            Cause::Metadata => "metadata",
            Cause::Unknown => "unknown",
        }
    }
}

/// Bytes that the kernel counted for one disk while tracing ran (`/proc/diskstats`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCount {
    /// Disk.
    pub disk: DeviceId,
    /// Name of the disk.
    pub name: Arc<str>,
    /// Partitions, which files of its file systems name.
    pub partitions: Vec<DeviceId>,
    /// Bytes read, written and discarded.
    pub bytes: u64,
}

/// Row of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoverageRow {
    /// Name of the disk.
    pub name: Arc<str>,
    /// Bytes that the kernel counted.
    pub counted: u64,
    /// Recorded bytes by cause, as in [`Cause::ALL`].
    pub recorded: [u64; Cause::ALL.len()],
}

impl CoverageRow {
    /// Returns the bytes that no record has.
    pub fn not_recorded(&self) -> u64 {
        self.counted.saturating_sub(self.recorded.iter().sum())
    }
}

/// Recorded bytes of all devices, and the disks' own counts.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Bytes of requests by device.
    requests: BTreeMap<DeviceId, [u64; Cause::ALL.len()]>,
    /// Bytes of bios by device. A disk of stacked bios (device-mapper, md) has no requests.
    bios: BTreeMap<DeviceId, [u64; Cause::ALL.len()]>,
    /// Devices of the files that calls named.
    file_devices: BTreeSet<DeviceId>,
    counts: Vec<DiskCount>,
}

impl Coverage {
    /// Adds the bytes of a trace, and the device of its root's file.
    pub(crate) fn add(&mut self, trace: &Trace) {
        let cause = Cause::of(trace) as usize;
        // Disks do not count passthrough requests.
        for request in trace.requests.iter().filter(|request| !request.op.is_passthrough()) {
            self.requests.entry(request.device).or_default()[cause] += u64::from(request.bytes);
        }
        for bio in &trace.bios {
            self.bios.entry(bio.device).or_default()[cause] += u64::from(bio.bytes);
        }
        self.file_devices.extend(trace.names.file.iter().map(|file| file.file.device));
    }

    /// Sets what the kernel counted.
    pub(crate) fn set_counts(&mut self, counts: Vec<DiskCount>) {
        self.counts = counts;
    }

    /// Returns the disks that did something; with `only_used`, those with a recorded byte or a file
    /// of a recorded call.
    pub fn rows(&self, only_used: bool) -> Vec<CoverageRow> {
        let mut rows = Vec::new();
        for count in self.counts.iter().filter(|count| count.bytes > 0) {
            let recorded = self.requests.get(&count.disk).or_else(|| self.bios.get(&count.disk));
            let has_file = |device: &DeviceId| self.file_devices.contains(device);
            let used = recorded.is_some() || has_file(&count.disk) || count.partitions.iter().any(has_file);
            if used || !only_used {
                let recorded = recorded.copied().unwrap_or_default();
                rows.push(CoverageRow { name: Arc::clone(&count.name), counted: count.bytes, recorded });
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{DEVICE, bio, call, empty, on_file, request};

    fn count(minor: u32, partitions: &[u32], bytes: u64) -> DiskCount {
        let device = |minor: u32| DeviceId { major: DEVICE.major, minor };
        let partitions = partitions.iter().map(|minor| device(*minor)).collect();
        DiskCount { disk: device(minor), name: format!("loop{minor}").into(), partitions, bytes }
    }

    fn coverage(traces: &[Trace], counts: &[DiskCount]) -> Coverage {
        let mut coverage = Coverage::default();
        traces.iter().for_each(|trace| coverage.add(trace));
        coverage.set_counts(counts.to_vec());
        coverage
    }

    #[test]
    fn bytes_of_no_record_are_not_recorded_and_nothing_is_counted_twice() {
        let mut by_call = call(1, "pwrite64", 10);
        by_call.bios.push(bio(2, 1, 9));
        by_call.requests.push(request(3, 1, Some(2), 9));
        let mut by_worker = empty(5);
        by_worker.root = Root::Kernel;
        by_worker.requests.push(request(5, 1, Some(2), 9));
        let rows = coverage(&[by_call, by_worker], &[count(0, &[], 100 * 4096)]).rows(true);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].counted, rows[0].recorded), (100 * 4096, [4096, 0, 0, 4096]));
        assert_eq!(rows[0].not_recorded(), 98 * 4096);
    }

    #[test]
    fn a_command_has_the_disks_that_it_used_and_a_node_has_all() {
        let on_partition = on_file(call(1, "write", 10), "/mnt/file", 0o100_644);
        let counts = [count(8, &[0], 1 << 20), count(9, &[], 1 << 20), count(10, &[], 0)];
        let coverage = coverage(&[on_partition], &counts);
        let names = |only_used| -> Vec<String> {
            coverage.rows(only_used).iter().map(|row| row.name.to_string()).collect()
        };
        assert_eq!((names(true), names(false)), (vec!["loop8".into()], vec!["loop8".into(), "loop9".into()]));
    }

    #[test]
    fn a_disk_without_requests_is_counted_by_its_bios() {
        let mut by_call = call(1, "pwrite64", 10);
        by_call.bios.push(bio(2, 1, 9));
        let rows = coverage(&[by_call], &[count(0, &[], 4096)]).rows(true);
        assert_eq!((rows[0].recorded, rows[0].not_recorded()), ([4096, 0, 0, 0], 0));
    }
}
