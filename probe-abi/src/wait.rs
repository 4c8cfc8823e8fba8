//! Record of what a system call waited for inside the kernel: locks that were held by others, pauses
//! while too many pages were dirty, and the log of xfs.
//!
//! A call that waited has one such record. It precedes the call's own record in the same ring.

use crate::plain;
use crate::record::Header;

/// Waits of a system call.
pub const TAG_WAITS: u8 = 16;

/// The lock of the call's file (`inode.i_rwsem`).
pub const WAIT_INODE: u32 = 0;
/// The lock of the file's page cache against truncation (`address_space.invalidate_lock`).
pub const WAIT_PAGE_CACHE: u32 = 1;
/// The lock of the process's memory map (`mm_struct.mmap_lock`).
pub const WAIT_MEMORY_MAP: u32 = 2;
/// A per-CPU semaphore: above all, a file system that is being frozen.
pub const WAIT_PERCPU: u32 = 3;
/// Another reader-writer semaphore.
pub const WAIT_SEMAPHORE: u32 = 4;
/// A mutex, or a real-time mutex.
pub const WAIT_MUTEX: u32 = 5;
/// A pause while too many pages are dirty (`balance_dirty_pages`).
pub const WAIT_DIRTY: u32 = 6;
/// A write of the log of xfs, from the begin of `xfs_log_force` to the return of the system call.
pub const WAIT_LOG: u32 = 7;
/// Number of kinds.
pub const WAIT_KINDS: usize = 8;

/// `holder_*` are valid: that task held the lock when the longest wait began.
pub const WAITS_HAS_HOLDER: u16 = 1 << 0;

/// Waits of one system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WaitsRecord {
    /// Tag, flags, length, time of the call's return.
    pub header: Header,
    /// Span of the system call.
    pub span: u64,
    /// Time in ns by kind, without the time in which the task was runnable but not running.
    pub time_ns: [u64; WAIT_KINDS],
    /// Number of waits by kind.
    pub counts: [u32; WAIT_KINDS],
    /// CLOCK_MONOTONIC at the begin of the longest wait.
    pub longest_begin_ns: u64,
    /// Time of the longest wait in ns.
    pub longest_ns: u64,
    /// Kind of the longest wait.
    pub longest_kind: u32,
    /// Voluntary context switches inside the waits.
    pub sleeps: u32,
    /// Process id of the lock's holder.
    pub holder_pid: u32,
    /// Thread id of the lock's holder.
    pub holder_tid: u32,
    /// comm of the lock's holder.
    pub holder_comm: [u64; 2],
    /// Span of the bio that wrote the log record for which the call waited last; 0 if it was not in
    /// flight then.
    pub log_bio: u64,
    /// Root span of that bio's trace.
    pub log_root: u64,
}

plain! { WaitsRecord = 184 }
