//! The records in the rings: one for each thing that *ended* (a call, a bio, a request), and one for each name
//! that records refer to (a task, a file).
//!
//! Every record begins with a [`Header`]: tag, flags, length, and the time at which it was written, which is
//! also the end of what it describes. A reader checks tag and length before anything else.
//!
//! Identity. A `span` is 64 bits, minted in the kernel where the span begins: a bijection of (CPU, counter of
//! that CPU) keyed by the random seed of this start of the tracer, so that no two spans of one start are
//! equal and those of two starts do not resemble each other. `root` is the span id at which the trace began.
//! Calls are roots, so a call's `root` is its `span`. A bio without a traced call above it is its own root.
//! `task` is minted alike, once per task that is followed: unlike a tid it is never used twice and does not
//! change when a thread that is not the leader calls execve.

use crate::plain;

/// What every record begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// Which record this is: `TAG_*`.
    pub tag: u8,
    /// Zero.
    pub reserved: u8,
    /// Bits of the tag's own meaning: `CALL_*`, `BIO_*`, `REQUEST_*`, `TASK_*`, `FILE_*`.
    pub flags: u16,
    /// Bytes of the whole record, this header and any tail included.
    pub len: u32,
    /// CLOCK_MONOTONIC when the record was written: the end of what it describes.
    pub time_ns: u64,
}

/// A system call that returned (or whose task ended inside it).
pub const TAG_CALL: u8 = 1;
/// A bio that ended.
pub const TAG_BIO: u8 = 2;
/// A block request that ended.
pub const TAG_REQUEST: u8 = 3;
/// A task as it is from now on; later records refer to it by (task, version).
pub const TAG_TASK: u8 = 4;
/// A file's path as it was when it was opened or executed.
pub const TAG_FILE: u8 = 5;
/// A journal commit that ended.
pub const TAG_COMMIT: u8 = 6;
/// A bio and a request that carried it and nothing else: both ended.
pub const TAG_PAIR: u8 = 7;

/// A program sent a request to an NBD server.
pub const TAG_NBD_ASKED: u8 = 8;
/// The answer came, or the request was not sent after all, or its connection has ended.
pub const TAG_NBD_ANSWERED: u8 = 9;
/// Bytes of a client's were sent once more.
pub const TAG_NBD_RESENT: u8 = 10;
/// A thread came by a probe of its program: [`HitRecord`](crate::hit::HitRecord).
pub const TAG_HIT: u8 = 11;

/// Which file: exact while the file exists, and, by `generation`, after its inode number was used again.
/// All zero: no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct FileId {
    /// The super block's device in the kernel's own encoding (`major << 20 | minor`, include/linux/kdev_t.h).
    pub dev: u32,
    /// `inode->i_generation`: differs when the number is given to a new file (ext4, xfs, tmpfs); 0 where the
    /// file system keeps none.
    pub generation: u32,
    /// `inode->i_ino`.
    pub ino: u64,
}

/// The call did not return: the task ended inside it.
pub const CALL_NO_EXIT: u16 = 1 << 0;
/// `file` is valid: the descriptor was open at entry (or is what the call opened).
pub const CALL_HAS_FILE: u16 = 1 << 1;
/// `position_before` is valid.
pub const CALL_HAS_POSITION_BEFORE: u16 = 1 << 2;
/// `position_after` is valid.
pub const CALL_HAS_POSITION_AFTER: u16 = 1 << 3;
/// A [`SecondFile`] follows the fixed part.
pub const CALL_HAS_SECOND: u16 = 1 << 4;
/// A path argument was longer than [`PATH_ARG_MAX`] and is cut.
pub const CALL_PATH_TRUNCATED: u16 = 1 << 5;
/// A path argument could not be read from the program's memory.
pub const CALL_PATH_FAULT: u16 = 1 << 6;
/// `sync_tid` is valid: the journal transaction that this fsync had to see committed.
pub const CALL_HAS_SYNC_TID: u16 = 1 << 7;
/// `cpu_wait_ns` is valid: this kernel counts it (CONFIG_SCHED_INFO).
pub const CALL_HAS_CPU_WAIT: u16 = 1 << 8;

/// A [`Head`](crate::context::Head) is behind all that, at the next multiple of 8: the span that the thread worked for at entry. Its trace and
/// span may be zero where it says attributes and works for none.
pub const CALL_HAS_CONTEXT: u16 = 1 << 9;

/// Behind the head lie as many bytes of attributes as it says. Without this flag and with such a number in the head: they were too many
/// ([`ATTRIBUTES_MAX`](crate::context::ATTRIBUTES_MAX)), or could not be read.
pub const CALL_HAS_ATTRIBUTES: u16 = 1 << 10;

/// Longest path argument that is kept, its NUL included. A path may be 4096 bytes long (PATH_MAX,
/// include/uapi/linux/limits.h); of 256 only pathological ones are cut, and then it is said.
pub const PATH_ARG_MAX: usize = 256;

/// A system call, written when it returned. Tail: [`SecondFile`] when CALL_HAS_SECOND, then
/// `path_len[0]` and `path_len[1]` bytes of path arguments, without NUL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallRecord {
    /// Tag, flags, length, time of return.
    pub header: Header,
    /// This call's span, and its trace's root.
    pub span: u64,
    /// Who called.
    pub task: u64,
    /// CLOCK_MONOTONIC at entry.
    pub enter_ns: u64,
    /// What it returned; with CALL_NO_EXIT meaningless.
    pub ret: i64,
    /// Its six arguments as the registers had them at entry.
    pub args: [u64; 6],
    /// The file that its primary descriptor named at entry; for calls that open, the file opened.
    pub file: FileId,
    /// `f_pos` of that descriptor at entry.
    pub position_before: i64,
    /// `f_pos` of that descriptor at return.
    pub position_after: i64,
    /// The call's number in this machine's table.
    pub number: u16,
    /// Version of `task` at entry.
    pub task_version: u16,
    /// Bios queued by the task inside this call.
    pub bios: u32,
    /// Times that the task went to sleep of its own will inside this call (`task->nvcsw`): 0 proves that all
    /// of its time was spent running or ready to run.
    pub sleeps: u32,
    /// See CALL_HAS_SYNC_TID.
    pub sync_tid: u32,
    /// The primary descriptor, or -1.
    pub fd: i32,
    /// Bytes of the path arguments in the tail.
    pub path_len: [u16; 2],
    /// Time inside this call in which the task was ready to run and no CPU ran it (`task->sched_info.run_delay`).
    pub cpu_wait_ns: u64,
}

/// A call that has no other tail than its context: of a fixed size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallInContext {
    /// The call.
    pub call: CallRecord,
    /// Its context.
    pub head: crate::context::Head,
}

/// The other descriptor of a call that has two (sendfile, splice, copy_file_range).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SecondFile {
    /// The file it named at entry.
    pub file: FileId,
    /// Its `f_pos` at entry.
    pub position_before: i64,
    /// Its `f_pos` at return; -1 when it could not be read any more.
    pub position_after: i64,
    /// The descriptor.
    pub fd: i32,
    /// Zero.
    pub reserved: u32,
}

/// The bio was the first of the request that carried it: the request is its child.
pub const BIO_FIRST: u16 = 1 << 0;
/// No traced call was open in the submitting task: the bio is a root of its own.
pub const BIO_KERNEL_ORIGIN: u16 = 1 << 1;
/// The bio completed without any request (bio-based device, or refused before one was made).
pub const BIO_NO_REQUEST: u16 = 1 << 2;
/// The bio was split: more than one request carried it; `request` is the last.
pub const BIO_SPLIT: u16 = 1 << 3;
/// A request was taken from its pool for it: kept only where the kernel has no block_io_start.
pub const BIO_TOOK_REQUEST: u16 = 1 << 4;
/// `parent` is a request or a bio of a device above this one: the bio does its work.
pub const BIO_BELOW: u16 = 1 << 5;

/// A bio, from `block_bio_queue` to the completion of its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BioRecord {
    /// Tag, flags, length, time of completion.
    pub header: Header,
    /// This bio's span.
    pub span: u64,
    /// The span that submitted it; 0 for none.
    pub parent: u64,
    /// Where its trace began.
    pub root: u64,
    /// Who submitted it.
    pub task: u64,
    /// The request that carried its last bytes; 0 with BIO_NO_REQUEST.
    pub request: u64,
    /// CLOCK_MONOTONIC when it was queued.
    pub queue_ns: u64,
    /// First sector, in 512 B, relative to the whole disk: a partition's offset is added before block_bio_queue
    /// (block/blk-core.c, submit_bio_noacct).
    pub sector: u64,
    /// Device or partition that it was queued to, in the kernel's encoding.
    pub dev: u32,
    /// Bytes at queue time, before any split.
    pub bytes: u32,
    /// `bi_opf`: operation in the low 8 bits, flags above (include/linux/blk_types.h).
    pub opf: u32,
    /// `blk_status_t` of its completion, 0 for success.
    pub status: u32,
    /// Version of `task` when it was queued.
    pub task_version: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// The request was never issued by itself: the flush machinery served it with a request of its own.
pub const REQUEST_NEVER_ISSUED: u16 = 1 << 0;
/// The request was put back and issued again at least once.
pub const REQUEST_REQUEUED: u16 = 1 << 1;
/// The request went through the flush machine (PREFLUSH or emulated FUA).
pub const REQUEST_FLUSH_SEQUENCE: u16 = 1 << 2;
/// Its first bio was not followed (other tasks' bios with a device filter, or the table was full).
pub const REQUEST_NO_PARENT: u16 = 1 << 3;

/// A flush of the flush machine served it: `issue_ns` is when that was issued.
pub const REQUEST_SERVED: u16 = 1 << 4;

/// It was issued by itself.
pub const REQUEST_ISSUED: u16 = 1 << 5;
/// It was allocated inside a plug (blk_start_plug, block/blk-core.c) of its task: it waits there for the task to ask for
/// more, and to be merged with that.
pub const REQUEST_PLUGGED: u16 = 1 << 6;

/// A block request, from `block_io_start` to its final `block_rq_complete`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RequestRecord {
    /// Tag, flags, length, time of the final completion.
    pub header: Header,
    /// This request's span.
    pub span: u64,
    /// The span of its first bio; 0 with REQUEST_NO_PARENT.
    pub parent: u64,
    /// Where its trace began: its first bio's root.
    pub root: u64,
    /// Who allocated it.
    pub task: u64,
    /// CLOCK_MONOTONIC when it was allocated.
    pub start_ns: u64,
    /// CLOCK_MONOTONIC when it was first put into a queue above the driver's: the scheduler's, or, where there is none, the
    /// software queue of a device that was busy; 0 when it went to the driver directly.
    pub insert_ns: u64,
    /// CLOCK_MONOTONIC when it was first issued to the driver; 0 with REQUEST_NEVER_ISSUED.
    pub issue_ns: u64,
    /// First sector at issue, in 512 B, relative to the whole disk.
    pub sector: u64,
    /// The disk, in the kernel's encoding.
    pub dev: u32,
    /// Bytes at issue, merges included.
    pub bytes: u32,
    /// `cmd_flags` when it was allocated (issue strips the flush flags).
    pub opf: u32,
    /// `blk_status_t`, 0 for success.
    pub status: u32,
    /// Version of `task` when it was allocated.
    pub task_version: u16,
    /// Bios that it carried at issue, counted to [`WALK_MAX`].
    pub bios: u16,
    /// Hardware or scheduler tag at issue, -1 if never issued.
    pub tag: i32,
}

/// A bio and its request in one record, where they are one to one: the request carried this bio, whole, and no other, and
/// one completion ended both. It stands for a [`BioRecord`] and a [`RequestRecord`] that would say most things twice: one
/// ring entry of 136 B instead of two of 104.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PairRecord {
    /// Tag, flags (`REQUEST_*`), length, time of the completion.
    pub header: Header,
    /// The bio's span, the request's parent.
    pub bio: u64,
    /// What submitted the bio: see [`BioRecord::parent`].
    pub parent: u64,
    /// Where the trace of both began.
    pub root: u64,
    /// Who queued the bio.
    pub task: u64,
    /// CLOCK_MONOTONIC when the bio was queued.
    pub queue_ns: u64,
    /// The request's span.
    pub request: u64,
    /// CLOCK_MONOTONIC when the request was allocated.
    pub start_ns: u64,
    /// CLOCK_MONOTONIC when it was first issued; 0 with REQUEST_NEVER_ISSUED.
    pub issue_ns: u64,
    /// The bio's first sector, in 512 B, relative to its device.
    pub sector: u64,
    /// The request's first sector, relative to the whole disk.
    pub disk_sector: u64,
    /// The bio's device.
    pub dev: u32,
    /// The request's disk.
    pub disk: u32,
    /// Bytes of both.
    pub bytes: u32,
    /// The bio's `bi_opf` when it was queued.
    pub bio_opf: u32,
    /// The request's `cmd_flags` when it was allocated.
    pub request_opf: u32,
    /// `blk_status_t` of both.
    pub status: u32,
    /// See [`RequestRecord::tag`].
    pub tag: i32,
    /// Version of `task` when the bio was queued.
    pub task_version: u16,
    /// The bio's flags, `BIO_*`.
    pub bio_flags: u16,
}

/// Most bios of one request that are walked: a request has at most BLK_MAX_SEGMENTS (128,
/// include/linux/blkdev.h) segments on most devices and each bio fills at least one; discards may merge
/// more. What lies beyond is counted (`WALK_OVERFLOW`).
pub const WALK_MAX: usize = 256;

/// Why a [`TaskRecord`] was written.
pub const TASK_SEEN: u16 = 1 << 0;
/// Forked by a followed task.
pub const TASK_FORKED: u16 = 1 << 1;
/// Replaced its program.
pub const TASK_EXECED: u16 = 1 << 2;
/// Name, user or cgroup changed.
pub const TASK_CHANGED: u16 = 1 << 3;
/// Ended.
pub const TASK_EXITED: u16 = 1 << 4;
/// A kernel thread: no program of its own.
pub const TASK_KERNEL_THREAD: u16 = 1 << 5;

/// A task as it is from this version on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskRecord {
    /// Tag, flags (why), length, time.
    pub header: Header,
    /// The id that records refer to.
    pub task: u64,
    /// The task that forked it, where that one was followed; else 0.
    pub parent_task: u64,
    /// Id of its cgroup in the default hierarchy, as bpf_get_current_cgroup_id has it.
    pub cgroup: u64,
    /// Its program.
    pub exe: FileId,
    /// Thread id, in the initial pid namespace.
    pub tid: u32,
    /// Process id (`tgid`).
    pub pid: u32,
    /// Parent's process id.
    pub ppid: u32,
    /// Real user id, in the initial user namespace.
    pub uid: u32,
    /// `comm`, NUL padded.
    pub comm: [u8; 16],
    /// Counts up with each change; wraps.
    pub version: u16,
    /// Zero.
    pub reserved: u16,
    /// Inode of its pid namespace; 0 if that is the initial one, or is not known.
    pub pid_ns: u32,
    /// Process id there; 0 likewise.
    pub inner_pid: u32,
    /// Thread id there; 0 likewise.
    pub inner_tid: u32,
}

/// The path was longer than [`FILE_PATH_MAX`] or deeper than [`PATH_DEPTH_MAX`]: its *upper* part is missing.
pub const FILE_PATH_TRUNCATED: u16 = 1 << 0;

/// Bytes kept of a file's path, one NUL a component included.
pub const FILE_PATH_MAX: usize = 2048;
/// Components kept of a file's path. 24 levels of unbroken loop are 374,284 verifier instructions.
pub const PATH_DEPTH_MAX: usize = 24;

/// A file's name. Tail: its path's components, *leaf first*, each ended by NUL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FileRecord {
    /// Tag, flags, length, time.
    pub header: Header,
    /// Which file.
    pub file: FileId,
    /// `i_rdev` of a block or character device, else 0, in the kernel's encoding.
    pub rdev: u32,
    /// `i_mode`: type and permissions.
    pub mode: u32,
    /// Type of the file system (`s_type->name`), NUL padded.
    pub filesystem: [u8; 16],
}

/// A journal commit (jbd2), from `jbd2_start_commit` to `jbd2_end_commit`. Its bios name it as parent and root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CommitRecord {
    /// Tag, flags, length, time of the end.
    pub header: Header,
    /// This commit's span and its trace's root.
    pub span: u64,
    /// The journal's thread.
    pub task: u64,
    /// CLOCK_MONOTONIC at its start.
    pub start_ns: u64,
    /// Device of the file system that the journal serves, in the kernel's encoding.
    pub dev: u32,
    /// `transaction->t_tid`.
    pub tid: u32,
    /// Bios that the journal's thread queued inside it.
    pub bios: u32,
    /// Version of `task`.
    pub task_version: u16,
    /// Zero.
    pub reserved: u16,
}

/// A request to an NBD server, as its client gave it to its socket ("Request message", doc/proto.md of NBD). Numbers as the
/// machine has them; addresses and ports as the kernel keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NbdAsked {
    /// Tag, flags (none), length, time at entry of the call that sends it.
    pub header: Header,
    /// The request's span.
    pub span: u64,
    /// Who sends.
    pub task: u64,
    /// Inode of the client's socket: names the connection as long as it lives.
    pub socket: u64,
    /// The request's number.
    pub cookie: u64,
    /// Where.
    pub offset: u64,
    /// How much.
    pub length: u32,
    /// `NBD_CMD_*`.
    pub command: u16,
    /// `NBD_CMD_FLAG_*`.
    pub command_flags: u16,
    /// The client's address: of IPv4 the first four bytes; of a Unix socket `socket` again.
    pub local: [u64; 2],
    /// The server's; of a Unix socket its inode.
    pub remote: [u64; 2],
    /// `AF_*` of include/linux/socket.h.
    pub family: u16,
    /// The client's port, in the machine's order (`skc_num`).
    pub local_port: u16,
    /// The server's, in the network's order (`skc_dport`).
    pub remote_port: u16,
    /// Version of `task`.
    pub task_version: u16,
    /// Process and thread, in the initial pid namespace.
    pub pid: u32,
    /// See above.
    pub tid: u32,
    /// How many bytes the client has sent on this TCP connection before the request's first; 0 where that is not known, and of
    /// another family: before the first request there is a handshake.
    pub place: u64,
}

/// The request never reached the socket: the call that was to send it failed. It may be sent again.
pub const NBD_WITHDRAWN: u16 = 1 << 0;
/// A chunk of a structured reply: `kind` and `kind_flags` are valid, `error` is not.
pub const NBD_STRUCTURED: u16 = 1 << 1;
/// The connection has ended, and with it all its requests: `cookie` is 0, and `error` the socket's errno, or 0.
pub const NBD_ENDED: u16 = 1 << 2;

/// What came back for an [`NbdAsked`] ("Simple reply message", "Structured reply chunk message").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NbdAnswered {
    /// Tag, flags (`NBD_*`), length, time at return of the call that received it.
    pub header: Header,
    /// Inode of the client's socket.
    pub socket: u64,
    /// The request's number.
    pub cookie: u64,
    /// Of a simple reply: 0, or an errno by NBD's numbers; of an end of a connection that of the system.
    pub error: u32,
    /// `NBD_REPLY_TYPE_*`: bit 15 says that it is an error.
    pub kind: u16,
    /// `NBD_REPLY_FLAG_*`: bit 0 says that it is the last chunk.
    pub kind_flags: u16,
}

/// A segment of a TCP connection of an NBD client was sent once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NbdResent {
    /// Tag, flags (none), length, time.
    pub header: Header,
    /// Inode of the client's socket.
    pub socket: u64,
    /// Its bytes, from and to, counted as [`NbdAsked::place`] is.
    pub from: u64,
    /// See above.
    pub to: u64,
}

plain! {
    NbdAsked = 120, NbdAnswered = 40, NbdResent = 40,
    Header = 16, FileId = 16, CallRecord = 160, CallInContext = 192, SecondFile = 40, BioRecord = 96, RequestRecord = 104, PairRecord = 128,
    TaskRecord = 104, FileRecord = 56, CommitRecord = 56,
}
