//! Task metadata: comm, user, cgroup and executable. Each system call compares them by plain loads
//! (some 10 ns) and emits a new version if one differs. So a record's (task, version) identifies
//! the metadata at that moment.

use super::filter::{self, cgroup_of};
use super::storage::TaskState;
use crate::file::view::FileView;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::ring;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{Program, TASK_FILTERED, TASK_RECORDED};

/// Compares the task's metadata with the emitted version, and emits a new one if it differs.
#[inline(always)]
pub fn update(percpu: &mut PerCpuState, program: Program, task: Pointer, state: &mut TaskState) {
    // SAFETY: `task` is typed.
    let (comm, uid) = unsafe {
        let comm: [u64; 2] =
            [DirectLoad::read(task, offset!(task_comm)), DirectLoad::read(task, offset!(task_comm) + 8)];
        let cred: Pointer = DirectLoad::read(task, offset!(task_cred));
        (comm, DirectLoad::read::<u32>(cred, offset!(cred_uid)))
    };
    let cgroup = cgroup_of(task);
    let same =
        comm[0] == state.comm[0] && comm[1] == state.comm[1] && uid == state.uid && cgroup == state.cgroup;
    if same && state.emitted != 0 {
        return;
    }
    let mut reason = TASK_CHANGED;
    if state.task == 0 {
        state.task = percpu.next_span_id(program);
        reason = TASK_SEEN;
    }
    if !same || reason == TASK_SEEN {
        state.comm = comm;
        state.uid = uid;
        state.cgroup = cgroup;
        state.version = state.version.wrapping_add(1);
        filter::apply(task, state);
    }
    if state.flags & TASK_FILTERED != 0 {
        // The filters exclude the task, so nothing is emitted; the filters run again only when the
        // metadata changes.
        state.emitted = 1;
        return;
    }
    emit(percpu, task, state, reason);
}

/// Task flag of a kernel thread (include/linux/sched.h).
pub const PF_KTHREAD: u32 = 0x0020_0000;
/// Task flag of an io_uring worker (include/linux/sched.h).
pub const PF_IO_WORKER: u32 = 0x0000_0010;
/// Task flag of a kernel thread in a user process, including vhost's (6.4, 54e6842d0775; absent
/// before).
pub const PF_USER_WORKER: u32 = 0x0000_4000;

/// Writes the task's record. It is rare, so it loads no pointer through a typed one: for each such
/// load the verifier of Linux 6.3 and later searches all types of the kernel four times
/// (btf_nested_type_is_trusted, 0.9 ms).
#[inline(always)]
pub fn emit(percpu: &mut PerCpuState, task: Pointer, state: &mut TaskState, reason: u16) {
    // SAFETY: `task` is typed.
    unsafe {
        let parent = percpu.read(task, offset!(task_real_parent)) as Pointer;
        let mm = percpu.read(task, offset!(task_mm)) as Pointer;
        let mut exe = FileId::default();
        let task_flags: u32 = DirectLoad::read(task, offset!(task_flags));
        let kind = if task_flags & PF_KTHREAD != 0 { TASK_KERNEL_THREAD } else { 0 };
        // An exiting task has no memory any more.
        if !mm.is_null() {
            let file = percpu.read(mm, offset!(mm_exe_file)) as Pointer;
            if !file.is_null() {
                exe = FileView::untyped(percpu, file).named(percpu, 0);
            }
        }
        let [pid_ns, inner_pid, inner_tid] = pid_namespace_ids(percpu, task);
        // The record is built in the slot, because some programs have no stack to spare, and field
        // by field, because a copy would be on the stack.
        let record = &raw mut percpu.task;
        macro_rules! put {
            ($($field:ident: $value:expr,)*) => { $((&raw mut (*record).$field).write($value);)* };
        }
        put! {
            header: Header {
                tag: TAG_TASK,
                sampling: 0,
                flags: reason | kind,
                len: size_of::<TaskRecord>() as u32,
                time_ns: bpf_ktime_get_ns(),
            },
            task: state.task,
            parent_task: state.parent_task,
            cgroup: state.cgroup,
            exe: exe,
            tid: DirectLoad::read(task, offset!(task_pid)),
            pid: DirectLoad::read(task, offset!(task_tgid)),
            ppid: percpu.read(parent, offset!(task_tgid)) as u32,
            uid: state.uid,
            comm: core::mem::transmute::<[u64; 2], [u8; 16]>(state.comm),
            version: state.version,
            reserved: 0,
            pid_ns: pid_ns,
            inner_pid: inner_pid,
            inner_tid: inner_tid,
        }
        state.flags |= TASK_RECORDED;
        state.emitted = ring::put(percpu, TAG_TASK, &*record) as u16;
    }
}

/// `struct upid` (include/linux/pid.h): an int and a pointer.
const UPID: u64 = 16;

/// Returns the inode of the task's own pid namespace, and its process and thread id there; zeros in
/// the initial namespace, and for a task that has lost its pid.
///
/// A pid has a number in each namespace from the initial one (level 0) down to its own, which is
/// the last.
#[inline(always)]
fn pid_namespace_ids(percpu: &mut PerCpuState, task: Pointer) -> [u32; 3] {
    if offset!(task_thread_pid) == ABSENT || offset!(pid_ns_inum) == ABSENT {
        return [0; 3];
    }
    let pid = percpu.read(task, offset!(task_thread_pid));
    if pid == 0 {
        return [0; 3];
    }
    let level = percpu.read(pid as Pointer, offset!(pid_level)) as u32;
    if level == 0 {
        return [0; 3];
    }
    let last = u64::from(offset!(pid_numbers)) + u64::from(level) * UPID;
    let own = (pid + last) as Pointer;
    let namespace = percpu.read(own, offset!(upid_ns)) as Pointer;
    let leader = percpu.read(task, offset!(task_group_leader)) as Pointer;
    // A process and its threads are in one namespace.
    let process = (percpu.read(leader, offset!(task_thread_pid)) + last) as Pointer;
    [
        percpu.read(namespace, offset!(pid_ns_inum)) as u32,
        percpu.read(process, offset!(upid_nr)) as u32,
        percpu.read(own, offset!(upid_nr)) as u32,
    ]
}
