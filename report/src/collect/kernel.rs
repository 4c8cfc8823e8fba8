//! Table of block I/O that belongs to no recorded system call.

use std::collections::BTreeMap;

use blkkin_aggregator::trace::{FragmentKind, Root, Trace};
use blkkin_wire::op::BlockOp;

use super::latency::Latency;

/// Kind of such work, by the trace's root and the first bio's op and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// Write-back of data.
    WriteBack,
    /// File system metadata.
    Metadata,
    /// A journal commit that no call waited for.
    Commit,
    /// Read of data, for example read-ahead.
    Read,
    /// A flush.
    Flush,
    /// A discard of blocks that a file system has freed.
    Discard,
    /// A page fault that waited for I/O.
    MajorFault,
    /// A page fault that started a read-ahead and did not wait.
    ReadAheadFault,
    /// Any other work.
    Other,
    /// I/O of a call whose own record is missing.
    RootMissing,
    /// I/O that arrived after its trace had been closed.
    LatePart,
}

/// Returns op and bytes of the first bio of a trace, or of its first request if it has none.
pub(super) fn first_op(trace: &Trace) -> Option<(BlockOp, u32)> {
    let bio = trace.bios.first().map(|bio| (bio.op, bio.bytes));
    bio.or(trace.requests.first().map(|request| (request.op, request.bytes)))
}

impl WorkKind {
    /// Returns the kind of a trace; `None` if its root is a call, a daemon span, or a commit that a
    /// call waited for.
    pub fn of(trace: &Trace) -> Option<WorkKind> {
        match trace.root {
            Root::Call(_) | Root::AsyncIo | Root::DaemonSpan(_) => None,
            Root::Commit(_) => trace.shown_in.is_none().then_some(WorkKind::Commit),
            Root::Missing if trace.kind == FragmentKind::Late => Some(WorkKind::LatePart),
            Root::Missing => Some(WorkKind::RootMissing),
            Root::Fault(ref fault) if fault.major => Some(WorkKind::MajorFault),
            Root::Fault(_) => Some(WorkKind::ReadAheadFault),
            Root::Kernel => Some(Self::of_kernel(trace)),
        }
    }

    fn of_kernel(trace: &Trace) -> WorkKind {
        let Some((op, bytes)) = first_op(trace) else { return WorkKind::Other };
        match op.name_for(bytes) {
            _ if op.is_discard() => WorkKind::Discard,
            "read" | "write" if op.is_meta() => WorkKind::Metadata,
            "write" => WorkKind::WriteBack,
            "read" => WorkKind::Read,
            "flush" => WorkKind::Flush,
            _ => WorkKind::Other,
        }
    }

    /// Returns the printed name.
    pub fn name(self) -> &'static str {
        match self {
            WorkKind::WriteBack => "write-back",
            WorkKind::Metadata => "metadata",
            WorkKind::Commit => "journal commit",
            WorkKind::Read => "read",
            WorkKind::Flush => "flush",
            WorkKind::Discard => "discard",
            WorkKind::MajorFault => "page fault",
            WorkKind::ReadAheadFault => "fault read-ahead",
            WorkKind::Other => "other",
            WorkKind::RootMissing => "call not seen",
            WorkKind::LatePart => "late fragment",
        }
    }
}

/// Counters of one kind of work.
#[derive(Clone, Debug, Default)]
pub struct WorkRow {
    /// Durations of the traces.
    pub times: Latency,
    /// Bios.
    pub bios: u64,
    /// Requests.
    pub requests: u64,
    /// Bytes of the bios, or of the requests of a trace without bios.
    pub bytes: u64,
}

/// Rows of work without a call, one for each kind.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// Rows by kind.
    pub rows: BTreeMap<WorkKind, WorkRow>,
}

impl Kernel {
    /// Adds a trace if it is such work.
    pub(crate) fn add(&mut self, trace: &Trace) {
        let Some(kind) = WorkKind::of(trace) else { return };
        let row = self.rows.entry(kind).or_default();
        row.times.record(trace.duration());
        row.bios += trace.bios.len() as u64;
        row.requests += trace.requests.len() as u64;
        let bios: u64 = trace.bios.iter().map(|bio| u64::from(bio.bytes)).sum();
        let requests: u64 = trace.requests.iter().map(|request| u64::from(request.bytes)).sum();
        row.bytes += if trace.bios.is_empty() { requests } else { bios };
    }
}
