//! Task filters. A list that is not set is a frozen 0, and its test is dead code to the verifier.

use super::storage::TaskState;
use crate::runtime::layout::offset;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::setting;
use blkkin_probe_abi::settings::{FILTERS_MAX, TASK_ACTIVE, TASK_FILTERED};

/// Applies the filters to a task, and sets or clears its TASK_ACTIVE flag (TRACE_ALL).
#[inline(always)]
pub fn apply(task: Pointer, state: &mut TaskState) {
    // SAFETY: `task` is typed.
    let (tid, pid): (u32, u32) =
        unsafe { (DirectLoad::read(task, offset!(task_pid)), DirectLoad::read(task, offset!(task_tgid))) };
    let mut pids = setting!(pids_len) == 0;
    let mut tids = setting!(tids_len) == 0;
    let mut comms = setting!(comms_len) == 0;
    let mut cgroups = setting!(cgroups_len) == 0;
    let mut i = 0;
    while i < FILTERS_MAX {
        let n = i as u32;
        pids |= n < setting!(pids_len) && setting!(pids[i]) == pid;
        tids |= n < setting!(tids_len) && setting!(tids[i]) == tid;
        cgroups |= n < setting!(cgroups_len) && setting!(cgroups[i]) == state.cgroup;
        comms |= n < setting!(comms_len)
            && setting!(comms[i][0]) == state.comm[0]
            && setting!(comms[i][1]) == state.comm[1];
        i += 1;
    }
    let wanted = pids && tids && comms && cgroups && pid != setting!(own_pid);
    state.flags = if wanted {
        (state.flags | TASK_ACTIVE) & !TASK_FILTERED
    } else {
        (state.flags | TASK_FILTERED) & !TASK_ACTIVE
    };
}
