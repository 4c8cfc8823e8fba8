//! Share of each disk's own byte count that the trace explains, by cause.
//!
//! *In*: every trace, before any filter of traces, and what the kernel counted for each disk over
//! the same time ([`DiskCount`]). *Out*: one [`CoverageRow`] per disk.
//!
//! *Invariant*: each recorded byte has exactly one cause ([`Cause`]), that of the bio which it
//! belongs to. A request with bios of several traces is counted once: each trace claims the bytes of
//! its own bios. Bytes that the disk counted and no record has are `not_recorded`: they are never
//! divided among causes.
//!
//! *Rejected*: the sum of the losses as the measure. A worker that writes dirty pages later belongs
//! to no traced task, so its requests are not lost and yet explain nothing. *Rejected*: the cause of
//! the request's first bio for all of it. The kernel merges write-back of many files and programs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::{BioEvent, RequestEvent};
use blkkin_wire::ids::{DeviceId, SpanId};

use super::cause::{BytesByCause, Causes, one, scaled};

pub use super::cause::Cause;

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
    pub recorded: BytesByCause,
}

impl CoverageRow {
    /// Returns the bytes that no record has.
    pub fn not_recorded(&self) -> u64 {
        self.counted.saturating_sub(self.recorded.iter().sum())
    }
}

/// Recorded bytes of one device's requests.
#[derive(Clone, Copy, Debug, Default)]
struct RequestBytes {
    /// Bytes of bios of the trace that has the request.
    own: BytesByCause,
    /// Bytes of bios of other traces, as the request counts them.
    merged: u64,
    /// Bytes of bios that were merged into a request of another trace, as their traces count them.
    claimed: BytesByCause,
}

impl RequestBytes {
    /// Returns all bytes by cause. Merged bios whose trace was not seen have no known cause.
    fn total(&self) -> BytesByCause {
        let claimed: u64 = self.claimed.iter().sum();
        let mut total = self.own;
        let mut left = self.merged;
        for (total, claim) in total.iter_mut().zip(self.claimed) {
            let bytes = if claimed > self.merged { scaled(self.merged, claim, claimed) } else { claim };
            *total += bytes;
            left = left.saturating_sub(bytes);
        }
        total[Cause::Unknown as usize] += left;
        total
    }
}

/// Recorded bytes of all devices, and the disks' own counts.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Bytes of requests by device.
    requests: BTreeMap<DeviceId, RequestBytes>,
    /// Bytes of bios by device. A disk of stacked bios (device-mapper, md) has no requests.
    bios: BTreeMap<DeviceId, BytesByCause>,
    /// Devices of the files that calls named.
    file_devices: BTreeSet<DeviceId>,
    counts: Vec<DiskCount>,
}

impl Coverage {
    /// Adds the bytes of a trace, and the device of its root's file. `excludes_writers`: see
    /// [`ReportConfig`](crate::ReportConfig).
    pub(crate) fn add(&mut self, trace: &Trace, excludes_writers: bool) {
        let causes = Causes::of(trace, excludes_writers);
        // Nearly every request carries the bios of its trace alone.
        match trace.page_origins.is_empty() && trace.requests.iter().all(|request| request.bios <= 1) {
            true => self.add_plain_requests(trace, causes.of_root),
            false => self.add_requests(trace, &causes),
        }
        for link in &trace.merged_into {
            if let Some(bio) = trace.bios.iter().find(|bio| bio.span == link.bio) {
                let bytes = u64::from(bio.bytes.min(link.request.bytes));
                let row = self.requests.entry(link.request.device).or_default();
                add(&mut row.claimed, causes.split(bio, bytes));
            }
        }
        for bio in &trace.bios {
            let bytes = causes.split(bio, bio.bytes.into());
            add(self.bios.entry(bio.device).or_default(), bytes);
        }
        self.file_devices.extend(trace.names.file.iter().map(|file| file.file.device));
    }

    fn add_plain_requests(&mut self, trace: &Trace, cause: Cause) {
        for request in disk_requests(trace) {
            let row = self.requests.entry(request.device).or_default();
            row.own[cause as usize] += u64::from(request.bytes);
        }
    }

    fn add_requests(&mut self, trace: &Trace, causes: &Causes<'_>) {
        let mut bios: HashMap<SpanId, Vec<&BioEvent>> = HashMap::new();
        for bio in &trace.bios {
            // A split bio is that of several requests, which name it as their parent.
            let named = if bio.first { None } else { bio.request };
            bios.entry(named.unwrap_or(bio.span)).or_default().push(bio);
        }
        for request in disk_requests(trace) {
            let at = |span: SpanId| bios.get(&span).map(Vec::as_slice).unwrap_or_default();
            let first = request.parent.map(at).unwrap_or_default();
            let own: Vec<&BioEvent> = first.iter().chain(at(request.span)).copied().collect();
            let row = self.requests.entry(request.device).or_default();
            add_request(row, request, &own, causes);
        }
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
            let requests = self.requests.get(&count.disk).map(RequestBytes::total);
            let recorded = requests.or_else(|| self.bios.get(&count.disk).copied());
            let has_file = |device: &DeviceId| self.file_devices.contains(device);
            let used = recorded.is_some() || has_file(&count.disk) || count.partitions.iter().any(has_file);
            if used || !only_used {
                let recorded = recorded.unwrap_or_default();
                rows.push(CoverageRow { name: Arc::clone(&count.name), counted: count.bytes, recorded });
            }
        }
        rows
    }
}

/// Returns the requests of a trace that disks count: all but passthrough requests.
fn disk_requests(trace: &Trace) -> impl Iterator<Item = &RequestEvent> {
    trace.requests.iter().filter(|request| !request.op.is_passthrough())
}

/// Adds the bytes of a request, of which `own` are the bios of its trace.
fn add_request(row: &mut RequestBytes, request: &RequestEvent, own: &[&BioEvent], causes: &Causes<'_>) {
    let bytes = u64::from(request.bytes);
    let of_bios: u64 = own.iter().map(|bio| u64::from(bio.bytes)).sum();
    let carries_others = usize::from(request.bios) > own.len();
    if own.is_empty() && !carries_others {
        return add(&mut row.own, one(causes.of_root, bytes));
    }
    // A split bio has more bytes than its request.
    let shares = if carries_others { of_bios.min(bytes) } else { bytes };
    row.merged += bytes - shares;
    let mut left = shares;
    for (n, bio) in own.iter().enumerate() {
        let last = n + 1 == own.len();
        let part = if last { left } else { scaled(shares, bio.bytes, of_bios) };
        add(&mut row.own, causes.split(bio, part));
        left -= part;
    }
}

fn add(to: &mut BytesByCause, bytes: BytesByCause) {
    to.iter_mut().zip(bytes).for_each(|(to, bytes)| *to += bytes);
}

#[cfg(test)]
mod tests {
    use blkkin_aggregator::trace::{MergeLink, Root};
    use blkkin_wire::event::Submitter;
    use blkkin_wire::page_origin::{PageKind, PageOriginEvent};

    use super::*;
    use crate::sample::{DEVICE, bio, call, empty, on_file, page_origin, page_writer, request};

    fn count(minor: u32, partitions: &[u32], bytes: u64) -> DiskCount {
        let device = |minor: u32| DeviceId { major: DEVICE.major, minor };
        let partitions = partitions.iter().map(|minor| device(*minor)).collect();
        DiskCount { disk: device(minor), name: format!("loop{minor}").into(), partitions, bytes }
    }

    fn coverage_of(traces: &[Trace], counts: &[DiskCount], excludes_writers: bool) -> Coverage {
        let mut coverage = Coverage::default();
        traces.iter().for_each(|trace| coverage.add(trace, excludes_writers));
        coverage.set_counts(counts.to_vec());
        coverage
    }

    fn coverage(traces: &[Trace], counts: &[DiskCount]) -> Coverage {
        coverage_of(traces, counts, true)
    }

    /// Returns write-back of 4 KiB with this origin. The request has span `bio + 100`.
    fn write_back(span: u64, origin: Option<PageOriginEvent>) -> Trace {
        let mut trace = empty(span);
        trace.root = Root::Kernel;
        let root = SpanId(span);
        trace.bios.push(BioEvent { submitter: Submitter::Kernel, root, ..bio(span, 1, 9) });
        trace.requests.push(RequestEvent { parent: Some(root), root, ..request(span + 100, 1, Some(2), 9) });
        trace.page_origins.extend(origin);
        trace
    }

    /// Returns the recorded bytes of the only disk.
    fn recorded(traces: &[Trace], excludes_writers: bool) -> BytesByCause {
        coverage_of(traces, &[count(0, &[], 1 << 30)], excludes_writers).rows(false)[0].recorded
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
        assert_eq!((rows[0].counted, rows[0].recorded), (100 * 4096, [4096, 0, 0, 0, 0, 0, 0, 4096]));
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
        assert_eq!((rows[0].recorded, rows[0].not_recorded()), ([4096, 0, 0, 0, 0, 0, 0, 0], 0));
    }

    #[test]
    fn write_back_is_explained_by_its_writers_byte_by_byte() {
        let of =
            |bytes: &[u32]| page_origin(5, bytes.iter().map(|bytes| page_writer(7, 1, *bytes)).collect());
        let half = PageOriginEvent { bytes_unattributed: 1024, ..of(&[2048, 1024]) };
        let cases = [
            (Some(of(&[4096])), [0, 0, 4096, 0, 0, 0, 0, 0], [0, 0, 4096, 0, 0, 0, 0, 0]),
            (Some(half), [0, 0, 3072, 0, 0, 0, 0, 1024], [0, 0, 3072, 0, 0, 0, 1024, 0]),
            (Some(of(&[])), [0, 0, 0, 0, 0, 0, 0, 4096], [0, 0, 0, 0, 0, 0, 4096, 0]),
            (None, [0, 0, 0, 0, 0, 0, 0, 4096], [0, 0, 0, 0, 0, 0, 0, 4096]),
        ];
        for (origin, of_a_node, of_a_filter) in cases {
            let trace = write_back(5, origin);
            assert_eq!(recorded(std::slice::from_ref(&trace), false), of_a_node, "{trace:?}");
            assert_eq!(recorded(std::slice::from_ref(&trace), true), of_a_filter, "{trace:?}");
        }
    }

    #[test]
    fn metadata_and_logs_need_no_writer() {
        for (kind, cause) in [
            (PageKind::Device, Cause::Metadata),
            (PageKind::Metadata, Cause::Metadata),
            (PageKind::Log, Cause::Journal),
            (PageKind::Swap, Cause::Unknown),
        ] {
            let origin = PageOriginEvent { kind, file: None, ..page_origin(5, Vec::new()) };
            assert_eq!(recorded(&[write_back(5, Some(origin))], true), one(cause, 4096), "{kind:?}");
        }
    }

    #[test]
    fn a_bio_of_an_fsync_is_the_fsyncs() {
        let mut trace = call(1, "fsync", 10);
        trace.bios.push(bio(5, 1, 9));
        trace.requests.push(RequestEvent { parent: Some(SpanId(5)), ..request(105, 1, Some(2), 9) });
        trace.page_origins.push(page_origin(5, vec![page_writer(7, 1, 4096)]));
        assert_eq!(recorded(&[trace], false), one(Cause::Call, 4096));
    }

    #[test]
    fn each_trace_claims_its_own_bytes_of_a_shared_request() {
        // Three bios of three traces in one request: the first has a writer, the second is
        // metadata, the third was not recorded.
        let mut first = write_back(5, Some(page_origin(5, vec![page_writer(7, 1, 4096)])));
        (first.requests[0].bytes, first.requests[0].bios) = (3 * 4096, 3);
        let metadata = PageOriginEvent { kind: PageKind::Metadata, ..page_origin(6, Vec::new()) };
        let mut second = write_back(6, Some(metadata));
        second.requests.clear();
        (second.bios[0].first, second.bios[0].request) = (false, Some(SpanId(105)));
        second.merged_into.push(MergeLink { bio: SpanId(6), trace: None, request: first.requests[0] });
        let expected = [0, 0, 4096, 0, 4096, 0, 0, 4096];
        assert_eq!(recorded(&[first.clone(), second.clone()], false), expected);
        assert_eq!(recorded(&[second, first], false), expected, "in any order");
    }

    #[test]
    fn a_lower_bio_carries_the_data_of_the_upper_one() {
        let mut trace = write_back(5, Some(page_origin(5, vec![page_writer(7, 1, 4096)])));
        trace.requests[0].device = DeviceId { minor: 9, ..DEVICE };
        let below = BioEvent { submitter: Submitter::Span(SpanId(105)), root: SpanId(5), ..bio(20, 2, 8) };
        trace.bios.push(below);
        trace.requests.push(RequestEvent { parent: Some(SpanId(20)), ..request(120, 2, Some(3), 8) });
        let rows = coverage(&[trace], &[count(0, &[], 4096), count(9, &[], 4096)]).rows(false);
        assert!(rows.iter().all(|row| row.recorded == one(Cause::EarlierWrites, 4096)), "{rows:?}");
    }
}
