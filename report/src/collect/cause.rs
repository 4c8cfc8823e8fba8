//! Causes of recorded bytes.
//!
//! *In*: a trace, and a bio of it. *Out*: the bio's bytes by cause.
//!
//! *Invariant*: each byte has one cause. The root decides, if it is a call or a commit: it submitted
//! the bio. Only for a bio of the kernel's own the origin of its pages decides, byte by
//! byte.
//!
//! *Rejected*: the writers as the cause of a bio that an fsync submitted. The fsync explains it, and
//! its bytes would have two causes.

use blkkin_aggregator::trace::page_origins::OriginIndex;
use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::event::BioEvent;
use blkkin_wire::page_origin::{PageKind, PageOriginEvent, Unattributed};

use super::kernel::WorkKind;

/// Cause of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A recorded system call, or asynchronous I/O.
    Call,
    /// A page fault of a program.
    Fault,
    /// A recorded write that had ended: the kernel wrote its data back later.
    EarlierWrites,
    /// A journal commit, or the log of a file system.
    Journal,
    /// File system metadata that the kernel wrote or read.
    Metadata,
    /// Write-back of data that no recorded operation wrote, while one command is traced.
    OtherPrograms,
    /// Recorded, and neither a call nor a reason of the kernel is known.
    Unknown,
}

/// Bytes by cause, as in [`Cause::ALL`].
pub type BytesByCause = [u64; Cause::ALL.len()];

impl Cause {
    /// Causes in the order of the table.
    pub const ALL: [Cause; 7] = [
        Cause::Call,
        Cause::Fault,
        Cause::EarlierWrites,
        Cause::Journal,
        Cause::Metadata,
        Cause::OtherPrograms,
        Cause::Unknown,
    ];

    /// Returns the heading of its column.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Call => "calls",
            Cause::Fault => "faults",
            Cause::EarlierWrites => "earlier writes",
            Cause::Journal => "journal",
            Cause::Metadata => "metadata",
            Cause::OtherPrograms => "other programs",
            Cause::Unknown => "unknown",
        }
    }

    /// Returns the heading of its column in a narrow table.
    pub fn short_name(self) -> &'static str {
        match self {
            Cause::EarlierWrites => "earlier",
            Cause::OtherPrograms => "others",
            _ => self.name(),
        }
    }

    /// Returns its key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Cause::EarlierWrites => "earlier_writes",
            Cause::OtherPrograms => "other_programs",
            _ => self.name(),
        }
    }
}

/// Causes of the bytes of one trace.
pub(crate) struct Causes<'a> {
    /// Cause of a bio whose pages have no known origin.
    pub(crate) of_root: Cause,
    /// True if the root is the cause of all bytes.
    root_decides: bool,
    origins: OriginIndex<'a>,
    of_a_command: bool,
}

impl<'a> Causes<'a> {
    /// Creates the causes of a trace. `of_a_command` is true if only one command is traced.
    pub(crate) fn of(trace: &'a Trace, of_a_command: bool) -> Self {
        let of_root = match (&trace.root, WorkKind::of(trace)) {
            (Root::Call(_) | Root::AsyncIo | Root::DaemonSpan(_), _) => Cause::Call,
            (Root::Fault(_), _) => Cause::Fault,
            (Root::Commit(_), _) => Cause::Journal,
            (Root::Kernel, Some(WorkKind::Metadata)) => Cause::Metadata,
            (Root::Kernel | Root::Missing, _) => Cause::Unknown,
        };
        let root_decides = !matches!(trace.root, Root::Kernel | Root::Missing);
        let origins = if root_decides { OriginIndex::default() } else { OriginIndex::of(trace) };
        Causes { of_root, root_decides, origins, of_a_command }
    }

    /// Returns `bytes` of a bio by cause.
    pub(crate) fn split(&self, bio: &BioEvent, bytes: u64) -> BytesByCause {
        let origin = if self.root_decides { None } else { self.origins.of_data(bio) };
        match origin.filter(|_| bio.op.is_write()) {
            Some(origin) => self.split_by_origin(origin, bytes),
            None => one(self.of_root, bytes),
        }
    }

    fn split_by_origin(&self, origin: &PageOriginEvent, bytes: u64) -> BytesByCause {
        match origin.kind {
            PageKind::Metadata => one(Cause::Metadata, bytes),
            PageKind::Log => one(Cause::Journal, bytes),
            PageKind::Swap => one(Cause::Unknown, bytes),
            PageKind::Device if origin.writers.is_empty() => one(Cause::Metadata, bytes),
            PageKind::File | PageKind::Device => {
                let without_writer = match origin.writers.is_empty() {
                    true => bytes,
                    false => scaled(bytes, origin.bytes_unattributed, origin.bytes),
                };
                let mut split = one(self.without_writer(origin), without_writer);
                split[Cause::EarlierWrites as usize] += bytes - without_writer;
                split
            }
        }
    }

    /// Returns the cause of a file's bytes without a known writer.
    fn without_writer(&self, origin: &PageOriginEvent) -> Cause {
        let not_recorded = origin.unattributed == Some(Unattributed::NotRecorded);
        if self.of_a_command && not_recorded { Cause::OtherPrograms } else { Cause::Unknown }
    }
}

/// Returns all bytes for one cause.
pub(crate) fn one(cause: Cause, bytes: u64) -> BytesByCause {
    let mut all = BytesByCause::default();
    all[cause as usize] = bytes;
    all
}

/// Returns `bytes` times `part / whole`, at most `bytes`.
pub(crate) fn scaled(bytes: u64, part: impl Into<u64>, whole: impl Into<u64>) -> u64 {
    let (part, whole) = (part.into(), whole.into().max(1));
    (u128::from(bytes) * u128::from(part.min(whole)) / u128::from(whole)) as u64
}
