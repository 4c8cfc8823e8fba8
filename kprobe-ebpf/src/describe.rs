//! What a person calls a task: comm, user, cgroup, program. Compared at each call by plain loads (some 10 ns), and said
//! again, as a new version, when one of them differs: so a record's (task, version) says who it was at that moment.

use crate::access::{Access, Direct, Pointer};
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::task::TaskState;
use crate::{file, filter, ring};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{FOLLOW_ALL, Program, TASK_UNWANTED};

/// Compares what a person calls the task with what was announced, and announces it if it differs.
#[inline(always)]
pub fn refresh(local: &mut Local, program: Program, task: Pointer, state: &mut TaskState) {
    // SAFETY: `task` is typed.
    let (comm, uid) = unsafe {
        let comm: [u64; 2] =
            [Direct::read(task, offset!(task_comm)), Direct::read(task, offset!(task_comm) + 8)];
        let cred: Pointer = Direct::read(task, offset!(task_cred));
        (comm, Direct::read::<u32>(cred, offset!(cred_uid)))
    };
    let cgroup = cgroup_of(task);
    let same =
        comm[0] == state.comm[0] && comm[1] == state.comm[1] && uid == state.uid && cgroup == state.cgroup;
    if same && state.announced != 0 {
        return;
    }
    let mut why = TASK_CHANGED;
    if state.task == 0 {
        state.task = local.mint(program);
        why = TASK_SEEN;
    }
    if !same || why == TASK_SEEN {
        state.comm = comm;
        state.uid = uid;
        state.cgroup = cgroup;
        state.version = state.version.wrapping_add(1);
        if setting!(follow) == FOLLOW_ALL {
            filter::judge(task, state);
        }
    }
    if state.flags & TASK_UNWANTED != 0 {
        // Not asked for, so not announced; looked at again only when a name changes.
        state.announced = 1;
        return;
    }
    announce(local, task, state, why);
}

/// A thread of the kernel (include/linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;

/// Writes the task's record.
#[inline(always)]
pub fn announce(local: &mut Local, task: Pointer, state: &mut TaskState, why: u16) {
    // SAFETY: `task` is typed.
    unsafe {
        let parent: Pointer = Direct::read(task, offset!(task_real_parent));
        let mm: Pointer = Direct::read(task, offset!(task_mm));
        let mut exe = FileId::default();
        let task_flags: u32 = Direct::read(task, offset!(task_flags));
        let kind = if task_flags & PF_KTHREAD != 0 { TASK_KERNEL_THREAD } else { 0 };
        // A task that ends has no memory any more.
        if !mm.is_null() {
            let file: Pointer = Direct::read(mm, offset!(mm_exe_file));
            if !file.is_null() {
                exe = file::identity::<Direct>(file);
                let address = local.address(file);
                file::name(local, address, &exe, false, 0);
            }
        }
        let record = TaskRecord {
            header: Header {
                tag: TAG_TASK,
                reserved: 0,
                flags: why | kind,
                len: size_of::<TaskRecord>() as u32,
                time_ns: bpf_ktime_get_ns(),
            },
            task: state.task,
            parent_task: state.parent_task,
            cgroup: state.cgroup,
            exe,
            tid: Direct::read(task, offset!(task_pid)),
            pid: Direct::read(task, offset!(task_tgid)),
            ppid: Direct::read(parent, offset!(task_tgid)),
            uid: state.uid,
            comm: core::mem::transmute::<[u64; 2], [u8; 16]>(state.comm),
            version: state.version,
            reserved: [0; 3],
        };
        state.announced = ring::put(local, TAG_TASK, &record) as u16;
    }
}

/// Id of the task's cgroup in the default hierarchy.
#[inline(always)]
pub fn cgroup_of(task: Pointer) -> u64 {
    // SAFETY: typed from the task on.
    unsafe {
        let set: Pointer = Direct::read(task, offset!(task_cgroups));
        let group: Pointer = Direct::read(set, offset!(css_set_dfl_cgrp));
        let node: Pointer = Direct::read(group, offset!(cgroup_kn));
        Direct::read(node, offset!(kernfs_id))
    }
}
