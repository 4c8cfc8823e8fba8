//! Inheritance of tracing: fork, exec and exit.
//!
//! The state of a child is created in sched_process_fork, before the child is woken (1,501 of
//! 1,501): no event of it comes earlier. raw_tp cannot create the child's state, because the
//! verifier does not know its type. There the child's tid is stored, and the child inherits at its
//! first event.

use super::filter::{self, MARKED};
use super::metadata::{PF_IO_WORKER, PF_USER_WORKER, emit, update};
use super::open_syscall;
use super::page_fault;
use super::storage::{TaskState, current, state, state_or_new};
use super::thread_context;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer, ProbeRead};
use crate::runtime::settings::setting;
use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::HashMap;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{TASKS_EXITED, TASKS_MISSED};
use blkkin_probe_abi::record::{TASK_EXECED, TASK_EXITED, TASK_FORKED};
use blkkin_probe_abi::settings::{
    Program, TASK_ACTIVE, TASK_FILTERED, TASK_FOLLOW_ON_FORK, TASK_PENDING_EXEC, TASK_RECORDED, TRACE_ALL,
};

/// State that a child inherits.
#[derive(Clone, Copy)]
#[repr(C)]
struct Inherited {
    flags: u32,
    /// 1: the filters decide, by the child's metadata, whether it is active. 0: it is as its owner is.
    filtered: u32,
    parent_task: u64,
}

/// Children known by tid only (raw_tp), until their first event or their exit. A child without room
/// is counted as missed, and no entry is ever displaced. The kernel allocates an entry (some 64 B)
/// when it is inserted; the empty map takes 1 MiB. The loader shrinks the map to the minimum if
/// children have state from their fork on.
#[btf_map]
static PENDING_CHILDREN: HashMap<u32, Inherited, 65_536, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// Returns the state that the current task passes to its children.
#[inline(always)]
fn inheritance(percpu: &mut PerCpuState) -> Option<Inherited> {
    // With TRACE_ALL a child need not be known from its fork on. Filtering every parent's metadata
    // here would also exceed the stack limit of Linux 6.1.
    if setting!(trace_mode) == TRACE_ALL {
        return None;
    }
    let parent = state(current())?;
    // A task that user space marked and that has made no system call yet needs an id before it can
    // be a parent.
    if parent.flags & MARKED != 0 && parent.task == 0 {
        update(percpu, Program::TaskFork, current(), parent);
    }
    if parent.flags & (MARKED | TASK_PENDING_EXEC | TASK_FOLLOW_ON_FORK) == 0 {
        return None;
    }
    let flags = if parent.flags & MARKED != 0 { TASK_ACTIVE } else { TASK_PENDING_EXEC };
    Some(Inherited { flags, filtered: 1, parent_task: parent.task })
}

/// Handles sched_process_fork, in the parent, before the child is woken. `child` is typed.
#[inline(always)]
pub fn fork(percpu: &mut PerCpuState, child: Pointer) {
    thread_context::on_fork::<DirectLoad>(percpu, child);
    let Some(inherited) = inheritance(percpu) else { return };
    let Some(state) = state_or_new(child) else {
        percpu.count(TASKS_MISSED);
        return;
    };
    inherit(percpu, Program::TaskFork, child, state, &inherited);
}

/// Handles sched_process_fork where `child` is not typed and cannot get state: stores its tid.
#[inline(always)]
pub fn fork_by_tid(percpu: &mut PerCpuState, child: Pointer) {
    thread_context::on_fork::<ProbeRead>(percpu, child);
    let Some(inherited) = inheritance(percpu) else { return };
    // SAFETY: bpf_probe_read_kernel takes any address.
    let tid: u32 = unsafe { ProbeRead::read(child, offset!(task_pid)) };
    if PENDING_CHILDREN.insert(&tid, &inherited, 0).is_err() {
        percpu.count(TASKS_MISSED);
    }
}

/// Handles wake_up_new_task(child), in the parent: calls `fork` for the children that
/// sched_process_fork would announce. Workers of io_uring and vhost are woken there too, without a
/// fork (create_io_thread, kernel/fork.c).
#[inline(always)]
pub fn on_wake_up_new_task<R: KernelRead>(
    percpu: &mut PerCpuState,
    child: Pointer,
    fork: impl FnOnce(&mut PerCpuState, Pointer),
) {
    // SAFETY: `child` is of the kind that R reads.
    let flags: u32 = unsafe { R::read(child, offset!(task_flags)) };
    if flags & (PF_IO_WORKER | PF_USER_WORKER) == 0 {
        fork(percpu, child);
    }
}

#[inline(always)]
fn inherit(
    percpu: &mut PerCpuState,
    program: Program,
    child: Pointer,
    state: &mut TaskState,
    inherited: &Inherited,
) {
    state.flags = inherited.flags;
    state.task = percpu.next_span_id(program);
    state.parent_task = inherited.parent_task;
    state.version = 1;
    copy_metadata(percpu, child, state);
    if inherited.filtered != 0 && state.flags & TASK_ACTIVE != 0 {
        filter::apply(child, state);
    }
    if state.flags & TASK_ACTIVE != 0 {
        emit(percpu, child, state, TASK_FORKED);
    }
}

/// Copies the task's metadata into its state. Fork and exec are rare, so probe reads (25 ns each) replace loads through
/// typed pointers, which take the verifier 0.9 ms each ([`emit`]).
#[inline(always)]
fn copy_metadata(percpu: &mut PerCpuState, task: Pointer, state: &mut TaskState) {
    // SAFETY: `task` is typed.
    state.comm = unsafe {
        [DirectLoad::read(task, offset!(task_comm)), DirectLoad::read(task, offset!(task_comm) + 8)]
    };
    let cred = percpu.read(task, offset!(task_cred)) as Pointer;
    state.uid = percpu.read(cred, offset!(cred_uid)) as u32;
    let set = percpu.read(task, offset!(task_cgroups)) as Pointer;
    let group = percpu.read(set, offset!(css_set_dfl_cgrp)) as Pointer;
    let node = percpu.read(group, offset!(cgroup_kn)) as Pointer;
    state.cgroup = percpu.read(node, offset!(kernfs_id));
}

/// Handles sched_process_exec, in the task that has just executed another program.
#[inline(always)]
pub fn exec(percpu: &mut PerCpuState) {
    thread_context::on_exec();
    let task = current();
    let known = state_or_inherited(percpu, Program::TaskExec, task);
    let Some(state) = known.or_else(|| state_of_new_program(percpu, task)) else { return };
    thread_context::reset_at_exec(task, state);
    if state.flags & TASK_PENDING_EXEC != 0 {
        state.flags = TASK_ACTIVE;
    }
    // The new name may pass the filters.
    if state.flags & MARKED == 0 && setting!(trace_mode) != TRACE_ALL {
        return;
    }
    if state.task == 0 {
        state.task = percpu.next_span_id(Program::TaskExec);
    }
    copy_metadata(percpu, task, state);
    state.version = state.version.wrapping_add(1);
    filter::apply(task, state);
    if state.flags & TASK_FILTERED != 0 {
        state.emitted = 1;
        return;
    }
    emit(percpu, task, state, TASK_EXECED);
}

/// Returns the state of a task that had none when it executed this program: with TRACE_ALL a new one,
/// if the filters accept the program. A program that they exclude gets none, not even for its old
/// thread pointer. If it takes a name or a cgroup that they accept, it has set its own pointer since:
/// its loader does so first.
#[inline(always)]
fn state_of_new_program(percpu: &mut PerCpuState, task: Pointer) -> Option<&'static mut TaskState> {
    if setting!(trace_mode) == TRACE_ALL { filter::state_of_accepted(percpu, task) } else { None }
}

/// Handles sched_process_exit, in the exiting task. A system call that is open then has no exit,
/// and its record is flagged so.
#[inline(always)]
pub fn exit(percpu: &mut PerCpuState) {
    let task = current();
    thread_context::on_exit(task);
    if setting!(inherit_by_tid) != 0 {
        // SAFETY: `task` is typed. From now on the kernel may reuse its tid.
        let tid: u32 = unsafe { DirectLoad::read(task, offset!(task_pid)) };
        let _ = PENDING_CHILDREN.remove(&tid);
    }
    let Some(state) = state(task) else { return };
    // Also of a task that took a name which the filters exclude.
    if state.flags & TASK_RECORDED == 0 {
        return;
    }
    if state.span != 0 {
        if state.span_start_ns != 0 {
            page_fault::end_unseen(percpu.slot());
        } else {
            open_syscall::abandon(percpu, state);
            deferred::decide(Program::TaskExit);
        }
    }
    percpu.count(TASKS_EXITED);
    emit(percpu, task, state, TASK_EXITED);
}

/// Handles exit_files(task): the task exits if it is the current one; a failing fork calls it for
/// its child.
#[inline(always)]
pub fn exit_files(percpu: &mut PerCpuState, task: Pointer) {
    let (ending, current) = (percpu.address(task), percpu.address(current()));
    if ending == current {
        exit(percpu);
    }
}

/// Returns the state of the current task. A child that the fork hook knows by tid only gets its
/// state here.
#[inline(always)]
pub fn state_or_inherited(
    percpu: &mut PerCpuState,
    program: Program,
    task: Pointer,
) -> Option<&'static mut TaskState> {
    if let Some(state) = state(task) {
        return Some(state);
    }
    if let Some(state) = inherit_io_worker(percpu, program, task) {
        return Some(state);
    }
    if setting!(inherit_by_tid) == 0 {
        return None;
    }
    // SAFETY: `task` is typed; the entry is copied before it is removed.
    unsafe {
        let tid: u32 = DirectLoad::read(task, offset!(task_pid));
        let pending = *PENDING_CHILDREN.get(&tid)?;
        let _ = PENDING_CHILDREN.remove(&tid);
        let Some(state) = state_or_new(task) else {
            percpu.count(TASKS_MISSED);
            return None;
        };
        inherit(percpu, program, task, state, &pending);
        Some(state)
    }
}

/// Creates the state of a worker that io_uring made for a traced process. No fork hook announces it
/// (create_io_thread), but it is a thread of that process: its I/O belongs to the process, though
/// no system call of the process is open in it.
#[inline(always)]
fn inherit_io_worker(
    percpu: &mut PerCpuState,
    program: Program,
    task: Pointer,
) -> Option<&'static mut TaskState> {
    // SAFETY: `task` is typed, and so is its leader.
    unsafe {
        if DirectLoad::read::<u32>(task, offset!(task_flags)) & PF_IO_WORKER == 0 {
            return None;
        }
        let leader: Pointer = DirectLoad::read(task, offset!(task_group_leader));
        if leader.is_null() {
            return None;
        }
        let owner = state(leader)?;
        if owner.flags & TASK_ACTIVE == 0 {
            return None;
        }
        let inherited = Inherited { flags: TASK_ACTIVE, filtered: 0, parent_task: owner.task };
        let Some(state) = state_or_new(task) else {
            percpu.count(TASKS_MISSED);
            return None;
        };
        inherit(percpu, program, task, state, &inherited);
        Some(state)
    }
}
