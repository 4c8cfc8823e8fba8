//! Settings that the loader freezes into the programs before the kernel verifies them.
//!
//! The verifier treats values of a frozen read-only map as constants and removes the branch of a
//! filter that is not set. Such a filter costs nothing.

use crate::plain;

/// Maximum entries of one kind of filter.
pub const FILTERS_MAX: usize = 8;

/// Bios outside a traced system call: record those of traced tasks (page faults).
pub const ORIGIN_TASKS: u32 = 0;
/// Bios outside a traced system call: record all (write-back, metadata, tasks that are not traced),
/// and requests without a bio.
pub const ORIGIN_ALL: u32 = 1;
/// Bios outside a traced system call: record none. Only selected system calls are traced, and bios
/// queued in other system calls cannot be distinguished from page faults.
pub const ORIGIN_SYSCALLS: u32 = 2;
/// Bios outside a traced system call: as ORIGIN_TASKS, if they carry pages of a file, which a path
/// filter may select. With head sampling too: other bios of a worker may be below an operation that is
/// dropped.
pub const ORIGIN_PAGES: u32 = 3;

/// Value of `block_only`: drop all system calls that queued no bio (detail 0).
pub const BLOCK_ONLY_ALL: u32 = 2;

/// Trace only marked tasks and their descendants that pass the filters (`blkkin run`, `--tree`).
pub const TRACE_MARKED: u32 = 0;
/// Trace every task of the node that passes the filters.
pub const TRACE_ALL: u32 = 1;

/// Task flag: the task's system calls are recorded. With TRACE_MARKED a marked task has this
/// flag or TASK_FILTERED, and its children are marked.
pub const TASK_ACTIVE: u32 = 1 << 0;
/// Task flag: becomes active at the next exec.
pub const TASK_PENDING_EXEC: u32 = 1 << 1;
/// Task flag: the task is not recorded; its children get TASK_PENDING_EXEC.
pub const TASK_FOLLOW_ON_FORK: u32 = 1 << 2;
/// Task flag: excluded by the filters.
pub const TASK_FILTERED: u32 = 1 << 3;
/// Task flag: a record of the task was due, so one of its exit is due as well.
pub const TASK_RECORDED: u32 = 1 << 4;

/// Settings of one tracer run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeSettings {
    /// Random seed that makes the span ids of this run distinct.
    pub seed: u64,
    /// Threshold: system calls faster than this and without block I/O are dropped; 0: none.
    pub slower_than_ns: u64,
    /// Address of `bio_chain_endio`, which ends the front of a split bio; 0: unknown.
    pub bio_chain_endio: u64,
    /// Address of `btrfs_dio_end_io`, which ends direct I/O of btrfs; 0: unknown.
    pub btrfs_direct_end_io: u64,
    /// Begin of the scheduler's functions (`__sched_text_start`); 0: sleeps are not recorded.
    pub scheduler_begin: u64,
    /// End of the scheduler's functions (`__sched_text_end`); 0: sleeps are not recorded.
    pub scheduler_end: u64,
    /// `TRACE_*`.
    pub trace_mode: u32,
    /// 1: drop system calls that succeeded and caused no block I/O.
    pub errors_only: u32,
    /// 1: drop system calls that queued no bio, unless they may have made pages dirty that will be
    /// written to a filtered device. BLOCK_ONLY_ALL: drop these too.
    pub block_only: u32,
    /// 1: capture path arguments.
    pub path_args: u32,
    /// 1: emit the paths of opened files.
    pub file_paths: u32,
    /// Bios recorded outside a traced system call: `ORIGIN_*`.
    pub kernel_origin: u32,
    /// 1: the fork hook knows children by tid only (raw_tp), so they inherit at their first event.
    pub inherit_by_tid: u32,
    /// 1: this kernel has no block_io_start. Requests start at their first event, and block_getrq
    /// identifies the bio that they were allocated for.
    pub legacy_request_start: u32,
    /// Number of `pids` that are set.
    pub pids_len: u32,
    /// Number of `tids` that are set.
    pub tids_len: u32,
    /// Number of `comms` that are set.
    pub comms_len: u32,
    /// Number of `cgroups` that are set.
    pub cgroups_len: u32,
    /// Number of `devices` that are set.
    pub devices_len: u32,
    /// Process id of the tracer, which TRACE_ALL excludes. Otherwise each batch that it writes
    /// would be an event in the next batch.
    pub own_pid: u32,
    /// 1: a pointer step leads from a bio to another bio: stacked devices may exist.
    pub stacked: u32,
    /// `CONTEXTS_*`; 0: thread contexts are not read.
    pub contexts: u32,
    /// 1: asynchronous I/O is traced.
    pub async_io: u32,
    /// ns of one tick of the kernel's timer (TICK_NSEC).
    pub tick_ns: u32,
    /// 1: head sampling, by the ratio in its map: see [`head_sampling`](crate::head_sampling).
    pub head_sampling: u32,
    /// 1: the programs that run most measure themselves.
    pub timed: u32,
    /// 1: operations are deferred until they end: see [`deferred`](crate::deferred).
    pub defers: u32,
    /// Sets of keys of totals that are by disk and operation alone, a power of two; 0: totals have a submitter, and
    /// [`KEY_SETS`](crate::totals::KEY_SETS).
    pub disk_total_sets: u32,
    /// Operations of io_uring that are traced: bit n is operation n (`IORING_OP_*`).
    pub async_operations: u64,
    /// Process ids, any of which matches.
    pub pids: [u32; FILTERS_MAX],
    /// Thread ids.
    pub tids: [u32; FILTERS_MAX],
    /// Devices (disk or partition) in the kernel's encoding.
    pub devices: [u32; FILTERS_MAX],
    /// Cgroup ids.
    pub cgroups: [u64; FILTERS_MAX],
    /// Thread names, NUL padded, as two words each.
    pub comms: [[u64; 2]; FILTERS_MAX],
    /// Pointer paths from a bio to the upper I/O that it belongs to; empty for drivers that this
    /// kernel does not have.
    pub pointer_steps: [PointerStep; POINTER_STEPS_MAX],
    /// Completion functions of bios that carry pages of a page cache; zeros for those that this
    /// kernel does not have.
    pub page_completions: [PageCompletion; PAGE_COMPLETIONS_MAX],
}

/// Read thread contexts.
pub const CONTEXTS_READ: u32 = 1;
/// Keep system calls of traces that their program samples, regardless of `slower_than_ns` and
/// `errors_only`.
pub const CONTEXTS_KEEP_SAMPLED: u32 = 1 << 1;

/// Maximum number of pointer steps.
pub const POINTER_STEPS_MAX: usize = 11;

/// The step leads to a kiocb.
pub const STEP_TO_KIOCB: u32 = 1;
/// The step leads to a bio.
pub const STEP_TO_BIO: u32 = 2;

/// Pointer step from a bio to its upper I/O: the pointers that the driver stored for its own
/// completion handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PointerStep {
    /// Completion function of the bios that this step applies to (`bi_end_io`); 0: this kernel has
    /// no such step.
    pub end_io: u64,
    /// Start of the step: `bi_private`; or, unless this is [`ABSENT`](crate::layout::ABSENT), the
    /// structure that contains the bio at this offset.
    pub container_offset: u32,
    /// Offset of the first pointer to follow; ABSENT: none.
    pub first_offset: u32,
    /// Offset of the second pointer to follow; ABSENT: none.
    pub second_offset: u32,
    /// `STEP_TO_*`.
    pub to: u32,
}

/// Maximum number of completion functions.
pub const PAGE_COMPLETIONS_MAX: usize = 20;

/// The first page of the bio leads to the file.
pub const PAGES_BY_MAPPING: u32 = 1;
/// The bio is part of a `struct btrfs_bio`, which has the inode and the offset.
pub const PAGES_BY_BTRFS_BIO: u32 = 2;
/// The bio carries metadata that the file system caches itself.
pub const PAGES_ARE_METADATA: u32 = 3;
/// The bio carries a part of a file system's log.
pub const PAGES_ARE_LOG: u32 = 4;
/// The bio carries swapped memory.
pub const PAGES_ARE_SWAP: u32 = 5;

/// The bio is a copy for another device or place of a `struct btrfs_bio` (profiles DUP and RAID1): its
/// `bi_private` leads there.
pub const PAGES_BY_BTRFS_COPY: u32 = 6;

/// Completion function of bios that carry pages of a page cache (`bi_end_io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PageCompletion {
    /// Address of the function; 0: this kernel does not have it.
    pub end_io: u64,
    /// Rule for finding the origin of the pages: `PAGES_*`; 0: no function.
    pub rule: u32,
    /// Zero.
    pub reserved: u32,
}

plain! { PointerStep = 24, PageCompletion = 16, ProbeSettings = 1016 }

/// Entries of the system call table: the highest number that blkkin traces is 437 (openat2).
pub const SYSCALL_NUMBERS: usize = 512;

/// Capture rules of a system call, as bits: all that the eBPF side knows about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyscallShape(pub u32);

impl SyscallShape {
    /// Traced at all.
    pub const TRACED: u32 = 1 << 0;
    /// May read or move the descriptor's file position.
    pub const POSITION: u32 = 1 << 1;
    /// Returns a descriptor of a file that it opened.
    pub const OPENS: u32 = 1 << 2;
    /// munmap, which may unmap a library with a TLS slot. Not traced for that.
    pub const UNMAPS: u32 = 1 << 3;
    /// Submits asynchronous I/O: bios inside it may belong to a submission.
    pub const SUBMITS: u32 = 1 << 20;
    /// Submits iocbs (io_submit).
    pub const SUBMITS_IOCBS: u32 = 1 << 21;
    /// May write pages of the primary descriptor's file.
    pub const WRITES: u32 = 1 << 22;
    /// May write pages of the second descriptor's file.
    pub const WRITES_SECOND: u32 = 1 << 23;
    /// Moves a name or a mount (rename, mount). Not traced for that.
    pub const MOVES: u32 = 1 << 24;
    /// Reads data of the primary descriptor's file.
    pub const READS: u32 = 1 << 25;
    /// A path filter is set, and the call is about the files of its descriptors only: it is excluded
    /// if their paths are.
    pub const EXCLUDABLE: u32 = 1 << 26;
    /// In a task's state: the open system call is excluded by its files' paths, or by head sampling.
    pub const EXCLUDED: u32 = 1 << 27;
    /// Head sampling keeps each of these calls: a truncation ends what earlier writes of its file are known for.
    pub const UNSAMPLED: u32 = 1 << 28;
    const FD_SHIFT: u32 = 4;
    const SECOND_FD_SHIFT: u32 = 8;
    const PATH_SHIFT: u32 = 12;
    const SECOND_PATH_SHIFT: u32 = 16;

    /// Builds a shape; argument indices count from 0.
    pub const fn new(
        bits: u32,
        fd: Option<usize>,
        second_fd: Option<usize>,
        path: Option<usize>,
        second_path: Option<usize>,
    ) -> Self {
        SyscallShape(
            bits | encode_index(fd, Self::FD_SHIFT)
                | encode_index(second_fd, Self::SECOND_FD_SHIFT)
                | encode_index(path, Self::PATH_SHIFT)
                | encode_index(second_path, Self::SECOND_PATH_SHIFT),
        )
    }

    /// Returns whether the shape has this bit.
    #[inline(always)]
    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
    /// Returns 1 + the argument index of the primary descriptor; 0 for none.
    #[inline(always)]
    pub const fn fd(self) -> u32 {
        self.0 >> Self::FD_SHIFT & 0xf
    }
    /// Returns 1 + the argument index of the second descriptor; 0 for none.
    #[inline(always)]
    pub const fn second_fd(self) -> u32 {
        self.0 >> Self::SECOND_FD_SHIFT & 0xf
    }
    /// Returns 1 + the argument index of the path; 0 for none.
    #[inline(always)]
    pub const fn path(self) -> u32 {
        self.0 >> Self::PATH_SHIFT & 0xf
    }
    /// Returns 1 + the argument index of the second path; 0 for none.
    #[inline(always)]
    pub const fn second_path(self) -> u32 {
        self.0 >> Self::SECOND_PATH_SHIFT & 0xf
    }
}

const fn encode_index(index: Option<usize>, shift: u32) -> u32 {
    match index {
        Some(index) => {
            assert!(index < 6, "a call has six arguments");
            (index as u32 + 1) << shift
        }
        None => 0,
    }
}

/// Programs, by their slot of per-CPU memory. A program never runs twice at once on a CPU (the
/// kernel skips it and counts a recursion miss). Another program may interrupt it, so memory shared
/// by two programs would have to be atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Program {
    /// sys_enter
    SyscallEnter = 0,
    /// sys_exit
    SyscallExit = 1,
    /// block_bio_queue
    BioQueue = 2,
    /// block_bio_complete
    BioComplete = 3,
    /// block_io_start, or block_getrq on kernels without it
    RequestStart = 4,
    /// block_rq_issue
    RequestIssue = 5,
    /// block_rq_complete
    RequestComplete = 6,
    /// sched_process_fork
    TaskFork = 7,
    /// sched_process_exec
    TaskExec = 8,
    /// sched_process_exit
    TaskExit = 9,
    /// jbd2_start_commit
    CommitStart = 10,
    /// jbd2_end_commit
    CommitEnd = 11,
    /// ext4_sync_file_exit
    SyncExit = 12,
    /// block_rq_merge
    RequestMerge = 13,
    /// block_rq_insert
    RequestInsert = 14,
    /// sys_enter, for requests to NBD servers. The last program with an id number of its own: see
    /// [`Program::id_space`].
    NbdEnter = 15,
    /// sys_exit, for requests to NBD servers
    NbdExit = 16,
    /// tcp_retransmit_skb
    NbdRetransmit = 17,
    /// inet_sock_set_state
    NbdEnd = 18,
    /// uprobes at USDT probes
    Usdt = 19,
    /// io_uring_submit_req, or io_uring_submit_sqe on kernels without it
    AsyncSubmit = 20,
    /// io_uring_complete
    AsyncComplete = 21,
    /// io_uring_queue_async_work
    AsyncQueue = 22,
    /// xlog_iclog_wait_on
    LogWait = 23,
    /// mm_filemap_fault or page_fault_user: the begin of a page fault
    FaultBegin = 24,
    /// Perf event of major faults: the end of a page fault
    FaultEnd = 25,
    /// writeback_dirty_folio
    Dirty = 26,
    /// sched_switch
    Sleep = 27,
    /// writeback_start and writeback_written
    Writeback = 28,
}

impl Program {
    /// Returns the bits below the CPU in the ids that this program generates: the program's number
    /// in four bits, and above the counter's 40 bits a further number.
    ///
    /// A program above 15 has no number of its own in the four bits and takes that of a program that
    /// generates no ids: the submission of asynchronous I/O that of block_bio_complete's, page faults
    /// that of block_rq_merge's, with a further number each. *Invariant*: no two programs that
    /// generate ids have the same bits, because each counts for itself.
    #[inline(always)]
    pub const fn id_space(self) -> u64 {
        match self {
            Program::AsyncSubmit => (Program::BioComplete as u64) << 44,
            Program::FaultBegin | Program::FaultEnd | Program::Dirty => {
                (Program::RequestMerge as u64) << 44 | (self as u64 - 24) << 40
            }
            _ => (self as u64) << 44,
        }
    }
}

/// Number of program slots.
pub const PROGRAMS: usize = 29;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    #[test]
    fn id_spaces_are_below_the_cpu_and_distinct() {
        use Program::*;
        let generating =
            [SyscallEnter, BioQueue, NbdEnter, AsyncSubmit, FaultBegin, FaultEnd, Dirty, BioComplete];
        let spaces: Vec<u64> = generating.iter().map(|program| program.id_space()).collect();
        assert!(spaces.iter().all(|space| space >> 48 == 0 && space & ((1 << 40) - 1) == 0), "{spaces:x?}");
        // block_bio_complete's program generates none.
        let distinct: HashSet<u64> = spaces.iter().copied().collect();
        assert_eq!((distinct.len(), spaces[3]), (spaces.len() - 1, spaces[7]));
    }
}
