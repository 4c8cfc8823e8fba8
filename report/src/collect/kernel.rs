//! Work that no call was seen to ask for.

use std::collections::BTreeMap;

use blkkin_aggregator::trace::{FragmentKind, Root, Trace};

use super::latency::Latency;

/// What kind of work it was, by the trace's root and the first bio's operation and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Data written without a call waiting above it.
    WriteBack,
    /// The file system's metadata.
    Metadata,
    /// A journal commit that no call waited for.
    Commit,
    /// Data read.
    Read,
    /// A flush.
    Flush,
    /// Anything else.
    Other,
    /// A call asked for it, and the call's own record is missing.
    RootMissing,
    /// What came when the trace that it belongs to had been given out.
    LatePart,
}

impl Work {
    /// Of a trace; none if its root is a call or a commit that a call waited for.
    pub fn of(trace: &Trace) -> Option<Work> {
        match trace.root {
            Root::Call(_) | Root::Operation(_) => None,
            Root::Commit(_) => trace.adopted_by.is_none().then_some(Work::Commit),
            Root::Missing if trace.part == FragmentKind::Late => Some(Work::LatePart),
            Root::Missing => Some(Work::RootMissing),
            Root::Kernel => Some(Self::of_kernel(trace)),
        }
    }

    fn of_kernel(trace: &Trace) -> Work {
        let bio = trace.bios.first().map(|bio| (bio.op, bio.bytes));
        let Some((op, bytes)) = bio.or(trace.requests.first().map(|request| (request.op, request.bytes)))
        else {
            return Work::Other;
        };
        match op.name_for(bytes) {
            "read" | "write" if op.is_meta() => Work::Metadata,
            "write" => Work::WriteBack,
            "read" => Work::Read,
            "flush" => Work::Flush,
            _ => Work::Other,
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Work::WriteBack => "write-back",
            Work::Metadata => "metadata",
            Work::Commit => "journal commit",
            Work::Read => "read",
            Work::Flush => "flush",
            Work::Other => "other",
            Work::RootMissing => "call not seen",
            Work::LatePart => "call shown before",
        }
    }
}

/// All work of one kind.
#[derive(Clone, Debug, Default)]
pub struct WorkRow {
    /// Its traces' times.
    pub times: Latency,
    /// Bios.
    pub bios: u64,
    /// Requests.
    pub requests: u64,
    /// Bytes of its bios, or of its requests where they have none.
    pub bytes: u64,
}

/// All such work: a row for each kind.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// By kind.
    pub rows: BTreeMap<Work, WorkRow>,
}

impl Kernel {
    pub(crate) fn add(&mut self, trace: &Trace) {
        let Some(work) = Work::of(trace) else { return };
        let row = self.rows.entry(work).or_default();
        row.times.record(trace.duration());
        row.bios += trace.bios.len() as u64;
        row.requests += trace.requests.len() as u64;
        let bios: u64 = trace.bios.iter().map(|bio| u64::from(bio.bytes)).sum();
        let requests: u64 = trace.requests.iter().map(|request| u64::from(request.bytes)).sum();
        row.bytes += if trace.bios.is_empty() { requests } else { bios };
    }
}
