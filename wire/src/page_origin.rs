//! Origin of a bio that carries pages of a page cache: their file, and the operations that made
//! them dirty.
//!
//! *In*: the pages of a bio when it was queued (`kprobe-ebpf/src/block/pages.rs`), and the writes of
//! earlier (`tracer/src/enrich/page_origins`). *Out*: one event for each such bio. *Invariant*: the
//! event names only operations that wrote into the bio's range while the range was dirty. Bytes
//! without a known writer are counted, with the reason.
//!
//! *Why not in [`BioEvent`](crate::event::BioEvent)*: a write call that is open when the bio is
//! queued may have written into its pages, and is known only when it returns, which can be after
//! the bio's end. [`BioEvent::has_page_origin`](crate::event::BioEvent::has_page_origin) announces
//! the event.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::clock::MonotonicNs;
use crate::ids::{FileId, SpanId, TaskRef, TraceId};

/// Origin of a bio's pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageOriginEvent {
    /// Time at which the bio was queued.
    pub time: MonotonicNs,
    /// The bio.
    pub bio: SpanId,
    /// Root span of the bio's trace.
    pub root: SpanId,
    /// Content of the pages.
    pub kind: PageKind,
    /// File of the pages, for [`PageKind::File`].
    pub file: Option<FileId>,
    /// First byte of the range in the file.
    pub offset: u64,
    /// Bytes of the range.
    pub bytes: u32,
    /// Consecutive parts of the bio, if its pages are not consecutive in the file: the first one begins
    /// at `offset`, and together they have `bytes`. Empty if there is one, or if a part's record was lost.
    pub parts: Vec<PagePart>,
    /// Reason why the kernel's worker wrote the pages back; none if a worker did not.
    pub reason: Option<WritebackReason>,
    /// Operations that wrote into the range, oldest first.
    pub writers: Vec<PageWriter>,
    /// Bytes of the range without a known writer; 0 for a read.
    pub bytes_unattributed: u32,
    /// Reason for the unattributed bytes; of a read, [`Unattributed::NotConsecutive`] if the parts are not
    /// known.
    pub unattributed: Option<Unattributed>,
}

/// Consecutive part of a bio's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagePart {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes of the part.
    pub bytes: u32,
}

/// Content of the pages of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PageKind {
    /// Content of a file.
    File,
    /// Page cache of a block device: metadata of a file system (inodes, bitmaps), or raw writes to
    /// the device.
    Device,
    /// Metadata that the file system caches itself (xfs buffers, btrfs trees).
    Metadata,
    /// Log of a file system (xfs).
    Log,
    /// Swapped memory.
    Swap,
}

/// Reason of a write-back (`enum wb_reason`, include/linux/backing-dev-defs.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WritebackReason {
    /// More dirty pages than the background limit.
    Background,
    /// Memory reclaim.
    MemoryPressure,
    /// sync, syncfs, or an unmount.
    Sync,
    /// Dirty for longer than dirty_expire_centisecs.
    Periodic,
    /// The file system ran short of free space.
    FreeSpace,
    /// Pages of another cgroup.
    ForeignCgroup,
    /// Another reason of this kernel.
    Other,
}

/// Operation that wrote into a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageWriter {
    /// Trace of the operation, if it belongs to a span of an application. 0: the trace that begins at
    /// the operation's own span. The join sets it.
    pub trace: TraceId,
    /// Span of the system call or the page fault; 0 if it has none. Of a request of io_uring, the call
    /// that submitted it or, without one, its own. Of a bio of a loop device, the root of its trace.
    pub span: SpanId,
    /// Task that wrote.
    pub task: TaskRef,
    /// End of the operation: since then the range was dirty.
    pub dirtied: MonotonicNs,
    /// Bytes of the bio's range that the operation wrote.
    pub bytes: u32,
    /// Evidence that the bio carries this operation's data.
    pub evidence: WriterEvidence,
}

/// Evidence for a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WriterEvidence {
    /// The system call had ended when the bio was queued.
    EndedBefore,
    /// The system call was under way when the bio was queued: it may have written some bytes later.
    UnderWay,
    /// The system call began after the bio was queued and ended before the bio did. The kernel lets
    /// programs change pages while the device reads them, so the bio may carry some of its bytes.
    /// The pages are dirty again, and another bio carries them too.
    DuringTransfer,
    /// The system call was under way when an earlier bio with the same pages was queued, and had ended
    /// when this one was: each of the two may carry its bytes. Other writers explain the pages as well.
    UnderWayEarlier,
    /// The pages became writable in a memory mapping. Later stores into them are not visible.
    MappedStore,
    /// The file belongs to a loop device, and a bio of that device that had ended when this one was
    /// queued wrote these bytes of it.
    LoopDevice,
}

/// Reason for bytes without a known writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unattributed {
    /// No recorded operation wrote them: before tracing began, by a program that is not traced, by
    /// a memory mapping, or the record was lost.
    NotRecorded,
    /// The table of dirty ranges had dropped ranges of this file.
    Evicted,
    /// The bio's pages are not consecutive in the file.
    NotConsecutive,
}

impl PageOriginEvent {
    /// Returns the origin of the bio at the start of an unknown file: all its bytes are from
    /// `writers`, or unattributed if there are none. For tests and load generators, like
    /// [`SyscallEvent::bare`](crate::event::SyscallEvent::bare).
    pub fn bare(
        [root, bio]: [SpanId; 2],
        time: MonotonicNs,
        bytes: u32,
        writers: Vec<PageWriter>,
    ) -> PageOriginEvent {
        PageOriginEvent {
            time,
            bio,
            root,
            kind: PageKind::File,
            file: None,
            offset: 0,
            bytes,
            parts: Vec::new(),
            reason: None,
            bytes_unattributed: if writers.is_empty() { bytes } else { 0 },
            unattributed: writers.is_empty().then_some(Unattributed::NotRecorded),
            writers,
        }
    }

    /// Returns the ranges of the file that the bio carries.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let whole = PagePart { offset: self.offset, bytes: self.bytes };
        let whole = self.parts.is_empty().then_some(whole);
        let parts = self.parts.iter().copied().chain(whole);
        parts.map(|part| part.offset..part.offset.saturating_add(part.bytes.into()))
    }
}

impl WriterEvidence {
    /// Returns whether the bio counts for the writer. Data that was written during the transfer is dirty
    /// again, and counts for the bio that carries it later. That of a call which was under way at an earlier
    /// bio counts for the earlier one.
    pub fn is_carried(self) -> bool {
        !matches!(self, WriterEvidence::DuringTransfer | WriterEvidence::UnderWayEarlier)
    }

    /// Returns whether the data was in memory before the bio was queued, so that it has an age.
    pub fn has_age(self) -> bool {
        match self {
            WriterEvidence::EndedBefore | WriterEvidence::MappedStore | WriterEvidence::LoopDevice => true,
            WriterEvidence::UnderWay | WriterEvidence::DuringTransfer | WriterEvidence::UnderWayEarlier => {
                false
            }
        }
    }
}

impl PageKind {
    /// Returns the name in tags and JSON.
    pub fn name(self) -> &'static str {
        match self {
            PageKind::File => "file",
            PageKind::Device => "device",
            PageKind::Metadata => "metadata",
            PageKind::Log => "log",
            PageKind::Swap => "swap",
        }
    }
}

impl WritebackReason {
    /// Returns the kernel's word for the reason (`WB_REASON_*`).
    pub fn name(self) -> &'static str {
        match self {
            WritebackReason::Background => "background",
            WritebackReason::MemoryPressure => "memory pressure",
            WritebackReason::Sync => "sync",
            WritebackReason::Periodic => "periodic",
            WritebackReason::FreeSpace => "free space",
            WritebackReason::ForeignCgroup => "foreign cgroup",
            WritebackReason::Other => "other",
        }
    }
}
