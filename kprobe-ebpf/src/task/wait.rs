//! Waits inside a system call: for sleeping locks, pauses while too many pages are dirty, and waits for
//! the log of xfs (`xfs_log`).
//!
//! *In*: contention_begin and contention_end, which the kernel passes only where a lock is not free at
//! once, and balance_dirty_pages, which it passes before each pause. *Out*: the sums of the open
//! system call by kind, and its longest wait with the holder of the lock, as one record before the
//! call's own.
//!
//! *Invariant*: a wait counts only if the same system call was open at its begin and at its end. Time
//! in which the task was runnable and no CPU ran it is not part of a wait; the call counts it itself.
//!
//! *The holder* is the task that the lock's own word `owner` names, read before and after the task's
//! ids: both times the same, so the task held the lock in between. A semaphore that readers hold, and
//! a per-CPU one, has no holder: the word then names a reader of earlier.
//!
//! *Not here*: spinning, at spinlocks and before a semaphore's waiter sleeps, which uses the CPU; waits
//! for a folio, a journal handle or a request, for which the kernel has no such tracepoint; tasks
//! outside a system call.
//!
//! *Rejected*: a record for each wait. A write of 1 GiB may pause 1,000 times.

use super::storage::{OpenWait, TaskState, current, state};
use crate::file::overlay;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use crate::runtime::settings::setting;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::{WAITS_DROPPED, WAITS_FIRED};
use blkkin_probe_abi::deferred::DeferredOperation;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::{Header, SYSCALL_HAS_WAITS};
use blkkin_probe_abi::wait::*;

/// Flags of contention_begin (include/trace/events/lock.h).
const SPIN: u32 = 1 << 0;
const REAL_TIME: u32 = 1 << 3;
const PERCPU: u32 = 1 << 4;
const MUTEX: u32 = 1 << 5;

/// Bits of `owner` that are not part of the task's address (kernel/locking/rwsem.c, mutex.h).
const SEMAPHORE_FLAGS: u64 = 0b11;
const MUTEX_FLAGS: u64 = 0b111;
/// Bit of a semaphore's owner: readers hold it.
const HELD_BY_READERS: u64 = 1;

/// Handles contention_begin(lock, flags). A mutex passes it again whenever its waiter changes between
/// spinning and sleeping.
#[inline(always)]
pub fn lock_begin(lock: u64, flags: u32) {
    if flags & SPIN != 0 && flags & MUTEX == 0 {
        return;
    }
    let task = current();
    let Some(state) = state(task) else { return };
    if !state.in_syscall() || (state.wait.lock == lock && state.wait.begin_ns >= state.record.enter_ns) {
        return;
    }
    state.wait.lock = lock;
    // SAFETY: `task` is typed; the clock has no preconditions.
    unsafe {
        state.wait.begin_ns = bpf_ktime_get_ns();
        (state.wait.run_delay, state.wait.sleeps) = counts(task);
    }
    state.wait.kind = kind(task, state, lock, flags);
    read_holder(&mut state.wait, lock, flags);
}

/// Handles contention_end(lock, result).
#[inline(always)]
pub fn lock_end(lock: u64) {
    let task = current();
    let Some(state) = state(task) else { return };
    if state.wait.lock != lock || lock == 0 {
        return;
    }
    state.wait.lock = 0;
    if !state.in_syscall() || state.wait.begin_ns < state.record.enter_ns {
        return;
    }
    let (kind, begin) = (state.wait.kind, state.wait.begin_ns);
    // SAFETY: `task` is typed; the clock has no preconditions.
    let (time, slept) =
        unsafe { since(task, begin, (state.wait.run_delay, state.wait.sleeps), bpf_ktime_get_ns()) };
    if add(state, kind, begin, time, slept) {
        state.waits.holder_pid = state.wait.holder_pid;
        state.waits.holder_tid = state.wait.holder_tid;
        state.waits.holder_comm = state.wait.holder_comm;
        state.waits.header.flags = if state.wait.holder_tid != 0 { WAITS_HAS_HOLDER } else { 0 };
    }
}

/// Handles balance_dirty_pages, with the pause that follows it in ticks. 0 and less: no pause follows.
#[inline(always)]
pub fn pause(ticks: i64) {
    if ticks <= 0 {
        return;
    }
    let Some(state) = state(current()) else { return };
    if !state.in_syscall() {
        return;
    }
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    if add(state, WAIT_DIRTY, now, ticks as u64 * setting!(tick_ns) as u64, 1) {
        state.waits.header.flags = 0;
    }
}

/// Notes that the task's system call begins to force the log of xfs to the disk, if it has not begun
/// yet.
#[inline(always)]
pub fn log_begin(task: Pointer, state: &mut TaskState) {
    if state.log.begin_ns >= state.record.enter_ns {
        return;
    }
    // SAFETY: `task` is typed; the clock has no preconditions.
    unsafe {
        state.log.begin_ns = bpf_ktime_get_ns();
        (state.log.run_delay, state.log.sleeps) = counts(task);
    }
    state.log.waited = 0;
}

/// Notes that the system call sleeps until a record of the log is written, by this bio of this trace (0:
/// unknown).
#[inline(always)]
pub fn log_sleep(state: &mut TaskState, [bio, root]: [u64; 2]) {
    prepare(state);
    state.log.waited = 1;
    (state.waits.log_bio, state.waits.log_root) = (bio, root);
}

/// Ends the wait for the log with the system call: nothing but I/O of its own follows.
#[inline(always)]
fn log_end(state: &mut TaskState, now: u64) {
    if state.log.begin_ns < state.record.enter_ns || state.log.waited == 0 {
        return;
    }
    let begin = state.log.begin_ns;
    // SAFETY: the task is typed.
    let (time, slept) = unsafe { since(current(), begin, (state.log.run_delay, state.log.sleeps), now) };
    if add(state, WAIT_LOG, begin, time, slept) {
        state.waits.header.flags = 0;
    }
}

/// Writes the record of the call's waits, if it waited, or stores it in the call's operation.
#[inline(always)]
pub fn write(
    percpu: &mut PerCpuState,
    state: &mut TaskState,
    now: u64,
    operation: Option<&mut DeferredOperation>,
) {
    log_end(state, now);
    if state.record.header.flags & SYSCALL_HAS_WAITS == 0 {
        return;
    }
    let flags = state.waits.header.flags;
    let len = size_of::<WaitsRecord>() as u32;
    state.waits.header = Header { tag: TAG_WAITS, sampling: 0, flags, len, time_ns: now };
    state.waits.span = state.span;
    if let Some(operation) = operation {
        return deferred::put(percpu, operation, TAG_WAITS, &state.waits);
    }
    ring::put_counted(percpu, WAITS_FIRED, WAITS_DROPPED, &state.waits);
}

/// Adds a wait to the call's sums. Returns whether it is the longest so far.
#[inline(always)]
fn add(state: &mut TaskState, kind: u32, begin: u64, time: u64, slept: u32) -> bool {
    prepare(state);
    // The verifier does not know that it is one of the kinds.
    let kind = kind as usize % WAIT_KINDS;
    state.waits.time_ns[kind] += time;
    state.waits.counts[kind] += 1;
    state.waits.sleeps += slept;
    if time < state.waits.longest_ns {
        return false;
    }
    state.waits.longest_begin_ns = begin;
    state.waits.longest_ns = time;
    state.waits.longest_kind = kind as u32;
    true
}

/// Empties the record of the call's waits before its first use.
#[inline(always)]
fn prepare(state: &mut TaskState) {
    if state.record.header.flags & SYSCALL_HAS_WAITS == 0 {
        state.record.header.flags |= SYSCALL_HAS_WAITS;
        state.waits.time_ns = [0; WAIT_KINDS];
        state.waits.counts = [0; WAIT_KINDS];
        state.waits.longest_ns = 0;
        state.waits.sleeps = 0;
        (state.waits.log_bio, state.waits.log_root) = (0, 0);
    }
}

/// Returns what the lock protects, as `WAIT_*`.
#[inline(always)]
fn kind(task: Pointer, state: &TaskState, lock: u64, flags: u32) -> u32 {
    if flags & PERCPU != 0 {
        return WAIT_PERCPU;
    }
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        if state.file != 0 {
            let own: u64 = ProbeRead::read(state.file as Pointer, offset!(file_inode));
            let data = overlay::data_inode(state.file);
            if lock == own + offset!(inode_lock) as u64 || lock == data + offset!(inode_lock) as u64 {
                return WAIT_INODE;
            }
            if lock == data + offset!(inode_invalidate_lock) as u64 {
                return WAIT_PAGE_CACHE;
            }
        }
        if lock == ProbeRead::read::<u64>(task, offset!(task_mm)) + offset!(mm_lock) as u64 {
            return WAIT_MEMORY_MAP;
        }
    }
    if flags & (MUTEX | REAL_TIME) != 0 { WAIT_MUTEX } else { WAIT_SEMAPHORE }
}

/// Reads which task holds the lock.
#[inline(always)]
fn read_holder(wait: &mut OpenWait, lock: u64, flags: u32) {
    wait.holder_tid = 0;
    let (field, bits) = match flags & (PERCPU | REAL_TIME | MUTEX) {
        0 => (offset!(rwsem_owner), SEMAPHORE_FLAGS),
        MUTEX => (offset!(mutex_owner), MUTEX_FLAGS),
        _ => return,
    };
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let owner: u64 = ProbeRead::read(lock as Pointer, field);
        let holder = (owner & !bits) as Pointer;
        if holder.is_null() || (bits == SEMAPHORE_FLAGS && owner & HELD_BY_READERS != 0) {
            return;
        }
        let tid: u32 = ProbeRead::read(holder, offset!(task_pid));
        wait.holder_pid = ProbeRead::read(holder, offset!(task_tgid));
        wait.holder_comm[0] = ProbeRead::read(holder, offset!(task_comm));
        wait.holder_comm[1] = ProbeRead::read(holder, offset!(task_comm) + 8);
        if ProbeRead::read::<u64>(lock as Pointer, field) & !bits == holder as u64 {
            wait.holder_tid = tid;
        }
    }
}

/// Returns the task's run delay in ns and its voluntary context switches.
#[inline(always)]
unsafe fn counts(task: Pointer) -> (u64, u32) {
    let run_delay = run_delay(task);
    // SAFETY: `task` is typed.
    unsafe { (run_delay, DirectLoad::read::<u64>(task, offset!(task_nvcsw)) as u32) }
}

/// Returns the time in ns of a wait until `now`, without the time in which the task was runnable and not
/// running, and the context switches in it. `before`: the task's counts at the wait's begin.
#[inline(always)]
unsafe fn since(task: Pointer, begin: u64, before: (u64, u32), now: u64) -> (u64, u32) {
    // SAFETY: `task` is typed.
    let (delay, sleeps) = unsafe { counts(task) };
    let (delay, elapsed) = (delay.wrapping_sub(before.0), now - begin);
    let time = if delay < elapsed { elapsed - delay } else { 0 };
    (time, sleeps.wrapping_sub(before.1))
}

/// Returns the time in ns for which the task was runnable but not running; 0 if the kernel does not
/// count it.
#[inline(always)]
pub fn run_delay(task: Pointer) -> u64 {
    if offset!(task_run_delay) == ABSENT {
        return 0;
    }
    // SAFETY: `task` is typed.
    unsafe { DirectLoad::read(task, offset!(task_run_delay)) }
}
