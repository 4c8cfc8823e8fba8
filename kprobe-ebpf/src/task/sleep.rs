//! Places where a system call sleeps. Loaded only on request: the program runs at every context switch.
//!
//! *In*: sched_switch, which the kernel passes with the task that leaves the CPU and the one that gets it. *Out*: the
//! sleeps of the open system call by place, as one record before the call's own. A place is the innermost
//! functions outside the scheduler's text (`__sched`), as in `/proc/PID/wchan`.
//!
//! *Invariant*: each voluntary context switch of the call is counted once, so their number is that of `nvcsw`, without the
//! switches of which the kernel reports that the task stays runnable, because a signal is pending. A sleep counts
//! only if the same system call was open at its begin and at its end. Time in which the task was runnable
//! and no CPU ran it is not part of a sleep; the call counts it itself.
//!
//! *The end.* The kernel adds the wait for a CPU to `run_delay` after this hook. So a sleep is added to the call
//! at the task's next voluntary switch, or at the call's return. Other switches add nothing: on a preemptible kernel
//! they may interrupt the program that writes the call's record.
//!
//! *A missing end.* On one machine the program did not see 1 in some 10,000 switches; the cause is unknown. The sleep
//! is counted then, and its time is not known.
//!
//! *Rejected*: a map of stacks (`bpf_get_stackid`), in which two stacks may have one bucket: the second has no name
//! then, or the first a wrong one.

use super::storage::{OpenSleep, SleepState, TaskState, current, prepare_sleeps, sleeps, state};
use super::wait::run_delay;
use crate::runtime::deferred;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::Pointer;
use crate::runtime::ring;
use crate::runtime::settings::setting;
use aya_ebpf::helpers::generated::{bpf_get_stack, bpf_ktime_get_ns};
use blkkin_probe_abi::counters::{SLEEPS_DROPPED, SLEEPS_FIRED};
use blkkin_probe_abi::deferred::DeferredOperation;
use blkkin_probe_abi::record::{Header, SYSCALL_HAS_SLEEPS};
use blkkin_probe_abi::sleep::*;
use core::ffi::c_void;

/// Frames that are read: the program's own and its caller's, those of the scheduler, and the place.
const FRAMES: usize = 16;

/// End of a sleep that ended without this program.
const MISSED: u64 = 1;
/// Wait for a CPU that no preemption noted.
const NOT_NOTED: u64 = u64::MAX;

/// Handles sched_switch(preempt, prev, next, prev_state).
#[inline(always)]
pub fn switch(context: *mut c_void, preempted: bool, from: Pointer, to: Pointer, state_of_from: u32) {
    if let Some(sleeps) = sleeps(from)
        && let Some(state) = state(from)
        && state.in_syscall()
        && !state.is_excluded()
    {
        if preempted {
            note_preemption(from, sleeps);
        } else {
            settle(from, state, sleeps);
            if state_of_from != 0 {
                begin(context, from, sleeps);
            }
        }
    }
    if let Some(sleeps) = sleeps(to)
        && sleeps.last.begin_ns != 0
        && sleeps.last.end_ns == 0
    {
        // SAFETY: the clock has no preconditions.
        sleeps.last.end_ns = unsafe { bpf_ktime_get_ns() };
    }
}

/// Returns whether sleeps are recorded. The verifier knows it, and drops what depends on it.
#[inline(always)]
fn is_on() -> bool {
    setting!(scheduler_end) != 0
}

/// Makes room for the sleeps of a system call that begins.
#[inline(always)]
pub fn prepare(task: Pointer) {
    if is_on() {
        prepare_sleeps(task);
    }
}

/// Forgets the sleeps of the current task's open system call.
#[inline(always)]
pub fn discard(state: &mut TaskState) {
    state.record.header.flags &= !SYSCALL_HAS_SLEEPS;
    if is_on()
        && let Some(sleeps) = sleeps(current())
    {
        sleeps.last.begin_ns = 0;
    }
}

#[inline(always)]
fn begin(context: *mut c_void, task: Pointer, sleeps: &mut SleepState) {
    let mut frames = [0u64; FRAMES];
    // SAFETY: the helper writes no more than the buffer has; the clock has no preconditions.
    unsafe {
        bpf_get_stack(context, (&raw mut frames).cast(), size_of_val(&frames) as u32, 0);
        sleeps.last.begin_ns = bpf_ktime_get_ns();
    }
    sleeps.last.end_ns = 0;
    sleeps.last.run_delay = run_delay(task);
    sleeps.last.cpu_wait = NOT_NOTED;
    sleeps.last.functions = place(&frames);
}

/// Notes how long the task waited for a CPU at the end of its last sleep: the count soon includes the preemption. The
/// sleep is not added to the call, which a program of the task may be about to write.
#[inline(always)]
fn note_preemption(task: Pointer, sleeps: &mut SleepState) {
    let last = &mut sleeps.last;
    if last.begin_ns == 0 || last.cpu_wait != NOT_NOTED {
        return;
    }
    last.cpu_wait = cpu_wait(task, last);
    if last.end_ns == 0 {
        last.end_ns = MISSED;
    }
}

/// Returns how long in ns the task waited for a CPU at the end of its last sleep.
#[inline(always)]
fn cpu_wait(task: Pointer, last: &OpenSleep) -> u64 {
    if last.cpu_wait != NOT_NOTED {
        return last.cpu_wait;
    }
    run_delay(task).wrapping_sub(last.run_delay)
}

/// Returns the innermost functions outside the scheduler.
#[inline(always)]
fn place(frames: &[u64; FRAMES]) -> [u64; PLACE_FUNCTIONS] {
    let (begin, end) = (setting!(scheduler_begin), setting!(scheduler_end));
    let mut place = [0; PLACE_FUNCTIONS];
    let (mut at, mut found, mut in_scheduler) = (0, 0, false);
    while at < FRAMES {
        let address = frames[at];
        if address >= begin && address < end {
            in_scheduler = true;
        } else if in_scheduler {
            match found {
                0 => place[0] = address,
                1 => place[1] = address,
                2 => place[2] = address,
                _ => {}
            }
            found += 1;
        }
        at += 1;
    }
    place
}

/// Adds the last sleep to the open system call, if it was part of it.
#[inline(always)]
fn settle(task: Pointer, state: &mut TaskState, sleeps: &mut SleepState) {
    let (begin, end) = (sleeps.last.begin_ns, sleeps.last.end_ns);
    if begin == 0 {
        return;
    }
    sleeps.last.begin_ns = 0;
    if begin < state.record.enter_ns {
        return;
    }
    let (mut time, mut unended) = (0, 1);
    if end > MISSED {
        let (delay, elapsed) = (cpu_wait(task, &sleeps.last), end - begin);
        time = if delay < elapsed { elapsed - delay } else { 0 };
        unended = 0;
    }
    if state.record.header.flags & SYSCALL_HAS_SLEEPS == 0 {
        state.record.header.flags |= SYSCALL_HAS_SLEEPS;
        sleeps.record.clear();
    }
    let functions = sleeps.last.functions;
    sleeps.record.add(functions, time);
    sleeps.record.unended += unended;
}

/// Writes the record of the call's sleeps, if it slept, or stores it in the call's operation.
#[inline(always)]
pub fn write(
    percpu: &mut PerCpuState,
    state: &mut TaskState,
    now: u64,
    operation: Option<&mut DeferredOperation>,
) {
    if !is_on() {
        return;
    }
    let task = current();
    let Some(sleeps) = sleeps(task) else { return };
    settle(task, state, sleeps);
    if state.record.header.flags & SYSCALL_HAS_SLEEPS == 0 {
        return;
    }
    let len = size_of::<SleepsRecord>() as u32;
    sleeps.record.header = Header { tag: TAG_SLEEPS, sampling: 0, flags: 0, len, time_ns: now };
    sleeps.record.span = state.span;
    if let Some(operation) = operation {
        return deferred::put(percpu, operation, TAG_SLEEPS, &sleeps.record);
    }
    ring::put_counted(percpu, SLEEPS_FIRED, SLEEPS_DROPPED, &sleeps.record);
}
