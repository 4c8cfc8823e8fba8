//! Task filters. A list that is not set is a frozen 0, and its test is dead code to the verifier.
//!
//! A task that the filters exclude from its first event on has no state: each of its calls asks the
//! filters again, and it costs no memory. A task that was traced keeps its state until it exits.

use super::storage::{TaskState, state_or_new};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::setting;
use blkkin_probe_abi::counters::TASKS_MISSED;
use blkkin_probe_abi::settings::{FILTERS_MAX, TASK_ACTIVE, TASK_FILTERED, TRACE_ALL};

/// Flags of which a marked task has one: user space marked the task or an ancestor of it.
pub const MARKED: u32 = TASK_ACTIVE | TASK_FILTERED;

/// Returns whether a task filter is set.
#[inline(always)]
pub fn exists() -> bool {
    setting!(pids_len) | setting!(tids_len) | setting!(comms_len) | setting!(cgroups_len) != 0
}

/// Returns whether the filters accept a task, by its metadata at this moment.
#[inline(always)]
pub fn accepts(task: Pointer) -> bool {
    // SAFETY: `task` is typed.
    let (tid, pid, comm): (u32, u32, [u64; 2]) = unsafe {
        (
            DirectLoad::read(task, offset!(task_pid)),
            DirectLoad::read(task, offset!(task_tgid)),
            [DirectLoad::read(task, offset!(task_comm)), DirectLoad::read(task, offset!(task_comm) + 8)],
        )
    };
    let cgroup = if setting!(cgroups_len) == 0 { 0 } else { cgroup_of(task) };
    let mut pids = setting!(pids_len) == 0;
    let mut tids = setting!(tids_len) == 0;
    let mut comms = setting!(comms_len) == 0;
    let mut cgroups = setting!(cgroups_len) == 0;
    let mut i = 0;
    while i < FILTERS_MAX {
        let n = i as u32;
        pids |= n < setting!(pids_len) && setting!(pids[i]) == pid;
        tids |= n < setting!(tids_len) && setting!(tids[i]) == tid;
        cgroups |= n < setting!(cgroups_len) && setting!(cgroups[i]) == cgroup;
        comms |=
            n < setting!(comms_len) && setting!(comms[i][0]) == comm[0] && setting!(comms[i][1]) == comm[1];
        i += 1;
    }
    pids && tids && comms && cgroups && pid != setting!(own_pid)
}

/// Creates the state of a task that has none, if the filters accept it (TRACE_ALL).
#[inline(always)]
pub fn state_of_accepted(percpu: &mut PerCpuState, task: Pointer) -> Option<&'static mut TaskState> {
    if !accepts(task) {
        return None;
    }
    let state = state_or_new(task);
    if state.is_none() {
        percpu.count(TASKS_MISSED);
    }
    state
}

/// Applies the filters to a task, and sets or clears its TASK_ACTIVE flag. With TRACE_MARKED the task is
/// a marked one.
#[inline(always)]
pub fn apply(task: Pointer, state: &mut TaskState) {
    if setting!(trace_mode) != TRACE_ALL && !exists() {
        return;
    }
    state.flags = if accepts(task) {
        (state.flags | TASK_ACTIVE) & !TASK_FILTERED
    } else {
        (state.flags | TASK_FILTERED) & !TASK_ACTIVE
    };
}

/// Returns the id of the task's cgroup in the default hierarchy.
#[inline(always)]
pub fn cgroup_of(task: Pointer) -> u64 {
    // SAFETY: typed from the task on.
    unsafe {
        let set: Pointer = DirectLoad::read(task, offset!(task_cgroups));
        let group: Pointer = DirectLoad::read(set, offset!(css_set_dfl_cgrp));
        let node: Pointer = DirectLoad::read(group, offset!(cgroup_kn));
        DirectLoad::read(node, offset!(kernfs_id))
    }
}
