//! Causes of bytes at a device.
//!
//! *In*: the origin of a bio's pages. *Out*: the bio's bytes by cause. *Invariant*: each byte has one
//! cause. What submitted a bio (a call, a page fault, a commit) is the cause of all its bytes; only of a
//! bio of the kernel's own the origin of its pages decides, byte by byte.

use crate::op::BlockOp;
use crate::page_origin::{PageKind, PageOriginEvent, Unattributed};

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
    /// Discards by the kernel: a file system reports to the device which blocks it has freed.
    Discard,
    /// I/O that a program submitted which is not traced: the tracer itself, or one that a filter
    /// excludes. While one command is traced, or calls are filtered by task, name or path, also write-back of
    /// data that no recorded operation wrote.
    OtherPrograms,
    /// Recorded, and neither a call nor a reason of the kernel is known.
    Unknown,
}

/// Bytes by cause, as in [`Cause::ALL`].
pub type BytesByCause = [u64; Cause::ALL.len()];

impl Cause {
    /// Causes in the order of the table.
    pub const ALL: [Cause; 8] = [
        Cause::Call,
        Cause::Fault,
        Cause::EarlierWrites,
        Cause::Journal,
        Cause::Metadata,
        Cause::Discard,
        Cause::OtherPrograms,
        Cause::Unknown,
    ];

    /// Returns the cause of a bio of the kernel's own whose pages have no known origin.
    pub fn of_kernel(op: BlockOp) -> Cause {
        match op {
            _ if op.is_discard() => Cause::Discard,
            _ if op.is_meta() => Cause::Metadata,
            _ => Cause::Unknown,
        }
    }

    /// Returns the heading of its column.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Call => "calls",
            Cause::Fault => "faults",
            Cause::EarlierWrites => "earlier writes",
            Cause::Journal => "journal",
            Cause::Metadata => "metadata",
            Cause::Discard => "discards",
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

/// Returns the bytes of a bio of the kernel's own by cause. `others`: what no recorded operation wrote is
/// from another program, since only one command is traced, or since such a program submitted the bio.
pub fn split_by_origin(origin: &PageOriginEvent, bytes: u64, others: bool) -> BytesByCause {
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
            let mut split = one(without_writer_cause(origin, others), without_writer);
            split[Cause::EarlierWrites as usize] += bytes - without_writer;
            split
        }
    }
}

/// Returns the cause of a file's bytes without a known writer.
fn without_writer_cause(origin: &PageOriginEvent, others: bool) -> Cause {
    let not_recorded = origin.unattributed == Some(Unattributed::NotRecorded);
    if others && not_recorded { Cause::OtherPrograms } else { Cause::Unknown }
}

/// Returns all bytes for one cause.
pub fn one(cause: Cause, bytes: u64) -> BytesByCause {
    let mut all = BytesByCause::default();
    all[cause as usize] = bytes;
    all
}

/// Returns `bytes` times `part / whole`, at most `bytes`.
pub fn scaled(bytes: u64, part: impl Into<u64>, whole: impl Into<u64>) -> u64 {
    let (part, whole) = (part.into(), whole.into().max(1));
    (u128::from(bytes) * u128::from(part.min(whole)) / u128::from(whole)) as u64
}
