//! Page faults, and pages that they made dirty.

use serde::{Deserialize, Serialize};

use crate::clock::MonotonicNs;
use crate::ids::{FileId, SpanId};
use crate::task_context::{TaskRef, TraceContext};

/// A page fault of a program outside any system call that read from a device or waited for a read:
/// the root of its trace on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultEvent {
    /// Span id, and root of its descendants.
    pub span: SpanId,
    /// Task that faulted.
    pub task: TaskRef,
    /// True if the task waited for I/O (a major fault). Otherwise the fault found its page in memory
    /// and only started a read-ahead.
    pub major: bool,
    /// Address that the program accessed; none if the end of the fault was not seen.
    pub address: Option<u64>,
    /// File that is mapped there; none for swapped memory, or if the kernel does not name it.
    pub file: Option<FileId>,
    /// Byte offset of the page in the file.
    pub offset: Option<u64>,
    /// Begin.
    pub begin: MonotonicNs,
    /// False if `begin` is the time of the first bio or, without bios, the end.
    pub begin_seen: bool,
    /// End.
    pub end: MonotonicNs,
    /// False if `end` is the time of the last bio.
    pub end_seen: bool,
    /// Time of the event: the end, or when the end was known to be past.
    pub time: MonotonicNs,
    /// Bios that the task queued inside the fault: its own page and the read-ahead around it.
    pub bios: u32,
    /// Application span that the thread worked for, in the application's trace; none without a
    /// thread context, or if the end was not seen.
    pub context: Option<Box<TraceContext>>,
}

impl FaultEvent {
    /// Returns a major fault of `task` at address 0x7000 that queued one bio. For tests and load
    /// generators, like [`SyscallEvent::bare`](crate::event::SyscallEvent::bare).
    pub fn bare(span: SpanId, task: TaskRef, begin: MonotonicNs, end: MonotonicNs) -> Self {
        Self {
            span,
            task,
            major: true,
            address: Some(0x7000),
            file: None,
            offset: None,
            begin,
            begin_seen: true,
            end,
            end_seen: true,
            time: end,
            bios: 1,
            context: None,
        }
    }
}

/// Pages of a file that a store into a mapping made dirty. The store made a page fault; further
/// stores into the pages are not seen until write-back has cleaned them.
/// It stays on the node: the wire format has no such event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyEvent {
    /// Task that stored.
    pub task: TaskRef,
    /// Page fault, if it had read from a device before.
    pub span: Option<SpanId>,
    /// File.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Bytes: whole pages, of which the store may have changed one.
    pub bytes: u32,
    /// Time.
    pub time: MonotonicNs,
}
