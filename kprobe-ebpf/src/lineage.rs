//! Who is followed because of whom: fork, exec and exit.
//!
//! A child's state is made in sched_process_fork, before the child is woken (1,501 of 1,501): no event of it comes
//! earlier. raw_tp cannot give a child state, as the verifier does not know its type: the child's number is noted, and
//! taken up at its first event.

use crate::access::{Access, Direct, Pointer, Probe};
use crate::context;
use crate::describe::{announce, cgroup_of, refresh};
use crate::filter;
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::task::{TaskState, current, state, state_or_new};
use aya_ebpf::btf_maps::LruHashMap;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{TASKS_EXITED, TASKS_MISSED};
use blkkin_probe_abi::record::{TASK_EXECED, TASK_EXITED, TASK_FORKED};
use blkkin_probe_abi::settings::{FOLLOW_ALL, Program, TASK_ACTIVE, TASK_ARMED, TASK_SPAWNER, TASK_UNWANTED};

/// What a child inherits.
#[derive(Clone, Copy)]
#[repr(C)]
struct Inherited {
    flags: u32,
    reserved: u32,
    parent_task: u64,
}

/// Children noted by number (raw_tp), until their first event. At the most so many forked and not yet run; a note that
/// is displaced is a child that is missed, which the least recently used one never is in practice.
#[btf_map]
static NOTED: LruHashMap<u32, Inherited, 4096> = LruHashMap::new();

/// What the current task hands on to those that it forks.
#[inline(always)]
fn inheritance(local: &mut Local) -> Option<Inherited> {
    // Everybody is followed: a child need not be known from its fork on. (And with the names of everybody to judge, this
    // program would need more stack than Linux 6.1 gives it.)
    if setting!(follow) == FOLLOW_ALL {
        return None;
    }
    let parent = state(current())?;
    // Marked from outside, and not yet seen in a call: it needs an id before it can be a parent.
    if parent.flags & TASK_ACTIVE != 0 && parent.task == 0 {
        refresh(local, Program::TaskFork, current(), parent);
    }
    if parent.flags & (TASK_ACTIVE | TASK_ARMED | TASK_SPAWNER) == 0 {
        return None;
    }
    let flags = if parent.flags & TASK_ACTIVE != 0 { TASK_ACTIVE } else { TASK_ARMED };
    Some(Inherited { flags, reserved: 0, parent_task: parent.task })
}

/// sched_process_fork, in the parent, before the child is woken. `child` is typed.
#[inline(always)]
pub fn fork(local: &mut Local, child: Pointer) {
    context::forked::<Direct>(child);
    let Some(inherited) = inheritance(local) else { return };
    let Some(state) = state_or_new(child) else {
        local.count(TASKS_MISSED);
        return;
    };
    adopt(local, Program::TaskFork, child, state, &inherited);
}

/// The same where `child` is not typed and cannot be given state: its number is noted.
#[inline(always)]
pub fn fork_noted(local: &mut Local, child: Pointer) {
    context::forked::<Probe>(child);
    let Some(inherited) = inheritance(local) else { return };
    // SAFETY: reads by helper take any address.
    let tid: u32 = unsafe { Probe::read(child, offset!(task_pid)) };
    if NOTED.insert(&tid, &inherited, 0).is_err() {
        local.count(TASKS_MISSED);
    }
}

/// wake_up_new_task(child), in the parent: hands on to `fork` what sched_process_fork would have announced. Workers that io_uring
/// and vhost make are woken there too, and are no fork's (create_io_thread, kernel/fork.c).
#[inline(always)]
pub fn woken<A: Access>(local: &mut Local, child: Pointer, fork: impl FnOnce(&mut Local, Pointer)) {
    // SAFETY: `child` is of the kind that A reads.
    let flags: u32 = unsafe { A::read(child, offset!(task_flags)) };
    if flags & (PF_IO_WORKER | PF_USER_WORKER) == 0 {
        fork(local, child);
    }
}

#[inline(always)]
fn adopt(local: &mut Local, program: Program, child: Pointer, state: &mut TaskState, inherited: &Inherited) {
    state.flags = inherited.flags;
    state.task = local.mint(program);
    state.parent_task = inherited.parent_task;
    state.version = 1;
    adopt_names(child, state);
    if state.flags & TASK_ACTIVE != 0 {
        announce(local, child, state, TASK_FORKED);
    }
}

/// Takes over what a person calls the task.
#[inline(always)]
fn adopt_names(task: Pointer, state: &mut TaskState) {
    // SAFETY: `task` is typed.
    unsafe {
        state.comm = [Direct::read(task, offset!(task_comm)), Direct::read(task, offset!(task_comm) + 8)];
        let cred: Pointer = Direct::read(task, offset!(task_cred));
        state.uid = Direct::read(cred, offset!(cred_uid));
    }
    state.cgroup = cgroup_of(task);
}

/// sched_process_exec, in the task that has just become another program.
#[inline(always)]
pub fn exec(local: &mut Local) {
    context::executed();
    let task = current();
    let Some(state) = state_or_adopted(local, Program::TaskExec, task) else { return context_of_new(task) };
    context::forget(task, state);
    if state.flags & TASK_ARMED != 0 {
        state.flags = TASK_ACTIVE;
    }
    // With FOLLOW_ALL the new name may be a wanted one.
    if state.flags & TASK_ACTIVE == 0 && setting!(follow) != FOLLOW_ALL {
        return;
    }
    if state.task == 0 {
        state.task = local.mint(Program::TaskExec);
    }
    adopt_names(task, state);
    state.version = state.version.wrapping_add(1);
    if setting!(follow) == FOLLOW_ALL {
        filter::judge(task, state);
        if state.flags & TASK_UNWANTED != 0 {
            state.announced = 1;
            return;
        }
    }
    announce(local, task, state, TASK_EXECED);
}

/// Of a task that has made no call so far, where everybody is followed: what it had before is noted, and nothing said.
#[inline(always)]
fn context_of_new(task: Pointer) {
    if setting!(contexts) != 0
        && setting!(follow) == FOLLOW_ALL
        && let Some(state) = state_or_new(task)
    {
        context::forget(task, state);
    }
}

/// sched_process_exit, in the task that ends. A call that is open then has no exit: it is written as such.
#[inline(always)]
pub fn exit(local: &mut Local) {
    let task = current();
    context::ended(task);
    if setting!(adopt_by_number) != 0 {
        // SAFETY: `task` is typed. Its number may now be given to another.
        let tid: u32 = unsafe { Direct::read(task, offset!(task_pid)) };
        let _ = NOTED.remove(&tid);
    }
    let Some(state) = state(task) else { return };
    if state.flags & TASK_ACTIVE == 0 || state.task == 0 {
        return;
    }
    if state.span != 0 {
        crate::call::abandon(local, state);
    }
    local.count(TASKS_EXITED);
    announce(local, task, state, TASK_EXITED);
}

/// exit_files(task): of a task that ends if it is the current one; a fork that fails undoes its child's by it.
#[inline(always)]
pub fn exit_of(local: &mut Local, task: Pointer) {
    let (ending, current) = (local.address(task), local.address(current()));
    if ending == current {
        exit(local);
    }
}

/// The state of the current task; a child that the fork hook could only note by number gets its state here.
#[inline(always)]
pub fn state_or_adopted(
    local: &mut Local,
    program: Program,
    task: Pointer,
) -> Option<&'static mut TaskState> {
    if let Some(state) = state(task) {
        return Some(state);
    }
    if let Some(state) = adopted_worker(local, program, task) {
        return Some(state);
    }
    if setting!(adopt_by_number) == 0 {
        return None;
    }
    // SAFETY: `task` is typed; the note is copied before it is removed.
    unsafe {
        let tid: u32 = Direct::read(task, offset!(task_pid));
        let note = *NOTED.get(&tid)?;
        let _ = NOTED.remove(&tid);
        let Some(state) = state_or_new(task) else {
            local.count(TASKS_MISSED);
            return None;
        };
        adopt(local, program, task, state, &note);
        Some(state)
    }
}

/// A worker of io_uring (include/linux/sched.h).
const PF_IO_WORKER: u32 = 0x0000_0010;
/// A thread of the kernel's in a user's process, vhost's too (6.4, 54e6842d0775; nothing before).
const PF_USER_WORKER: u32 = 0x0000_4000;

/// The state of a worker that io_uring made for a followed process. No fork hook announces it (create_io_thread), but it
/// is a thread of that process: what it queues is the process's, though no call of the process is open in it.
#[inline(always)]
fn adopted_worker(local: &mut Local, program: Program, task: Pointer) -> Option<&'static mut TaskState> {
    // SAFETY: `task` is typed, and so is its leader.
    unsafe {
        if Direct::read::<u32>(task, offset!(task_flags)) & PF_IO_WORKER == 0 {
            return None;
        }
        let leader: Pointer = Direct::read(task, offset!(task_group_leader));
        if leader.is_null() {
            return None;
        }
        let owner = state(leader)?;
        if owner.flags & TASK_ACTIVE == 0 {
            return None;
        }
        let inherited = Inherited { flags: TASK_ACTIVE, reserved: 0, parent_task: owner.task };
        let Some(state) = state_or_new(task) else {
            local.count(TASKS_MISSED);
            return None;
        };
        adopt(local, program, task, state, &inherited);
        Some(state)
    }
}
