//! Which tasks are followed, and what is open in each: state in task storage, which lives and dies with the task.
//!
//! *Identity.* A task's id is minted once and kept through execve, also when a thread that is not the leader
//! execs and takes the leader's tid: storage hangs on the task, not on its numbers. describe.rs says what a person
//! calls it.
//!
//! *Who is followed.* With FOLLOW_MARKED: tasks that user space marked, and what they fork (lineage.rs). With
//! FOLLOW_ALL: every task that passes the filters (filter.rs).

use crate::access::Pointer;
use crate::describe::refresh;
use crate::lineage::state_or_adopted;
use crate::local::Local;
use crate::settings::setting;
use aya_ebpf::bindings::{
    BPF_F_NO_PREALLOC, BPF_LOCAL_STORAGE_GET_F_CREATE, bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE,
};
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_storage_get};
use blkkin_probe_abi::context::{ATTRIBUTES_MAX, Head};
use blkkin_probe_abi::counters::TASKS_MISSED;
use blkkin_probe_abi::record::{CallRecord, PATH_ARG_MAX};
use blkkin_probe_abi::settings::{FOLLOW_ALL, Program, TASK_ACTIVE};

/// Room for what follows a call's fixed part: two paths, each with one byte to see that it is cut; and a context, at a multiple
/// of 8 behind them (of which the verifier knows no more than that it is less than 8 bytes farther), with its attributes.
pub const TAIL: usize = PATHS + 8 + size_of::<Head>() + ATTRIBUTES_MAX.next_multiple_of(8);

/// Of that, the paths, or a second file.
pub const PATHS: usize = 2 * (PATH_ARG_MAX + 8);

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
    /// Who forked it.
    pub parent_task: u64,
    /// As announced.
    pub comm: [u64; 2],
    /// As announced, like the next.
    pub cgroup: u64,
    pub uid: u32,
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
    /// 1: the process says which span its threads work for, though this one may have no slot yet: see `context.rs`.
    pub publishes: u32,
    /// 1: what the slot says could not be read at the open call's entry.
    pub context_fault: u32,
    /// `sched_info.run_delay` at entry.
    pub run_delay: u64,
    /// The open fsync asks for data only.
    pub datasync: u32,
    /// As of which version of the places `publishes` and `slot` are. What is above is what each call touches: two cache lines.
    pub places_seen: u32,
    /// Where this thread says which span it works for; 0 where it does not.
    pub slot: u64,
    /// The thread pointer for which `slot` was found.
    pub thread: u64,
    /// The thread pointer at execve, the program's before it.
    pub left_thread: u64,
    /// `nvcsw` at execve.
    pub left_sleeps: u32,
    /// Zero.
    pub reserved: u32,
    /// Which transaction a commit commits.
    pub commit_tid: u32,
    /// Of which file system.
    pub commit_dev: u32,
    /// What is in the slot.
    pub head_at: u64,
    /// What that points at, at the open call's entry.
    pub head: Head,
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

/// The state of `task`, made if need be.
#[inline(always)]
pub fn state_or_new(task: Pointer) -> Option<&'static mut TaskState> {
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
    let Some(state) = state_or_new(task) else {
        local.count(TASKS_MISSED);
        return None;
    };
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
