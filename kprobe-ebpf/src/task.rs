//! Which tasks are followed, and what is open in each: state in task storage, which lives and dies with the task.
//!
//! *Identity.* A task's id is minted once and kept through execve, also when a thread that is not the leader
//! execs and takes the leader's tid: storage hangs on the task, not on its numbers. What a person calls it (comm,
//! user, cgroup) may change at any time; each call compares three words and, when one differs, a new version is
//! announced before the call's record, so that a record's (task, version) says who it was *at that moment*.
//!
//! *Who is followed.* With FOLLOW_MARKED: tasks that user space marked, and what they fork: the child's state is
//! made in sched_process_fork, before the child is woken. With FOLLOW_ALL: every task that passes the filters.

use crate::access::{Access, Direct, Pointer, Probe};
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::{file, ring};
use aya_ebpf::bindings::{
    BPF_F_NO_PREALLOC, BPF_LOCAL_STORAGE_GET_F_CREATE, bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE,
};
use aya_ebpf::btf_maps::LruHashMap;
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_task_storage_get};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{TASKS_EXITED, TASKS_MISSED};
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{
    FILTERS_MAX, FOLLOW_ALL, Program, TASK_ACTIVE, TASK_ARMED, TASK_SPAWNER, TASK_UNWANTED,
};

/// Room for what follows a call's fixed part: two paths, each with one byte to see that it is cut.
pub const TAIL: usize = 2 * (PATH_ARG_MAX + 8);

/// A task's state. `flags` comes first: user space marks a task by writing it.
#[repr(C)]
pub struct TaskState {
    /// `TASK_*` of `probe_abi::settings`.
    pub flags: u32,
    /// See `TaskRecord::version`.
    pub version: u16,
    /// 1: this version's record is in a ring.
    pub announced: u16,
    /// Minted; 0 until first needed.
    pub task: u64,
    parent_task: u64,
    comm: [u64; 2],
    cgroup: u64,
    uid: u32,
    /// `nvcsw` at entry.
    pub sleeps: u32,
    /// The span open in this task: a call's or a commit's; 0 for none.
    pub span: u64,
    /// The primary descriptor's `struct file` at entry.
    pub file: u64,
    /// The second's.
    pub second_file: u64,
    /// The open call's shape.
    pub shape: u32,
    /// Bios queued under `span`.
    pub bios: u32,
    /// When a commit began.
    pub commit_start_ns: u64,
    /// Which transaction it commits.
    pub commit_tid: u32,
    /// Of which file system.
    pub commit_dev: u32,
    /// The open fsync asks for data only.
    pub datasync: u32,
    /// Zero.
    pub reserved: u32,
    /// The open call's record, filled at entry, written at return.
    pub record: CallRecord,
    /// What follows it.
    pub tail: [u8; TAIL],
}

/// The map of task storage; not in aya-ebpf 0.2, so spelled out as its other BTF maps are.
#[repr(C)]
struct TaskStorage {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE as usize],
    key: *const i32,
    value: *const TaskState,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; BPF_F_NO_PREALLOC as usize],
}

// SAFETY: never read; the loader takes its types.
unsafe impl Sync for TaskStorage {}

#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "TASKS")]
static TASKS: TaskStorage = TaskStorage {
    r#type: core::ptr::null(),
    key: core::ptr::null(),
    value: core::ptr::null(),
    max_entries: core::ptr::null(),
    map_flags: core::ptr::null(),
};

/// The current task.
#[inline(always)]
pub fn current() -> Pointer {
    // SAFETY: no preconditions.
    unsafe { bpf_get_current_task_btf().cast_const().cast() }
}

/// The state of `task`, if it has one.
#[inline(always)]
pub fn state(task: Pointer) -> Option<&'static mut TaskState> {
    get(task, 0)
}

/// The state of the current task; a child that the fork hook could only note by number gets its state here.
#[inline(always)]
fn state_or_adopted(local: &mut Local, program: Program, task: Pointer) -> Option<&'static mut TaskState> {
    if let Some(state) = state(task) {
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

/// The state of `task`, made if need be.
#[inline(always)]
fn state_or_new(task: Pointer) -> Option<&'static mut TaskState> {
    get(task, BPF_LOCAL_STORAGE_GET_F_CREATE as u64)
}

#[inline(always)]
fn get(task: Pointer, flags: u64) -> Option<&'static mut TaskState> {
    // SAFETY: `task` is typed for the verifier; the state belongs to one task, which is current or not yet woken.
    unsafe {
        let map = (&raw const TASKS).cast_mut().cast();
        bpf_task_storage_get(map, task.cast_mut().cast(), core::ptr::null_mut(), flags)
            .cast::<TaskState>()
            .as_mut()
    }
}

/// The state of the current task if its calls are to be recorded, described up to date.
#[inline(always)]
pub fn followed(local: &mut Local, program: Program) -> Option<&'static mut TaskState> {
    let task = current();
    let state = if setting!(follow) == FOLLOW_ALL {
        match state_or_new(task) {
            Some(state) => state,
            None => {
                local.count(TASKS_MISSED);
                return None;
            }
        }
    } else {
        state_or_adopted(local, program, task)?
    };
    if setting!(follow) != FOLLOW_ALL && state.flags & TASK_ACTIVE == 0 {
        return None;
    }
    refresh(local, program, task, state);
    if state.flags & TASK_ACTIVE == 0 { None } else { Some(state) }
}

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
            judge(task, state);
        }
    }
    if state.flags & TASK_UNWANTED != 0 {
        // Not asked for, so not announced; looked at again only when a name changes.
        state.announced = 1;
        return;
    }
    announce(local, task, state, why);
}

/// Writes the task's record.
#[inline(always)]
pub fn announce(local: &mut Local, task: Pointer, state: &mut TaskState, why: u16) {
    // SAFETY: `task` is typed; the record lies on the stack.
    unsafe {
        let parent: Pointer = Direct::read(task, offset!(task_real_parent));
        let mm: Pointer = Direct::read(task, offset!(task_mm));
        let mut exe = FileId::default();
        let mut kind = TASK_KERNEL_THREAD;
        if !mm.is_null() {
            kind = 0;
            let file: Pointer = Direct::read(mm, offset!(mm_exe_file));
            if !file.is_null() {
                exe = file::identity::<Direct>(file);
                file::name(local, local_address(local, file), &exe, false);
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
        let written =
            ring::write(local, TAG_TASK, (&raw const record).cast(), size_of::<TaskRecord>() as u64);
        state.announced = written as u16;
    }
}

#[inline(always)]
fn local_address(local: &Local, pointer: Pointer) -> u64 {
    // A second borrow of the slot for a field that nothing else holds.
    let slot = (&raw const *local).cast_mut();
    // SAFETY: the slot is this program's alone.
    unsafe { (*slot).address(pointer) }
}

/// Id of the task's cgroup in the default hierarchy.
#[inline(always)]
fn cgroup_of(task: Pointer) -> u64 {
    // SAFETY: typed from the task on.
    unsafe {
        let set: Pointer = Direct::read(task, offset!(task_cgroups));
        let group: Pointer = Direct::read(set, offset!(css_set_dfl_cgrp));
        let node: Pointer = Direct::read(group, offset!(cgroup_kn));
        Direct::read(node, offset!(kernfs_id))
    }
}

/// Decides by the filters whether this task's calls are wanted (FOLLOW_ALL).
#[inline(always)]
fn judge(task: Pointer, state: &mut TaskState) {
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

/// The state of a task that queues block I/O for itself or for the kernel, described up to date; made only where
/// everything is followed.
#[inline(always)]
pub fn submitter(local: &mut Local, program: Program) -> Option<&'static mut TaskState> {
    let task = current();
    if setting!(follow) != FOLLOW_ALL {
        let state = state_or_adopted(local, program, task)?;
        if state.flags & TASK_ACTIVE != 0 && state.announced == 0 {
            refresh(local, program, task, state);
        }
        return Some(state);
    }
    let state = state_or_new(task)?;
    refresh(local, program, task, state);
    Some(state)
}

/// The state of a thread of the kernel that works for others (a journal's), made and described.
#[inline(always)]
pub fn worker(local: &mut Local, program: Program) -> Option<&'static mut TaskState> {
    let task = current();
    let Some(state) = state_or_new(task) else {
        local.count(TASKS_MISSED);
        return None;
    };
    refresh(local, program, task, state);
    Some(state)
}

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
    let parent = state(current())?;
    // Marked from outside, and not yet seen in a call: it needs an id before it can be a parent.
    if parent.flags & TASK_ACTIVE != 0 && parent.task == 0 {
        refresh(local, Program::TaskFork, current(), parent);
    }
    if parent.flags & (TASK_ACTIVE | TASK_ARMED | TASK_SPAWNER) == 0 || setting!(follow) == FOLLOW_ALL {
        return None;
    }
    let flags = if parent.flags & TASK_ACTIVE != 0 { TASK_ACTIVE } else { TASK_ARMED };
    Some(Inherited { flags, reserved: 0, parent_task: parent.task })
}

/// sched_process_fork, in the parent, before the child is woken. `child` is typed.
#[inline(always)]
pub fn fork(local: &mut Local, child: Pointer) {
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
    let Some(inherited) = inheritance(local) else { return };
    // SAFETY: reads by helper take any address.
    let tid: u32 = unsafe { Probe::read(child, offset!(task_pid)) };
    if NOTED.insert(&tid, &inherited, 0).is_err() {
        local.count(TASKS_MISSED);
    }
}

#[inline(always)]
fn adopt(local: &mut Local, program: Program, child: Pointer, state: &mut TaskState, inherited: &Inherited) {
    state.flags = inherited.flags;
    state.task = local.mint(program);
    state.parent_task = inherited.parent_task;
    state.version = 1;
    // SAFETY: `child` is typed.
    unsafe {
        state.comm = [Direct::read(child, offset!(task_comm)), Direct::read(child, offset!(task_comm) + 8)];
        let cred: Pointer = Direct::read(child, offset!(task_cred));
        state.uid = Direct::read(cred, offset!(cred_uid));
    }
    state.cgroup = cgroup_of(child);
    if state.flags & TASK_ACTIVE != 0 {
        announce(local, child, state, TASK_FORKED);
    }
}

/// sched_process_exec, in the task that has just become another program.
#[inline(always)]
pub fn exec(local: &mut Local) {
    let task = current();
    let Some(state) = state_or_adopted(local, Program::TaskExec, task) else { return };
    if state.flags & TASK_ARMED != 0 {
        state.flags = TASK_ACTIVE;
    }
    if state.flags & TASK_ACTIVE == 0 {
        return;
    }
    // SAFETY: `task` is typed.
    state.comm =
        unsafe { [Direct::read(task, offset!(task_comm)), Direct::read(task, offset!(task_comm) + 8)] };
    state.version = state.version.wrapping_add(1);
    announce(local, task, state, TASK_EXECED);
}

/// sched_process_exit, in the task that ends. A call that is open then has no exit: it is written as such.
#[inline(always)]
pub fn exit(local: &mut Local) {
    let task = current();
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
