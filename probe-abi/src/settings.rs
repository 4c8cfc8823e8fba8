//! What the loader freezes into the programs before the kernel verifies them.
//!
//! The kernel treats a frozen read-only map's values as constants, so a filter that is not set costs nothing:
//! its branch is removed when the program is verified.

use crate::plain;

/// Filters of one kind that may be given at once.
pub const FILTERS_MAX: usize = 8;

/// Bios without a followed call: those of followed tasks (page faults).
pub const ORIGIN_TASKS: u32 = 0;
/// All (write-back, metadata, tasks that are not followed), and requests without a bio.
pub const ORIGIN_ALL: u32 = 1;
/// None: only certain calls are followed, and what a task queues in another is not told from a page fault.
pub const ORIGIN_CALLS: u32 = 2;

/// Follow only tasks that were marked, and their descendants (`blkkin run`, `--tree`).
pub const FOLLOW_MARKED: u32 = 0;
/// Follow every task of the node that passes the filters.
pub const FOLLOW_ALL: u32 = 1;

/// Task flag: its calls are recorded.
pub const TASK_ACTIVE: u32 = 1 << 0;
/// Task flag: becomes active when it executes a program.
pub const TASK_ARMED: u32 = 1 << 1;
/// Task flag: not recorded itself; what it forks is armed.
pub const TASK_SPAWNER: u32 = 1 << 2;
/// Task flag: the filters say no.
pub const TASK_UNWANTED: u32 = 1 << 3;

/// Settings of one start of the tracer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// Random: makes the span ids of this start its own.
    pub seed: u64,
    /// Calls faster than this and without block I/O are left out; 0: none.
    pub slower_than_ns: u64,
    /// Address of `bio_chain_endio`: a bio that ends there is the front of a split; 0: not known.
    pub bio_chain_endio: u64,
    /// `FOLLOW_*`.
    pub follow: u32,
    /// 1: calls that succeeded and caused no block I/O are left out.
    pub errors_only: u32,
    /// 1: calls that queued no bio are left out (detail 0, or a device filter).
    pub block_only: u32,
    /// 1: path arguments are kept.
    pub path_args: u32,
    /// 1: paths of files that are opened are walked.
    pub file_paths: u32,
    /// Which bios are recorded that no followed call queued: `ORIGIN_*`.
    pub kernel_origin: u32,
    /// 1: the fork hook knows children by number only (raw_tp), so they are adopted at their first event.
    pub adopt_by_number: u32,
    /// 1: this kernel has no block_io_start; requests begin where they are first seen, and block_getrq says whose they are.
    pub requests_begin_late: u32,
    /// How many of `pids` are set; likewise below.
    pub pids_len: u32,
    /// See `tids`.
    pub tids_len: u32,
    /// See `comms`.
    pub comms_len: u32,
    /// See `cgroups`.
    pub cgroups_len: u32,
    /// See `devices`.
    pub devices_len: u32,
    /// The tracer's own process, whose calls are never followed with FOLLOW_ALL (else each batch that it
    /// writes would be an event in the next).
    pub own_pid: u32,
    /// 1: a hop leads from a bio to another bio: there may be devices that lie on others.
    pub stacked: u32,
    /// `CONTEXTS_*`; 0: what threads publish of their spans is not read.
    pub contexts: u32,
    /// Process ids, any of which may match.
    pub pids: [u32; FILTERS_MAX],
    /// Thread ids.
    pub tids: [u32; FILTERS_MAX],
    /// Devices (disk or partition) in the kernel's encoding.
    pub devices: [u32; FILTERS_MAX],
    /// Cgroup ids.
    pub cgroups: [u64; FILTERS_MAX],
    /// Thread names, NUL padded, as two words each.
    pub comms: [[u64; 2]; FILTERS_MAX],
    /// Ways from a bio to what it does the work of; those that this kernel has not are empty.
    pub hops: [Hop; HOPS_MAX],
}

/// What threads publish of their spans is read.
pub const CONTEXTS_READ: u32 = 1;
/// Calls of traces that their program samples are kept whatever `slower_than_ns` and `errors_only` say.
pub const CONTEXTS_KEEP_SAMPLED: u32 = 1 << 1;

/// Ways from a bio upwards that there may be.
pub const HOPS_MAX: usize = 10;

/// A hop leads to a kiocb.
pub const HOP_TO_KIOCB: u32 = 1;
/// A hop leads to a bio.
pub const HOP_TO_BIO: u32 = 2;

/// One way upwards from a bio: whoever made it wrote down for whom, where its end will need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Hop {
    /// Bios that end here (`bi_end_io`); 0: no such way in this kernel.
    pub end_io: u64,
    /// Where the way begins: at `bi_private`, or, where this is not [`ABSENT`](crate::layout::ABSENT), at what lies around the
    /// bio, so many bytes before it.
    pub around: u32,
    /// From there, a pointer at this offset; ABSENT: it is there already.
    pub first: u32,
    /// And from there one more; ABSENT: none.
    pub second: u32,
    /// `HOP_TO_*`.
    pub to: u32,
}

plain! { Hop = 24, Settings = 616 }

/// Numbers that the table of calls covers: the highest that blkkin follows is 437 (openat2).
pub const CALL_NUMBERS: usize = 512;

/// What to capture of a call, by bits: the kernel side's whole knowledge of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallShape(pub u32);

impl CallShape {
    /// Followed at all.
    pub const FOLLOWED: u32 = 1 << 0;
    /// May read or move the descriptor's file position.
    pub const POSITION: u32 = 1 << 1;
    /// Returns a descriptor of a file that it opened.
    pub const OPENS: u32 = 1 << 2;
    /// Is munmap: may take a library away. Not followed for that.
    pub const UNMAPS: u32 = 1 << 3;
    const FD_SHIFT: u32 = 4;
    const SECOND_FD_SHIFT: u32 = 8;
    const PATH_SHIFT: u32 = 12;
    const SECOND_PATH_SHIFT: u32 = 16;

    /// Puts together a shape; argument indices count from 0.
    pub const fn new(
        bits: u32,
        fd: Option<usize>,
        second_fd: Option<usize>,
        path: Option<usize>,
        second_path: Option<usize>,
    ) -> Self {
        CallShape(
            bits | place(fd, Self::FD_SHIFT)
                | place(second_fd, Self::SECOND_FD_SHIFT)
                | place(path, Self::PATH_SHIFT)
                | place(second_path, Self::SECOND_PATH_SHIFT),
        )
    }

    /// Whether one of the bits above is set.
    #[inline(always)]
    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
    /// 1 + index of the argument that is the primary descriptor; 0 for none.
    #[inline(always)]
    pub const fn fd(self) -> u32 {
        self.0 >> Self::FD_SHIFT & 0xf
    }
    /// 1 + index of the second descriptor; 0 for none.
    #[inline(always)]
    pub const fn second_fd(self) -> u32 {
        self.0 >> Self::SECOND_FD_SHIFT & 0xf
    }
    /// 1 + index of the path argument; 0 for none.
    #[inline(always)]
    pub const fn path(self) -> u32 {
        self.0 >> Self::PATH_SHIFT & 0xf
    }
    /// 1 + index of the second path argument; 0 for none.
    #[inline(always)]
    pub const fn second_path(self) -> u32 {
        self.0 >> Self::SECOND_PATH_SHIFT & 0xf
    }
}

const fn place(index: Option<usize>, shift: u32) -> u32 {
    match index {
        Some(index) => {
            assert!(index < 6, "a call has six arguments");
            (index as u32 + 1) << shift
        }
        None => 0,
    }
}

/// The programs, by the slot of per-CPU memory that each has for itself: a program never runs twice at once on
/// a CPU (the kernel skips it and counts a recursion miss), but another may run on top of it in an interrupt,
/// so what two programs share would have to be atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Program {
    /// sys_enter
    CallEnter = 0,
    /// sys_exit
    CallExit = 1,
    /// block_bio_queue
    BioQueue = 2,
    /// block_bio_complete
    BioComplete = 3,
    /// block_io_start, or block_getrq where that is missing
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
    /// sys_enter, for requests to NBD servers. The last that may mint ids: they have four bits for it.
    NbdEnter = 15,
    /// sys_exit, for the same.
    NbdExit = 16,
    /// tcp_retransmit_skb
    NbdResend = 17,
    /// inet_sock_set_state
    NbdEnd = 18,
    /// Probes of programs.
    Hit = 19,
}

/// Slots for programs.
pub const PROGRAMS: usize = 20;
