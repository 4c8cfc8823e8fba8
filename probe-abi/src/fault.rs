//! Records of page faults, and of the pages that they made dirty.
//!
//! A fault that reads from a device is a root, like a system call: its `span` is the parent of the
//! bios that the task queues inside it. A fault without bios has a record only if it was a major
//! one: it waited for a read of another task.

use crate::context::ContextHead;
use crate::plain;
use crate::record::{FileId, Header};

/// Page fault that ended.
pub const TAG_FAULT: u8 = 14;
/// Pages that a task made dirty outside a write call.
pub const TAG_DIRTY: u8 = 15;

/// The kernel counted a major fault: it waited for I/O. Without this flag the fault found its page
/// in memory and only started a read-ahead.
pub const FAULT_MAJOR: u16 = 1 << 0;
/// `file` is valid.
pub const FAULT_HAS_FILE: u16 = 1 << 1;
/// `address` is valid.
pub const FAULT_HAS_ADDRESS: u16 = 1 << 2;
/// The begin was not seen: `begin_ns` is the queue time of the first bio or, without bios, the end.
pub const FAULT_BEGIN_UNSEEN: u16 = 1 << 3;
/// The end was not seen: `end_ns` is the queue time of the last bio.
pub const FAULT_END_UNSEEN: u16 = 1 << 4;
/// `page` is valid.
pub const FAULT_HAS_PAGE: u16 = 1 << 6;
/// `head` is valid.
pub const FAULT_HAS_CONTEXT: u16 = 1 << 5;

/// Page fault of a task outside any system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FaultRecord {
    /// Tag, flags, length, time when the record was written.
    pub header: Header,
    /// Span of the fault, and root of its trace.
    pub span: u64,
    /// Task that faulted.
    pub task: u64,
    /// CLOCK_MONOTONIC at the begin.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC at the end.
    pub end_ns: u64,
    /// User address that was accessed.
    pub address: u64,
    /// File that is mapped at the address.
    pub file: FileId,
    /// Page of the file, counted in pages.
    pub page: u64,
    /// Bios that the task queued inside the fault.
    pub bios: u32,
    /// Version of `task`.
    pub task_version: u16,
    /// Zero.
    pub reserved: u16,
    /// Context of the thread.
    pub head: ContextHead,
}

/// Pages of a file that became dirty in a page fault of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DirtyRecord {
    /// Tag, flags (none), length, time.
    pub header: Header,
    /// Span of the fault if it had read from a device before, else 0.
    pub span: u64,
    /// Task that stored.
    pub task: u64,
    /// File.
    pub file: FileId,
    /// First page of the file, counted in pages.
    pub page: u64,
    /// Number of pages.
    pub pages: u32,
    /// Version of `task`.
    pub task_version: u16,
    /// Zero.
    pub reserved: u16,
}

plain! { FaultRecord = 128, DirtyRecord = 72 }
