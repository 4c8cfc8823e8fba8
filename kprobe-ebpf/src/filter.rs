//! The filters. A list that is not set is a frozen 0, and its test dead code to the verifier.

use crate::access::{Access, Direct, Pointer};
use crate::layout::offset;
use crate::settings::setting;
use crate::task::TaskState;
use blkkin_probe_abi::settings::{FILTERS_MAX, TASK_ACTIVE, TASK_UNWANTED};

/// Decides by the filters whether this task's calls are wanted (FOLLOW_ALL).
#[inline(always)]
pub fn judge(task: Pointer, state: &mut TaskState) {
    // SAFETY: `task` is typed.
    let (tid, pid): (u32, u32) =
        unsafe { (Direct::read(task, offset!(task_pid)), Direct::read(task, offset!(task_tgid))) };
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
        (state.flags | TASK_ACTIVE) & !TASK_UNWANTED
    } else {
        (state.flags | TASK_UNWANTED) & !TASK_ACTIVE
    };
}

/// Whether a device passes the device filter.
#[inline(always)]
pub fn device_wanted(dev: u32, disk: u32) -> bool {
    let len = setting!(devices_len);
    if len == 0 {
        return true;
    }
    let mut i = 0;
    while i < FILTERS_MAX {
        if (i as u32) < len {
            let wanted = setting!(devices[i]);
            if wanted == dev || wanted == disk {
                return true;
            }
        }
        i += 1;
    }
    false
}
