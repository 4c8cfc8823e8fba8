//! Task state: what is open in each task, in task storage, which the kernel frees with the task.
//!
//! *Identity.* A task's id is generated once and kept through execve, also when a thread that is
//! not the leader executes a program and takes the leader's tid: the storage belongs to the task,
//! not to its tid.
//!
//! *Traced tasks.* With TRACE_MARKED: tasks that user space marked, and their descendants (`fork`).
//! With TRACE_ALL: every task that passes the filters (`filter`).

use crate::runtime::read::Pointer;
use aya_ebpf::bindings::{
    BPF_F_NO_PREALLOC, BPF_LOCAL_STORAGE_GET_F_CREATE, bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE,
};
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_storage_get};
use blkkin_probe_abi::context::{ATTRIBUTES_MAX, ContextHead};
use blkkin_probe_abi::deferred::NO_RULES;
use blkkin_probe_abi::fault::FaultRecord;
use blkkin_probe_abi::record::{PATH_ARG_MAX, SyscallRecord};
use blkkin_probe_abi::settings::SyscallShape;
use blkkin_probe_abi::sleep::{PLACE_FUNCTIONS, SleepsRecord};
use blkkin_probe_abi::wait::WaitsRecord;

/// Bytes of a system call record's tail: two paths, each with one byte to detect truncation; then a
/// context head with its attributes, aligned to 8 (the verifier only knows that the padding is less
/// than 8 bytes).
pub const TAIL: usize = PATHS + 8 + size_of::<ContextHead>() + ATTRIBUTES_MAX.next_multiple_of(8);

/// Bytes of the tail for paths, or a second file.
pub const PATHS: usize = 2 * (PATH_ARG_MAX + 8);

/// Wait for a lock that has not ended.
#[repr(C)]
pub struct OpenWait {
    /// Address of the lock; 0: no wait is open.
    pub lock: u64,
    /// CLOCK_MONOTONIC at the begin.
    pub begin_ns: u64,
    /// `sched_info.run_delay` at the begin.
    pub run_delay: u64,
    /// `nvcsw` at the begin.
    pub sleeps: u32,
    /// `WAIT_*`.
    pub kind: u32,
    /// Process that held the lock at the begin.
    pub holder_pid: u32,
    /// Thread of that process; 0: the holder is unknown.
    pub holder_tid: u32,
    /// comm of that thread.
    pub holder_comm: [u64; 2],
}

/// Wait for the log of xfs, until the system call returns.
#[repr(C)]
pub struct LogWait {
    /// CLOCK_MONOTONIC at the begin; of an earlier system call if it is before the open one's entry.
    pub begin_ns: u64,
    /// `sched_info.run_delay` at the begin.
    pub run_delay: u64,
    /// `nvcsw` at the begin.
    pub sleeps: u32,
    /// 1: the call slept until a log record was written.
    pub waited: u32,
}

/// Sleep that has not been added to its system call.
#[repr(C)]
pub struct OpenSleep {
    /// CLOCK_MONOTONIC at the begin; 0: none.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC when a CPU ran the task again; 0: it sleeps. 1: the program did not run then.
    pub end_ns: u64,
    /// `sched_info.run_delay` at the begin.
    pub run_delay: u64,
    /// Wait for a CPU at the end, in ns; `u64::MAX`: not noted.
    pub cpu_wait: u64,
    /// Return addresses: see [`SleepPlace`](blkkin_probe_abi::sleep::SleepPlace).
    pub functions: [u64; PLACE_FUNCTIONS],
}

/// Sleeps of a task's open system call. A task has them only if sleeps are recorded.
#[repr(C)]
pub struct SleepState {
    /// The last sleep of the open system call.
    pub last: OpenSleep,
    /// Sleeps of the open system call. Valid with SYSCALL_HAS_SLEEPS.
    pub record: SleepsRecord,
}

// The kernel puts 72 bytes before the value, and gives memory in powers of two.
const _: () = assert!(size_of::<TaskState>() + 72 <= 2048);

/// State of a task. `flags` comes first: user space marks a task by writing it.
#[repr(C)]
pub struct TaskState {
    /// `TASK_*` of `probe_abi::settings`.
    pub flags: u32,
    /// Metadata version: see `TaskRecord::version`.
    pub version: u16,
    /// 1: the record of this version is in a ring.
    pub emitted: u16,
    /// Task id; 0 until first needed.
    pub task: u64,
    /// Id of the task that forked this one.
    pub parent_task: u64,
    /// comm as emitted.
    pub comm: [u64; 2],
    /// cgroup as emitted, like the user id after it.
    pub cgroup: u64,
    pub uid: u32,
    /// `nvcsw` at entry.
    pub sleeps: u32,
    /// Span open in this task: a system call's, a commit's or a page fault's; 0 for none.
    pub span: u64,
    /// The primary descriptor's `struct file` at entry.
    pub file: u64,
    /// The second descriptor's `struct file` at entry.
    pub second_file: u64,
    /// Capture rules of the open system call.
    pub shape: u32,
    /// Bios queued under `span`.
    pub bios: u32,
    /// Start of the open commit or page fault; 0 if `span` is a system call's, or 0.
    pub span_start_ns: u64,
    /// 1: the process publishes thread contexts, though this thread may have no slot yet: see
    /// `thread_context`.
    pub publishes_context: u32,
    /// 1: the context could not be read at the entry of the open system call.
    pub context_fault: u32,
    /// `sched_info.run_delay` at entry.
    pub run_delay: u64,
    /// Nonzero: the open fsync is an fdatasync.
    pub datasync: u32,
    /// Version of the TLS slots that `publishes_context` and `tls_slot` are valid for. The fields
    /// up to here are those that each system call touches: two cache lines.
    pub slots_version: u32,
    /// Address of this thread's TLS slot; 0 for none.
    pub tls_slot: u64,
    /// Thread pointer that `tls_slot` was computed from.
    pub thread_pointer: u64,
    /// Thread pointer at execve, set by the previous program.
    pub exec_thread_pointer: u64,
    /// `nvcsw` at execve.
    pub exec_sleeps: u32,
    /// 1 + the counter of `page_writes` that counts the open system call; 0 for none.
    pub open_write: u32,
    /// 1 + `enum wb_reason` of the write-back that this worker runs; 0 for none.
    pub writeback_reason: u32,
    /// Position of the iocb that the open io_submit queues bios for; 0 for none.
    pub iocb: u32,
    /// Transaction of the open commit.
    pub commit_tid: u32,
    /// Device of the open commit's file system.
    pub commit_dev: u32,
    /// Page faults that had ended when the one of `fault` began.
    pub faults_before: u64,
    /// Verdict about the open system call so far (`probe_abi::deferred`): without deferred operations, sampled.
    pub verdict: u32,
    /// 1: the open system call has an entry among the deferred operations.
    pub deferred: u32,
    /// Record of the last page fault that began outside a system call. `begin_ns` is 0 for none,
    /// and `span` until it queues a bio: see `page_fault`.
    pub fault: FaultRecord,
    /// Address of the context record, read from the slot.
    pub head_address: u64,
    /// Lock that the task waits for.
    pub wait: OpenWait,
    /// Wait for the log of xfs.
    pub log: LogWait,
    /// Waits of the open system call. Valid with SYSCALL_HAS_WAITS.
    pub waits: WaitsRecord,
    /// Context head at the entry of the open system call.
    pub head: ContextHead,
    /// Record of the open system call, filled at entry, written at return.
    pub record: SyscallRecord,
    /// Tail of the record.
    pub tail: [u8; TAIL],
}

impl TaskState {
    /// Returns whether a traced system call is open in the task.
    #[inline(always)]
    pub fn in_syscall(&self) -> bool {
        self.span != 0 && self.span_start_ns == 0
    }

    /// Returns whether the records of the open system call are deferred, if those of any are. A verdict that no rule
    /// changes needs no place in the table.
    #[inline(always)]
    pub fn is_deferred(&self) -> bool {
        self.in_syscall() && self.shape & SyscallShape::UNSAMPLED == 0 && self.verdict as u64 & NO_RULES == 0
    }

    /// Returns whether the open system call is excluded by a path filter or by head sampling.
    #[inline(always)]
    pub fn is_excluded(&self) -> bool {
        self.in_syscall() && self.shape & SyscallShape::EXCLUDED != 0
    }
}

/// Task storage map. aya-ebpf 0.2 has no such map type, so it is spelled out like its other BTF
/// maps.
#[repr(C)]
struct TaskStorage<V> {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE as usize],
    key: *const i32,
    value: *const V,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; BPF_F_NO_PREALLOC as usize],
}

// SAFETY: never read; the loader takes its types.
unsafe impl<V> Sync for TaskStorage<V> {}

impl<V> TaskStorage<V> {
    const fn new() -> Self {
        TaskStorage {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
        }
    }

    #[inline(always)]
    fn get(&'static self, task: Pointer, flags: u64) -> Option<&'static mut V> {
        // SAFETY: `task` is typed for the verifier; the value belongs to one task, which is current, not yet woken,
        // or on its way to or from this CPU.
        unsafe {
            let map = (&raw const *self).cast_mut().cast();
            bpf_task_storage_get(map, task.cast_mut().cast(), core::ptr::null_mut(), flags)
                .cast::<V>()
                .as_mut()
        }
    }
}

#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "TASKS")]
static TASKS: TaskStorage<TaskState> = TaskStorage::new();

#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "SLEEPS")]
static SLEEPS: TaskStorage<SleepState> = TaskStorage::new();

/// Returns the current task.
#[inline(always)]
pub fn current() -> Pointer {
    // SAFETY: no preconditions.
    unsafe { bpf_get_current_task_btf().cast_const().cast() }
}

/// Returns the state of `task`, if it has one.
#[inline(always)]
pub fn state(task: Pointer) -> Option<&'static mut TaskState> {
    TASKS.get(task, 0)
}

/// Returns the state of `task`, created if needed.
#[inline(always)]
pub fn state_or_new(task: Pointer) -> Option<&'static mut TaskState> {
    TASKS.get(task, BPF_LOCAL_STORAGE_GET_F_CREATE as u64)
}

/// Returns the sleeps of `task`, if it has any.
#[inline(always)]
pub fn sleeps(task: Pointer) -> Option<&'static mut SleepState> {
    SLEEPS.get(task, 0)
}

/// Makes room for the sleeps of `task`. The scheduler's hook cannot: the kernel may not allocate there.
#[inline(always)]
pub fn prepare_sleeps(task: Pointer) {
    SLEEPS.get(task, BPF_LOCAL_STORAGE_GET_F_CREATE as u64);
}
