//! Records in the rings: one for each system call, bio, request or commit that *ended*, and one for
//! each name that records refer to (a task, a file).
//!
//! Every record begins with a [`Header`]: tag, flags, length, and the time at which it was written,
//! which is also the end of the recorded interval. A reader checks tag and length first.
//!
//! Identity. A `span` is a 64-bit id, generated in the kernel where the span begins: a bijection of
//! (CPU, per-CPU counter), keyed by the tracer's random seed. No two spans of one tracer run are
//! equal, and the ids of two runs do not resemble each other.
//! `root` is the span id of the trace's root. System calls are roots, so a system call's `root` is
//! its `span`. A bio without a traced system call as parent is a root.
//! `task` is generated in the same way, once per traced task. Unlike a tid it is never reused, and
//! it does not change when a thread that is not the leader calls execve.

use crate::plain;

/// Common head of every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// Kind of record: `TAG_*`.
    pub tag: u8,
    /// Of a system call or a submission of asynchronous I/O that is the root of its trace: head
    /// sampling keeps one root in 2 to the power of this; from 129 on the reason for which the root was
    /// kept ([`deferred`](crate::deferred)). Otherwise zero.
    pub sampling: u8,
    /// Flags specific to the tag: `SYSCALL_*`, `BIO_*`, `REQUEST_*`, `TASK_*`, `FILE_*`.
    pub flags: u16,
    /// Bytes of the whole record, including this header and any tail.
    pub len: u32,
    /// CLOCK_MONOTONIC when the record was written: the end of the recorded interval.
    pub time_ns: u64,
}

/// System call that returned, or whose task exited inside it.
pub const TAG_SYSCALL: u8 = 1;
/// Bio that completed.
pub const TAG_BIO: u8 = 2;
/// Block request that completed.
pub const TAG_REQUEST: u8 = 3;
/// Task metadata, valid from this record on; later records refer to it by (task, version).
pub const TAG_TASK: u8 = 4;
/// Path of a file as of its open or exec.
pub const TAG_FILE: u8 = 5;
/// Journal commit that ended.
pub const TAG_COMMIT: u8 = 6;
/// Bio and the request that carried only this bio: both completed.
pub const TAG_BIO_REQUEST: u8 = 7;

/// Request that a program sent to an NBD server.
pub const TAG_NBD_REQUEST: u8 = 8;
/// NBD reply; or a request that was not sent after all, or the end of its connection.
pub const TAG_NBD_REPLY: u8 = 9;
/// TCP retransmission of an NBD client's bytes.
pub const TAG_NBD_RETRANSMIT: u8 = 10;
/// USDT event: [`UsdtRecord`](crate::usdt::UsdtRecord).
pub const TAG_USDT: u8 = 11;
/// Origin of the pages of a bio that was queued.
pub const TAG_BIO_PAGES: u8 = 12;
/// Asynchronous I/O that completed: an io_uring request or a libaio iocb.
pub const TAG_ASYNC_IO: u8 = 13;
// Tags 14 and 15 are in `fault`, tag 16 in `wait`.

/// File under one of its paths. The inode's identity is exact while the file exists and, by
/// `generation`, after its inode number is reused. All zero: no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct FileId {
    /// Device of the super block in the kernel's encoding (`major << 20 | minor`,
    /// include/linux/kdev_t.h).
    pub dev: u32,
    /// `inode->i_generation`: changes when the inode number is reused (ext4, xfs, tmpfs); 0 for
    /// file systems without generations.
    pub generation: u32,
    /// `inode->i_ino`.
    pub ino: u64,
    /// Path of the descriptor that was used: the same number as in the [`FileRecord`] with that
    /// path. A hash over the names from the descriptor's dentry to the root, so two hard links of a
    /// file, or a file before and after a rename, have two numbers. 0: no path was asked for.
    pub name: u64,
}

/// [`FileId::name`] of a path that could not be read. Numbers of paths are odd.
pub const NAME_UNREAD: u64 = 2;

/// The system call did not return: the task exited inside it.
pub const SYSCALL_NO_EXIT: u16 = 1 << 0;
/// `file` is valid: the descriptor was open at entry, or the system call opened it.
pub const SYSCALL_HAS_FILE: u16 = 1 << 1;
/// `position_before` is valid.
pub const SYSCALL_HAS_POSITION_BEFORE: u16 = 1 << 2;
/// `position_after` is valid.
pub const SYSCALL_HAS_POSITION_AFTER: u16 = 1 << 3;
/// A [`SecondFile`] follows the fixed part.
pub const SYSCALL_HAS_SECOND: u16 = 1 << 4;
/// A path argument was longer than [`PATH_ARG_MAX`] and is truncated.
pub const SYSCALL_PATH_TRUNCATED: u16 = 1 << 5;
/// A path argument could not be read from the program's memory.
pub const SYSCALL_PATH_FAULT: u16 = 1 << 6;
/// `sync_tid` is valid: the journal transaction whose commit this fsync required.
pub const SYSCALL_HAS_SYNC_TID: u16 = 1 << 7;
/// `cpu_wait_ns` is valid: this kernel counts run delay (CONFIG_SCHED_INFO).
pub const SYSCALL_HAS_CPU_WAIT: u16 = 1 << 8;

/// A [`ContextHead`](crate::context::ContextHead) follows, at the next multiple of 8: the thread's
/// span at entry. Its trace and span are zero if the thread publishes attributes without a span.
pub const SYSCALL_HAS_CONTEXT: u16 = 1 << 9;

/// The attribute bytes follow the head; the head holds their number. If the head's number is not 0
/// and this flag is clear, they exceed [`ATTRIBUTES_MAX`](crate::context::ATTRIBUTES_MAX) or could
/// not be read.
pub const SYSCALL_HAS_ATTRIBUTES: u16 = 1 << 10;

/// The system call is a write to a file that is not open for direct I/O: it may make pages of the
/// file's page cache dirty.
pub const SYSCALL_WRITES_PAGE_CACHE: u16 = 1 << 11;

/// A [`WaitsRecord`](crate::wait::WaitsRecord) of the system call precedes this record, unless its
/// ring was full.
pub const SYSCALL_HAS_WAITS: u16 = 1 << 12;

/// The system call is a read of a regular file that is not open for direct I/O: it reads through the
/// page cache.
pub const SYSCALL_READS_PAGE_CACHE: u16 = 1 << 13;

/// A [`SleepsRecord`](crate::sleep::SleepsRecord) of the system call precedes this record, unless its
/// ring was full.
pub const SYSCALL_HAS_SLEEPS: u16 = 1 << 14;

/// Maximum bytes of a path argument, including its NUL. A path may be 4096 bytes long (PATH_MAX,
/// include/uapi/linux/limits.h); longer than 256 is rare, and the record flags the truncation.
pub const PATH_ARG_MAX: usize = 256;

/// System call, written when it returned. Tail: [`SecondFile`] with SYSCALL_HAS_SECOND, then
/// `path_len[0]` and `path_len[1]` bytes of path arguments without NUL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SyscallRecord {
    /// Tag, flags, length, time of return.
    pub header: Header,
    /// Span of the system call, and root of its trace.
    pub span: u64,
    /// Task that made the system call.
    pub task: u64,
    /// CLOCK_MONOTONIC at entry.
    pub enter_ns: u64,
    /// Return value; meaningless with SYSCALL_NO_EXIT.
    pub ret: i64,
    /// The six arguments in the registers at entry.
    pub args: [u64; 6],
    /// File of the primary descriptor at entry; for system calls that open, the opened file.
    pub file: FileId,
    /// `f_pos` of that descriptor at entry.
    pub position_before: i64,
    /// `f_pos` of that descriptor at return.
    pub position_after: i64,
    /// System call number in this machine's table.
    pub number: u16,
    /// Version of `task` at entry.
    pub task_version: u16,
    /// Bios that the task queued inside this system call.
    pub bios: u32,
    /// Voluntary context switches inside this system call (`task->nvcsw`). 0 proves that the task
    /// was running or runnable for the whole time.
    pub sleeps: u32,
    /// Journal transaction: see SYSCALL_HAS_SYNC_TID.
    pub sync_tid: u32,
    /// Primary descriptor, or -1.
    pub fd: i32,
    /// Bytes of the path arguments in the tail.
    pub path_len: [u16; 2],
    /// Time inside this system call in which the task was runnable but not running
    /// (`task->sched_info.run_delay`).
    pub cpu_wait_ns: u64,
}

/// System call record whose only tail is its context head: of a fixed size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SyscallWithContext {
    /// System call.
    pub call: SyscallRecord,
    /// Context head.
    pub head: crate::context::ContextHead,
}

/// Second descriptor of a system call with two (sendfile, splice, copy_file_range).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SecondFile {
    /// File of the descriptor at entry.
    pub file: FileId,
    /// `f_pos` at entry.
    pub position_before: i64,
    /// `f_pos` at return; -1 if it was no longer readable.
    pub position_after: i64,
    /// Descriptor.
    pub fd: i32,
    /// Zero.
    pub reserved: u32,
}

/// The bio was the first of the request that carried it: the request is a child of the bio.
pub const BIO_FIRST: u16 = 1 << 0;
/// No traced system call was open in the submitting task: the bio is a root.
pub const BIO_KERNEL_ORIGIN: u16 = 1 << 1;
/// The bio completed without a request (bio-based device, or rejected before allocation).
pub const BIO_NO_REQUEST: u16 = 1 << 2;
/// The bio was split: more than one request carried it; `request` is the last of them.
pub const BIO_SPLIT: u16 = 1 << 3;
/// A request was allocated for the bio: set only where the kernel has no block_io_start.
pub const BIO_ALLOCATED_REQUEST: u16 = 1 << 4;
/// `parent` is a bio or a request of an upper (stacked) device: the bio is lower-device I/O for it.
pub const BIO_LOWER: u16 = 1 << 5;
/// A [`BioPagesRecord`] of the bio precedes this record.
pub const BIO_HAS_PAGES: u16 = 1 << 6;
/// `parent` is a page fault.
pub const BIO_IN_FAULT: u16 = 1 << 7;
/// `parent` is a journal commit.
pub const BIO_IN_COMMIT: u16 = 1 << 8;
/// With BIO_KERNEL_ORIGIN: a program submitted it that is not traced.
pub const BIO_OF_OTHER: u16 = 1 << 9;
/// First of four flags: the bio of a deferred operation is at this disk of `deferred::KEEP_DISK_LIMITS_MAP`.
pub const BIO_AT_DISK: u16 = 1 << 10;
/// In the table only: the record of the bio is deferred until its operation ends.
pub const BIO_DEFERRED: u16 = 1 << 15;

/// Bio, from `block_bio_queue` to the completion of its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BioRecord {
    /// Tag, flags, length, time of completion.
    pub header: Header,
    /// Span of the bio.
    pub span: u64,
    /// Span that submitted the bio; 0 for none.
    pub parent: u64,
    /// Root span of the trace.
    pub root: u64,
    /// Task that submitted the bio.
    pub task: u64,
    /// Request that carried the last bytes; 0 with BIO_NO_REQUEST.
    pub request: u64,
    /// CLOCK_MONOTONIC when the bio was queued.
    pub queue_ns: u64,
    /// First sector, in 512 B, relative to the whole disk: the kernel adds a partition's offset
    /// before block_bio_queue (block/blk-core.c, submit_bio_noacct).
    pub sector: u64,
    /// Target device or partition, in the kernel's encoding.
    pub dev: u32,
    /// Bytes at queue time, before any split.
    pub bytes: u32,
    /// `bi_opf`: operation in the low 8 bits, flags above (include/linux/blk_types.h).
    pub opf: u32,
    /// `blk_status_t` of the completion, 0 for success.
    pub status: u32,
    /// Version of `task` when the bio was queued.
    pub task_version: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// The request itself was never issued: the flush machine served it with its own request.
pub const REQUEST_NEVER_ISSUED: u16 = 1 << 0;
/// The request was requeued and issued again at least once.
pub const REQUEST_REQUEUED: u16 = 1 << 1;
/// The request went through the flush machine (PREFLUSH or emulated FUA).
pub const REQUEST_FLUSH_SEQUENCE: u16 = 1 << 2;
/// The request's first bio was not traced (other tasks' bios with a device filter, or a full
/// table).
pub const REQUEST_NO_PARENT: u16 = 1 << 3;

/// A flush of the flush machine served the request: `issue_ns` is the issue time of that flush.
pub const REQUEST_SERVED_BY_FLUSH: u16 = 1 << 4;

/// The request itself was issued.
pub const REQUEST_ISSUED: u16 = 1 << 5;
/// The request was allocated inside its task's plug (blk_start_plug, block/blk-core.c). It waits
/// there for further requests of the task to merge with.
pub const REQUEST_PLUGGED: u16 = 1 << 6;
/// In the table only: the record of the request is deferred until its operation ends.
pub const REQUEST_DEFERRED: u16 = 1 << 15;

/// Block request, from `block_io_start` to its final `block_rq_complete`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RequestRecord {
    /// Tag, flags, length, time of the final completion.
    pub header: Header,
    /// Span of the request.
    pub span: u64,
    /// Span of the request's first bio; 0 with REQUEST_NO_PARENT.
    pub parent: u64,
    /// Root span of the trace, taken from the first bio.
    pub root: u64,
    /// Task that allocated the request.
    pub task: u64,
    /// CLOCK_MONOTONIC when the request was allocated.
    pub start_ns: u64,
    /// CLOCK_MONOTONIC when the request first entered a queue above the driver's: the scheduler's,
    /// or, without a scheduler, the software queue of a busy device. 0 when it went to the driver
    /// directly.
    pub insert_ns: u64,
    /// CLOCK_MONOTONIC when the request was first issued to the driver; 0 with
    /// REQUEST_NEVER_ISSUED.
    pub issue_ns: u64,
    /// First sector at issue, in 512 B, relative to the whole disk.
    pub sector: u64,
    /// Disk, in the kernel's encoding.
    pub dev: u32,
    /// Bytes at issue, including merges.
    pub bytes: u32,
    /// `cmd_flags` at allocation (issue strips the flush flags).
    pub opf: u32,
    /// `blk_status_t`, 0 for success.
    pub status: u32,
    /// Version of `task` at allocation.
    pub task_version: u16,
    /// Bios that the request carried at issue, counted up to [`WALK_MAX`].
    pub bios: u16,
    /// Hardware or scheduler tag at issue, -1 if never issued.
    pub tag: i32,
}

/// Bio and request in one record, where they are one to one: the request carried this whole bio and
/// no other, and one completion ended both.
/// It replaces a [`BioRecord`] and a [`RequestRecord`] with mostly equal fields: one ring entry of
/// 136 B instead of two of 104 B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BioRequestRecord {
    /// Tag, flags (`REQUEST_*`), length, time of the completion.
    pub header: Header,
    /// Span of the bio, which is the request's parent.
    pub bio: u64,
    /// Span that submitted the bio: see [`BioRecord::parent`].
    pub parent: u64,
    /// Root span of the trace.
    pub root: u64,
    /// Task that queued the bio.
    pub task: u64,
    /// CLOCK_MONOTONIC when the bio was queued.
    pub queue_ns: u64,
    /// Span of the request.
    pub request: u64,
    /// CLOCK_MONOTONIC when the request was allocated.
    pub start_ns: u64,
    /// CLOCK_MONOTONIC when the request was first issued; 0 with REQUEST_NEVER_ISSUED.
    pub issue_ns: u64,
    /// First sector of the bio, in 512 B, relative to its device.
    pub sector: u64,
    /// First sector of the request, relative to the whole disk.
    pub disk_sector: u64,
    /// Device of the bio.
    pub dev: u32,
    /// Disk of the request.
    pub disk: u32,
    /// Bytes of both.
    pub bytes: u32,
    /// `bi_opf` of the bio when it was queued.
    pub bio_opf: u32,
    /// `cmd_flags` of the request when it was allocated.
    pub request_opf: u32,
    /// `blk_status_t` of both.
    pub status: u32,
    /// Tag at issue: see [`RequestRecord::tag`].
    pub tag: i32,
    /// Version of `task` when the bio was queued.
    pub task_version: u16,
    /// Flags of the bio, `BIO_*`.
    pub bio_flags: u16,
}

/// Pages of a file's page cache: `file` and `offset` are valid.
pub const PAGES_FILE: u16 = 1;
/// Pages of a block device's page cache: metadata of a file system, or raw I/O.
pub const PAGES_DEVICE: u16 = 2;
/// Metadata that the file system caches itself.
pub const PAGES_METADATA: u16 = 3;
/// Log of a file system.
pub const PAGES_LOG: u16 = 4;
/// Swapped memory.
pub const PAGES_SWAP: u16 = 5;
/// Not pages, but the range of its file that a bio of a loop device writes through the file's page
/// cache or, without PAGES_WRITTEN, discards: `file` and `offset` are valid. The bio may have another
/// record, of its pages.
pub const PAGES_OF_LOOP: u16 = 6;

/// Flag of a [`BioPagesRecord`]: the pages are not consecutive in the file; `offset` is that of the
/// first page. A record with PAGES_PART precedes this one for each consecutive part, unless the bio
/// has more segments than are examined.
pub const PAGES_NOT_CONSECUTIVE: u16 = 1 << 0;
/// Flag of a [`BioPagesRecord`]: only `span`, `offset` and `bytes` are valid, of a part of the bio.
pub const PAGES_PART: u16 = 1 << 2;
/// Flag of a [`BioPagesRecord`]: the bio writes the pages.
pub const PAGES_WRITTEN: u16 = 1 << 1;
/// Flag of a [`BioPagesRecord`]: the bio has BIO_OF_OTHER.
pub const PAGES_OF_OTHER: u16 = 1 << 3;
/// Flag of a [`BioPagesRecord`]: the record of the bio is deferred and may never come. Only of a write: a range that
/// becomes clean must be known at its time.
pub const PAGES_DEFERRED: u16 = 1 << 4;
/// Flag of a [`BioPagesRecord`]: the bio is dropped, but its range of the file is clean now.
pub const PAGES_UNSAMPLED: u16 = 1 << 5;

/// Origin of the pages of a bio, written when the bio was queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BioPagesRecord {
    /// Tag, flags (`PAGES_*`), length, time at which the bio was queued.
    pub header: Header,
    /// Span of the bio.
    pub span: u64,
    /// Root span of the trace.
    pub root: u64,
    /// File of the pages, with PAGES_FILE.
    pub file: FileId,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes of the bio.
    pub bytes: u32,
    /// Upper bound of the traced system calls that were open then and may write pages of this file.
    pub open_writes: u32,
    /// Content: `PAGES_FILE` and the following.
    pub kind: u16,
    /// 1 + `enum wb_reason` of the write-back that the submitting kernel worker ran; 0: none.
    pub reason: u16,
    /// Device of the bio.
    pub dev: u32,
}

/// Maximum bios of one request that the walk visits. On most devices a request has at most
/// BLK_MAX_SEGMENTS (128, include/linux/blkdev.h) segments and each bio fills at least one;
/// discards may merge more.
/// `WALK_OVERFLOW` counts requests with further bios.
pub const WALK_MAX: usize = 256;

/// Reason for a [`TaskRecord`]: first seen.
pub const TASK_SEEN: u16 = 1 << 0;
/// Reason: forked by a traced task.
pub const TASK_FORKED: u16 = 1 << 1;
/// Reason: executed a program.
pub const TASK_EXECED: u16 = 1 << 2;
/// Reason: name, user or cgroup changed.
pub const TASK_CHANGED: u16 = 1 << 3;
/// Reason: exited.
pub const TASK_EXITED: u16 = 1 << 4;
/// Kernel thread: no executable.
pub const TASK_KERNEL_THREAD: u16 = 1 << 5;

/// Task metadata, valid from this version on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskRecord {
    /// Tag, flags (reason), length, time.
    pub header: Header,
    /// Task id that other records refer to.
    pub task: u64,
    /// Task that forked this one, if it is traced; else 0.
    pub parent_task: u64,
    /// Id of the cgroup in the default hierarchy, as bpf_get_current_cgroup_id returns it.
    pub cgroup: u64,
    /// Executable.
    pub exe: FileId,
    /// Thread id, in the initial pid namespace.
    pub tid: u32,
    /// Process id (`tgid`).
    pub pid: u32,
    /// Process id of the parent.
    pub ppid: u32,
    /// Real user id, in the initial user namespace.
    pub uid: u32,
    /// `comm`, NUL padded.
    pub comm: [u8; 16],
    /// Version, incremented with each change; wraps.
    pub version: u16,
    /// Zero.
    pub reserved: u16,
    /// Inode of the pid namespace; 0 for the initial one, or if unknown.
    pub pid_ns: u32,
    /// Process id in that namespace; 0 likewise.
    pub inner_pid: u32,
    /// Thread id in that namespace; 0 likewise.
    pub inner_tid: u32,
}

/// The path was longer than [`FILE_PATH_MAX`] or deeper than [`PATH_DEPTH_MAX`]: its *upper* part
/// is missing.
pub const FILE_PATH_TRUNCATED: u16 = 1 << 0;

/// The dentry of the descriptor is unhashed: this name was removed, or is that of an O_TMPFILE.
pub const FILE_NAME_REMOVED: u16 = 1 << 1;
/// The file system was unmounted (`umount --lazy`): the path begins at its root.
pub const FILE_UNMOUNTED: u16 = 1 << 2;

/// Maximum bytes of a file's path, including one NUL per component. A path argument has at most
/// 4,096 (PATH_MAX, include/uapi/linux/limits.h); relative ones can build longer paths.
pub const FILE_PATH_MAX: usize = 8192;
/// Maximum components of a file's path, with one for each mount point.
pub const PATH_DEPTH_MAX: usize = CLIMB_STEPS * CLIMBS_MAX * ASCENTS_MAX;
/// Maximum steps in one call of `climb`.
pub const CLIMB_STEPS: usize = 8;
/// Maximum climbs in one call of `ascend`.
pub const CLIMBS_MAX: usize = 16;
/// Maximum calls of `ascend` for one path.
pub const ASCENTS_MAX: usize = 16;

/// Path of a file. Tail: its components, *leaf first*, each ended by NUL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FileRecord {
    /// Tag, flags, length, time.
    pub header: Header,
    /// File identity.
    pub file: FileId,
    /// `i_rdev` of a block or character device, else 0, in the kernel's encoding.
    pub rdev: u32,
    /// `i_mode`: type and permissions.
    pub mode: u32,
    /// Type of the file system (`s_type->name`), NUL padded.
    pub filesystem: [u8; 16],
}

/// Journal commit (jbd2), from `jbd2_start_commit` to `jbd2_end_commit`: the parent and root of the
/// bios it queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CommitRecord {
    /// Tag, flags, length, time of the end.
    pub header: Header,
    /// Span of the commit, and root of its trace.
    pub span: u64,
    /// Journal thread.
    pub task: u64,
    /// CLOCK_MONOTONIC at the start.
    pub start_ns: u64,
    /// Device of the journal's file system, in the kernel's encoding.
    pub dev: u32,
    /// `transaction->t_tid`.
    pub tid: u32,
    /// Bios that the journal thread queued inside the commit.
    pub bios: u32,
    /// Version of `task`.
    pub task_version: u16,
    /// Zero.
    pub reserved: u16,
}

/// NBD request, as the client wrote it to its socket ("Request message", doc/proto.md of NBD).
/// Protocol numbers are in host byte order; addresses and ports are as the kernel stores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NbdRequestRecord {
    /// Tag, flags (none), length, entry time of the system call that sends the request.
    pub header: Header,
    /// Span of the request.
    pub span: u64,
    /// Task that sends the request.
    pub task: u64,
    /// Inode of the client's socket: identifies the connection during its lifetime.
    pub socket: u64,
    /// Cookie of the request.
    pub cookie: u64,
    /// Byte offset of the request.
    pub offset: u64,
    /// Bytes of the request.
    pub length: u32,
    /// `NBD_CMD_*`.
    pub command: u16,
    /// `NBD_CMD_FLAG_*`.
    pub command_flags: u16,
    /// Client address: for IPv4 the first four bytes; for a Unix socket `socket` again.
    pub local: [u64; 2],
    /// Server address; for a Unix socket its inode.
    pub remote: [u64; 2],
    /// `AF_*` of include/linux/socket.h.
    pub family: u16,
    /// Client port, in host byte order (`skc_num`).
    pub local_port: u16,
    /// Server port, in network byte order (`skc_dport`).
    pub remote_port: u16,
    /// Version of `task`.
    pub task_version: u16,
    /// Process id, in the initial pid namespace.
    pub pid: u32,
    /// Thread id, in the initial pid namespace.
    pub tid: u32,
    /// Bytes that the client sent on this TCP connection before the request's first byte. 0 if
    /// unknown, and for other families: the handshake precedes the first request, so no request has
    /// offset 0.
    pub stream_offset: u64,
}

/// The request never reached the socket: the system call that should send it failed. The client may
/// send it again.
pub const NBD_WITHDRAWN: u16 = 1 << 0;
/// A chunk of a structured reply: `kind` and `kind_flags` are valid, `error` is not.
pub const NBD_STRUCTURED: u16 = 1 << 1;
/// The connection ended, and with it all its requests: `cookie` is 0, and `error` is the socket's
/// errno or 0.
pub const NBD_ENDED: u16 = 1 << 2;

/// Reply to an [`NbdRequestRecord`] ("Simple reply message", "Structured reply chunk message").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NbdReplyRecord {
    /// Tag, flags (`NBD_*`), length, return time of the system call that received the reply.
    pub header: Header,
    /// Inode of the client's socket.
    pub socket: u64,
    /// Cookie of the request.
    pub cookie: u64,
    /// Error of a simple reply: 0 or an NBD errno. At the end of a connection: the system's errno.
    pub error: u32,
    /// `NBD_REPLY_TYPE_*`: bit 15 marks an error.
    pub kind: u16,
    /// `NBD_REPLY_FLAG_*`: bit 0 marks the last chunk.
    pub kind_flags: u16,
}

/// Retransmitted segment of an NBD client's TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NbdRetransmitRecord {
    /// Tag, flags (none), length, time.
    pub header: Header,
    /// Inode of the client's socket.
    pub socket: u64,
    /// First byte of the segment, counted like [`NbdRequestRecord::stream_offset`].
    pub from: u64,
    /// End of the segment, exclusive.
    pub to: u64,
}

/// Interface of an [`AsyncIoRecord`]: io_uring.
pub const ASYNC_IO_URING: u8 = 0;
/// Interface of an [`AsyncIoRecord`]: Linux's own asynchronous I/O (io_submit), as libaio uses it.
pub const ASYNC_LIBAIO: u8 = 1;

/// The end was not seen: the time of the record is when the kernel used the request's memory again.
pub const ASYNC_NO_END: u16 = 1 << 0;
/// `file` is valid.
pub const ASYNC_HAS_FILE: u16 = 1 << 1;
/// `offset` is valid; -1 is the file's own position.
pub const ASYNC_HAS_OFFSET: u16 = 1 << 2;
/// `length` is valid: a number of bytes, or for vectored operations of buffers.
pub const ASYNC_HAS_LENGTH: u16 = 1 << 3;
/// `fd` is a descriptor of the task.
pub const ASYNC_HAS_FD: u16 = 1 << 4;
/// `result` is valid.
pub const ASYNC_HAS_RESULT: u16 = 1 << 5;
/// A write of `result` bytes at `offset` into the page cache of a regular file.
pub const ASYNC_WRITES_PAGE_CACHE: u16 = 1 << 6;
/// In the table only: head sampling drops the submission, and its bios.
pub const ASYNC_UNSAMPLED: u16 = 1 << 7;
/// In the table only: the record of the submission is deferred until its operation ends.
pub const ASYNC_DEFERRED: u16 = 1 << 8;

/// Asynchronous I/O, from its submission to its completion.
///
/// io_uring: from io_uring_submit_req to io_uring_complete. libaio: from its first bio to the end of
/// its last one, because the kernel reports neither submission nor completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AsyncIoRecord {
    /// Tag, flags (`ASYNC_*`), length, time of the completion.
    pub header: Header,
    /// Span of the submission.
    pub span: u64,
    /// System call that submitted it; 0 for none (a poll thread of the kernel).
    pub parent: u64,
    /// Task that submitted it.
    pub task: u64,
    /// CLOCK_MONOTONIC at the submission.
    pub start_ns: u64,
    /// CLOCK_MONOTONIC when it was last queued to a worker of io_uring; 0 for never.
    pub queued_ns: u64,
    /// The program's own number: `user_data` of the sqe, or `aio_data` of the iocb.
    pub user_data: u64,
    /// File offset: see ASYNC_HAS_OFFSET.
    pub offset: i64,
    /// File: see ASYNC_HAS_FILE.
    pub file: FileId,
    /// Length: see ASYNC_HAS_LENGTH.
    pub length: u32,
    /// Result: see ASYNC_HAS_RESULT.
    pub result: i32,
    /// Descriptor: see ASYNC_HAS_FD; otherwise the index of a registered file.
    pub fd: i32,
    /// Bios that were queued for it.
    pub bios: u32,
    /// Setup flags of the ring (`IORING_SETUP_*`).
    pub ring_flags: u32,
    /// Version of `task` at the submission.
    pub task_version: u16,
    /// Operation: `IORING_OP_*` or `IOCB_CMD_*`.
    pub opcode: u8,
    /// Flags of the sqe (`IOSQE_*`).
    pub sqe_flags: u8,
    /// `ASYNC_IO_URING` or `ASYNC_LIBAIO`.
    pub interface: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

plain! {
    AsyncIoRecord = 128,
    NbdRequestRecord = 120, NbdReplyRecord = 40, NbdRetransmitRecord = 40,
    Header = 16, FileId = 24, SyscallRecord = 168, SyscallWithContext = 200, SecondFile = 48, BioRecord = 96, RequestRecord = 104, BioRequestRecord = 128,
    TaskRecord = 112, FileRecord = 64, CommitRecord = 56, BioPagesRecord = 80,
}
