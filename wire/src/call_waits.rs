//! Waits of a system call inside the kernel: locks that others held, pauses while too many pages were
//! dirty, and writes of a file system's log.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::{DurationNs, MonotonicNs};
use crate::ids::{Pid, SpanId, Tid, TraceId};

/// Object that a call waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WaitKind {
    /// Lock of the call's file (`inode.i_rwsem`).
    FileLock,
    /// Lock of the file's page cache against truncation (`address_space.invalidate_lock`).
    PageCacheLock,
    /// Lock of the process's memory map (`mm_struct.mmap_lock`).
    MemoryMapLock,
    /// Per-CPU semaphore: above all, a file system that is being frozen.
    PerCpuSemaphore,
    /// Another reader-writer semaphore.
    Semaphore,
    /// Mutex.
    Mutex,
    /// Pause while too many pages are dirty (`balance_dirty_pages`).
    DirtyPages,
    /// Write of the log of xfs: from the begin of `xfs_log_force` to the call's return.
    Log,
}

impl WaitKind {
    /// Kinds by their number in records and messages.
    pub const ALL: [WaitKind; 8] = [
        WaitKind::FileLock,
        WaitKind::PageCacheLock,
        WaitKind::MemoryMapLock,
        WaitKind::PerCpuSemaphore,
        WaitKind::Semaphore,
        WaitKind::Mutex,
        WaitKind::DirtyPages,
        WaitKind::Log,
    ];

    /// Returns the kind of this number.
    pub fn from_number(number: u32) -> Option<WaitKind> {
        WaitKind::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the name, as behind "waited for".
    pub fn name(self) -> &'static str {
        match self {
            WaitKind::FileLock => "the file's lock",
            WaitKind::PageCacheLock => "the page cache's lock",
            WaitKind::MemoryMapLock => "the memory map's lock",
            WaitKind::PerCpuSemaphore => "a per-CPU semaphore",
            WaitKind::Semaphore => "a semaphore",
            WaitKind::Mutex => "a mutex",
            WaitKind::DirtyPages => "dirty pages",
            WaitKind::Log => "the file system's log",
        }
    }

    /// Returns whether it is a lock.
    pub fn is_lock(self) -> bool {
        !matches!(self, WaitKind::DirtyPages | WaitKind::Log)
    }
}

/// Waits of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSum {
    /// Kind.
    pub kind: WaitKind,
    /// Total time, without the time in which the task was runnable but not running.
    pub time: DurationNs,
    /// Number of waits.
    pub count: u32,
}

/// Task that held a lock when a wait for it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the thread.
    pub comm: Arc<str>,
}

/// The longest wait of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongestWait {
    /// Kind.
    pub kind: WaitKind,
    /// Begin.
    pub begin: MonotonicNs,
    /// Time, as in [`WaitSum::time`].
    pub time: DurationNs,
    /// Task that held the lock at the begin. None for a pause, for a semaphore that readers held, and for
    /// a lock that was released at that moment.
    pub holder: Option<LockHolder>,
}

/// Write of a file system's log for which a call waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogWrite {
    /// Bio of the write.
    pub span: SpanId,
    /// Root of the bio's trace.
    pub root: SpanId,
    /// The bio's trace; 0 until the join knows it.
    pub trace: TraceId,
}

/// Waits of a system call. The pauses have the length that the kernel chose for them, in ticks of its
/// timer; locks are measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallWaits {
    /// Sums, in the order of [`WaitKind`], none with a count of 0.
    pub sums: Vec<WaitSum>,
    /// The longest wait.
    pub longest: LongestWait,
    /// Times that the task gave up the CPU in these waits.
    pub sleeps: u32,
    /// The last write of the log for which the call waited; none if it was not in flight when the call
    /// began to sleep.
    pub log_write: Option<LogWrite>,
}

impl CallWaits {
    /// Returns the time that the call waited for locks.
    pub fn locks(&self) -> DurationNs {
        self.time(WaitKind::is_lock)
    }

    /// Returns the time for which the call was paused because too many pages were dirty.
    pub fn paused(&self) -> DurationNs {
        self.time(|kind| kind == WaitKind::DirtyPages)
    }

    /// Returns the time that the call waited for the file system's log.
    pub fn log(&self) -> DurationNs {
        self.time(|kind| kind == WaitKind::Log)
    }

    fn time(&self, of: impl Fn(WaitKind) -> bool) -> DurationNs {
        let chosen = self.sums.iter().filter(|sum| of(sum.kind));
        DurationNs(chosen.fold(0, |total, sum| total.saturating_add(sum.time.0)))
    }
}
