//! What a person calls a task: comm, user, cgroup, program. Compared at each call by plain loads (some 10 ns), and said
//! again, as a new version, when one of them differs: so a record's (task, version) says who it was at that moment.

use crate::access::{Access, Direct, Pointer};
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::task::TaskState;
use crate::{file, filter, ring};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::layout::ABSENT;
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
        let [pid_ns, inner_pid, inner_tid] = inner(local, task);
        // In the slot and not on the stack, of which some programs have none to spare; field by field, or a copy of it would lie there.
        let record = &raw mut local.task;
        macro_rules! put {
            ($($field:ident: $value:expr,)*) => { $((&raw mut (*record).$field).write($value);)* };
        }
        put! {
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
            exe: exe,
            tid: Direct::read(task, offset!(task_pid)),
            pid: Direct::read(task, offset!(task_tgid)),
            ppid: Direct::read(parent, offset!(task_tgid)),
            uid: state.uid,
            comm: core::mem::transmute::<[u64; 2], [u8; 16]>(state.comm),
            version: state.version,
            reserved: 0,
            pid_ns: pid_ns,
            inner_pid: inner_pid,
            inner_tid: inner_tid,
        }
        state.announced = ring::put(local, TAG_TASK, &*record) as u16;
    }
}

/// `struct upid` (include/linux/pid.h): an int and a pointer.
const UPID: u64 = 16;

/// The task's own pid namespace, and its process and thread id there; zeroes in the initial one, and of a task that has none any more.
///
/// A pid has a number in each namespace from the initial one (level 0) down to its own, which is the last. The array of them has no
/// length that the verifier knows, so what lies in it is read by helper.
#[inline(always)]
fn inner(local: &mut Local, task: Pointer) -> [u32; 3] {
    if offset!(task_thread_pid) == ABSENT || offset!(pid_ns_inum) == ABSENT {
        return [0; 3];
    }
    // SAFETY: typed up to the pid; from its numbers on by helper, which takes any address.
    unsafe {
        let pid: Pointer = Direct::read(task, offset!(task_thread_pid));
        if pid.is_null() {
            return [0; 3];
        }
        let level: u32 = Direct::read(pid, offset!(pid_level));
        if level == 0 {
            return [0; 3];
        }
        let last = u64::from(offset!(pid_numbers)) + u64::from(level) * UPID;
        let own = (local.address(pid) + last) as Pointer;
        let namespace = local.read(own, offset!(upid_ns)) as Pointer;
        let leader: Pointer = Direct::read(task, offset!(task_group_leader));
        let process: Pointer = Direct::read(leader, offset!(task_thread_pid));
        // A process is in one namespace, its threads with it.
        let process = (local.address(process) + last) as Pointer;
        [
            local.read(namespace, offset!(pid_ns_inum)) as u32,
            local.read(process, offset!(upid_nr)) as u32,
            local.read(own, offset!(upid_nr)) as u32,
        ]
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
