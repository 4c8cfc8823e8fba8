//! Tasks: which of them are traced, their metadata, their thread context, and their open system
//! call.
//!
//! *In*: the task hooks, and the current task of any other hook. *Out*: the current task's state,
//! and task records. *Invariant*: each module uses only modules before it in this list:
//!
//! - `storage`: the state of a task in task storage
//! - `filter`, `metadata`: the task filters, and comm, user and cgroup of a task
//! - `attributes`, `thread_context`: the OpenTelemetry context of a thread
//! - `sampling`: which roots are dropped
//! - `page_writes`: how many write calls are open by file
//! - `wait`, `sleep`: what the open system call waited for, and where in the kernel it slept
//! - `open_syscall`, `page_fault`: the record of the system call or the page fault that is open in
//!   a task
//! - `dirty`: the pages that a store into a mapping made dirty
//! - `fork`: inheritance across fork, exec and exit

use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::setting;
use blkkin_probe_abi::counters::TASKS_MISSED;
use blkkin_probe_abi::settings::{Program, TASK_ACTIVE, TRACE_ALL};
use filter::MARKED;
use metadata::{PF_IO_WORKER, PF_KTHREAD, PF_USER_WORKER};
use storage::state_or_new;
pub use storage::{TaskState, current, state};

pub mod attributes;
pub mod dirty;
pub mod filter;
pub mod fork;
pub mod metadata;
pub mod open_syscall;
pub mod page_fault;
pub mod page_writes;
pub mod sampling;
pub mod sleep;
pub mod storage;
pub mod thread_context;
pub mod wait;

/// Returns the state of the current task, with up-to-date metadata, if its system calls are
/// recorded.
#[inline(always)]
pub fn traced(percpu: &mut PerCpuState, program: Program) -> Option<&'static mut TaskState> {
    let task = current();
    let state = if setting!(trace_mode) == TRACE_ALL {
        state_if_accepted(percpu, task)?
    } else {
        fork::state_or_inherited(percpu, program, task)?
    };
    if setting!(trace_mode) != TRACE_ALL && state.flags & MARKED == 0 {
        return None;
    }
    metadata::update(percpu, program, task, state);
    if state.flags & TASK_ACTIVE == 0 { None } else { Some(state) }
}

/// Returns the state of a task that queues block I/O for itself or for the kernel, with up-to-date
/// metadata. Creates it only with TRACE_ALL, for tasks that the filters accept.
#[inline(always)]
pub fn submitter(percpu: &mut PerCpuState, program: Program) -> Option<&'static mut TaskState> {
    let task = current();
    if setting!(trace_mode) != TRACE_ALL {
        let state = fork::state_or_inherited(percpu, program, task)?;
        if state.flags & TASK_ACTIVE != 0 && state.emitted == 0 {
            metadata::update(percpu, program, task, state);
        }
        return Some(state);
    }
    let state = state_if_accepted(percpu, task)?;
    metadata::update(percpu, program, task, state);
    Some(state)
}

/// Returns the state of a task with TRACE_ALL, created at its first event if the filters accept it.
#[inline(always)]
fn state_if_accepted(percpu: &mut PerCpuState, task: Pointer) -> Option<&'static mut TaskState> {
    match state(task) {
        Some(state) => Some(state),
        None => filter::state_of_accepted(percpu, task),
    }
}

/// Returns whether the current task is one of a program, and no kernel thread.
#[inline(always)]
pub fn is_program() -> bool {
    // SAFETY: the current task is valid.
    unsafe { DirectLoad::read::<u32>(current(), offset!(task_flags)) & PF_KTHREAD == 0 }
}

/// Returns whether the current task is one of a program, and neither a kernel thread nor a worker of
/// io_uring or vhost: what it submits is its own.
#[inline(always)]
pub fn submits_for_itself() -> bool {
    // SAFETY: the current task is valid.
    let flags: u32 = unsafe { DirectLoad::read(current(), offset!(task_flags)) };
    flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) == 0
}

/// Returns the state of a kernel thread that works for others (a journal's), created with metadata
/// if needed.
#[inline(always)]
pub fn kernel_worker(percpu: &mut PerCpuState, program: Program) -> Option<&'static mut TaskState> {
    let task = current();
    let Some(state) = state_or_new(task) else {
        percpu.count(TASKS_MISSED);
        return None;
    };
    metadata::update(percpu, program, task, state);
    Some(state)
}
