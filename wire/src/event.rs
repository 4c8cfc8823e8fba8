//! Events of one layer, emitted when an operation ends there, and the names that such events refer
//! to.
//!
//! There are two groups. *Layer events* (system call, bio, block request, commit) are spans: begin,
//! end, own id, the id of the submitter, and the root of the trace. No join has to guess between
//! the layers of one node. *Name events* (task, file) are emitted once and referenced by id, so a
//! comm or a path is not repeated in each event. A layer event is complete without them, only less
//! readable.
//!
//! "Submitted by" and "caused by" are two relations. `parent` always means *submitted by*: the span
//! that was open in the submitting task. The cause of a request (a commit for an fsync, write-back
//! for a writer) is joined later and never stored in `parent`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::async_io::AsyncIoEvent;
use crate::call_sleeps::CallSleeps;
use crate::call_waits::CallWaits;
use crate::clock::{MonotonicNs, OptionalNs};
use crate::daemon_span::DaemonSpanEvent;
use crate::head_sampling::HeadSampling;
use crate::ids::{CgroupId, DeviceId, Fd, FileId, Pid, Sector, SpanId, TaskId, Tid, Uid};
pub use crate::op::BlockOp;
pub use crate::page_fault::{DirtyEvent, FaultEvent};
use crate::page_origin::PageOriginEvent;
use crate::process_context::ProcessContextEvent;
use crate::remote_link::RpcEndpointEvent;
use crate::syscalls::SyscallId;
pub use crate::task_context::{ContextSource, TaskRef, TraceContext};
use crate::thread_attributes::ThreadAttributes;
use crate::virtual_machine::VirtualMachineEvent;

/// Any event of a tracer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerEvent {
    /// A system call returned.
    Syscall(SyscallEvent),
    /// A bio ended.
    Bio(BioEvent),
    /// A block request ended.
    Request(RequestEvent),
    /// A bio ended together with the request that carried it whole and nothing else.
    Pair(PairEvent),
    /// Asynchronous I/O completed.
    AsyncIo(AsyncIoEvent),
    /// A journal commit ended.
    Commit(CommitEvent),
    /// A task changed: its state from this version on.
    Task(TaskEvent),
    /// Path of a file.
    File(FileEvent),
    /// Name of a device.
    Device(DeviceEvent),
    /// A span was one endpoint of a request between two nodes.
    RpcEndpoint(Box<RpcEndpointEvent>),
    /// A daemon span ended.
    DaemonSpan(Box<DaemonSpanEvent>),
    /// A process published, changed or withdrew its process context.
    ProcessContext(Box<ProcessContextEvent>),
    /// A process runs a virtual machine.
    VirtualMachine(Box<VirtualMachineEvent>),
    /// A bio carries pages of a page cache.
    PageOrigin(Box<PageOriginEvent>),
    /// A page fault outside any system call ended.
    Fault(FaultEvent),
    /// A store into a mapping made pages dirty.
    Dirty(DirtyEvent),
}

impl LayerEvent {
    /// Returns whether the event names a task, file, device or process, and describes no operation.
    pub fn is_name(&self) -> bool {
        match self {
            LayerEvent::Task(_)
            | LayerEvent::File(_)
            | LayerEvent::Device(_)
            | LayerEvent::ProcessContext(_)
            | LayerEvent::VirtualMachine(_) => true,
            LayerEvent::Syscall(_)
            | LayerEvent::Bio(_)
            | LayerEvent::Request(_)
            | LayerEvent::Pair(_)
            | LayerEvent::AsyncIo(_)
            | LayerEvent::Commit(_)
            | LayerEvent::RpcEndpoint(_)
            | LayerEvent::DaemonSpan(_)
            | LayerEvent::PageOrigin(_)
            | LayerEvent::Fault(_)
            | LayerEvent::Dirty(_) => false,
        }
    }

    /// Returns the time of emission: the end of the described operation. Streams are ordered by it.
    pub fn time(&self) -> MonotonicNs {
        match self {
            LayerEvent::Syscall(e) => e.exit,
            LayerEvent::Bio(e) => e.end,
            LayerEvent::Request(e) => e.complete,
            LayerEvent::Pair(e) => e.request.complete,
            LayerEvent::AsyncIo(e) => e.end,
            LayerEvent::Commit(e) => e.end,
            LayerEvent::Task(e) => e.time,
            LayerEvent::File(e) => e.time,
            LayerEvent::Device(e) => e.time,
            LayerEvent::RpcEndpoint(e) => e.end,
            LayerEvent::DaemonSpan(e) => e.end,
            LayerEvent::ProcessContext(e) => e.time,
            LayerEvent::VirtualMachine(e) => e.time,
            LayerEvent::PageOrigin(e) => e.time,
            LayerEvent::Fault(e) => e.time,
            LayerEvent::Dirty(e) => e.time,
        }
    }
}

/// Outcome of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SyscallOutcome {
    /// Return value.
    Returned(i64),
    /// The task ended inside the call: `exit` is the end of the task.
    NoExit,
}

/// Capture state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Captured {
    /// Complete, or there was no path.
    #[default]
    Full,
    /// Partial: the end of a path argument is missing, or the upper directories of a file's own
    /// path.
    Truncated,
    /// Not captured: the read of user memory failed.
    Faulted,
}

/// An open file, as a system call used it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Descriptor.
    pub fd: Fd,
    /// File of the descriptor.
    pub file: FileId,
    /// File position at entry, if the call depends on it.
    pub position_before: Option<i64>,
    /// File position at return, if the call may move it and it was readable.
    pub position_after: Option<i64>,
}

impl OpenFile {
    /// Returns the offset of the first of `bytes` bytes that a call moved at the file's position. The
    /// position at return is exact also for O_APPEND; threads that share an open file can move it
    /// between the two.
    pub fn start_by_position(&self, bytes: u64) -> Option<u64> {
        match (self.position_after, self.position_before) {
            (Some(after), _) => u64::try_from(after).ok()?.checked_sub(bytes),
            (None, before) => u64::try_from(before?).ok(),
        }
    }
}

/// A system call: the root of its trace on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyscallEvent {
    /// Span id, and root of its descendants.
    pub span: SpanId,
    /// Calling task.
    pub task: TaskRef,
    /// System call.
    pub call: SyscallId,
    /// Arguments: registers at entry, 0 after the last argument.
    pub args: [u64; 6],
    /// Entry.
    pub enter: MonotonicNs,
    /// Return, or the end of the task.
    pub exit: MonotonicNs,
    /// Return value, or the missing exit.
    pub outcome: SyscallOutcome,
    /// File of its primary descriptor, or the file that it opened.
    pub file: Option<OpenFile>,
    /// Second file of a call with two. Boxed: an event is moved several times, and few have one.
    pub second_file: Option<Box<OpenFile>>,
    /// Path arguments, lossy UTF-8.
    pub paths: [Option<Box<str>>; 2],
    /// Capture state of the paths.
    pub paths_captured: Captured,
    /// Bios that the task queued inside the call, plus passthrough requests that it sent, plus its
    /// submissions of asynchronous I/O: number of events of this trace with this call as submitter.
    pub bios: u32,
    /// Times that the task gave up the CPU to wait. 0 proves that it never slept.
    pub sleeps: u32,
    /// Time inside the call that the task was runnable and not running; none if the kernel does not
    /// count it.
    pub cpu_wait: OptionalNs,
    /// Journal transaction that must be committed for this fsync (ext4). Whether the call waited
    /// for the commit is a rule of the join.
    pub sync_tid: Option<u32>,
    /// Application span that the thread worked for at the call, in the application's trace; none
    /// without a thread context. Boxed: an event is moved several times, and few have one.
    pub context: Option<Box<TraceContext>>,
    /// Thread attributes; none if the thread published none. Shared: calls of one span have equal
    /// attributes.
    pub attributes: Option<Arc<ThreadAttributes>>,
    /// True if the call may write pages of its file's page cache: a write to a file that is not
    /// open for direct I/O.
    pub writes_page_cache: bool,
    /// True if the call reads a regular file that is not open for direct I/O.
    pub reads_page_cache: bool,
    /// Ratio by which calls were recorded when it was made.
    pub sampling: HeadSampling,
    /// Waits of the call inside the kernel; none if it did not wait. Boxed: an event is
    /// moved several times, and few have some.
    pub waits: Option<Box<CallWaits>>,
    /// Sleeps of the call inside the kernel; none if it did not sleep, or sleeps are not recorded.
    pub slept: Option<Box<CallSleeps>>,
}

impl SyscallEvent {
    /// Returns a system call of `task` from `enter` to `exit` that returned 0, used no file and
    /// queued no bio. Tests and load generators set the remaining fields; decoders name every
    /// field.
    pub fn bare(span: SpanId, task: TaskRef, call: SyscallId, enter: MonotonicNs, exit: MonotonicNs) -> Self {
        Self {
            span,
            task,
            call,
            args: [0; 6],
            enter,
            exit,
            outcome: SyscallOutcome::Returned(0),
            file: None,
            second_file: None,
            paths: [None, None],
            paths_captured: Captured::Full,
            bios: 0,
            sleeps: 0,
            cpu_wait: OptionalNs::NONE,
            sync_tid: None,
            context: None,
            attributes: None,
            writes_page_cache: false,
            reads_page_cache: false,
            sampling: HeadSampling::ALL,
            waits: None,
            slept: None,
        }
    }
}

/// `blk_status_t`: 0 is success (include/linux/blk_types.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockStatus(pub u8);

impl BlockStatus {
    /// Returns whether the request completed without error.
    pub fn is_ok(self) -> bool {
        self.0 == 0
    }
    /// Returns the status as text.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "ok",
            1 => "not supported",
            2 => "timeout",
            3 => "no space",
            4 => "transport error",
            5 => "target error",
            6 => "reservation conflict",
            7 => "medium error",
            8 => "protection error",
            9 => "resource shortage",
            10 => "I/O error",
            12 => "would block",
            13 => "device resource shortage",
            _ => "error",
        }
    }
}

/// Submitter of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Submitter {
    /// The span (system call, commit) that was open in the submitting task, the asynchronous I/O that
    /// the bio serves, or on a stacked device the upper bio or request.
    Span(SpanId),
    /// No traced span was open: kernel work. The bio is the root of its trace.
    Kernel,
}

/// A bio, from its submission to the completion of its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BioEvent {
    /// Span id.
    pub span: SpanId,
    /// Submitter.
    pub submitter: Submitter,
    /// Root span of its trace.
    pub root: SpanId,
    /// Submitting task.
    pub task: TaskRef,
    /// Request that carried its last bytes; none on a device without requests.
    pub request: Option<SpanId>,
    /// True if it was the first bio of that request, which is its child; further bios are linked.
    pub first: bool,
    /// True if more than one request carried it.
    pub split: bool,
    /// True if a [`PageOriginEvent`] describes its pages.
    pub has_page_origin: bool,
    /// True if a program submitted it that is not traced: one that a filter excludes, or the tracer
    /// itself. Only without a submitter.
    pub of_other_program: bool,
    /// Submission.
    pub queue: MonotonicNs,
    /// Completion.
    pub end: MonotonicNs,
    /// Device or partition.
    pub device: DeviceId,
    /// First sector, relative to the whole disk, also if `device` is a partition.
    pub sector: Sector,
    /// Bytes at submission.
    pub bytes: u32,
    /// Op and flags.
    pub op: BlockOp,
    /// Completion status.
    pub status: BlockStatus,
}

/// A block request, from its allocation to its last completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestEvent {
    /// Span id.
    pub span: SpanId,
    /// First bio; for a passthrough request the system call that sent it. None if that was not
    /// traced.
    pub parent: Option<SpanId>,
    /// Root span of its trace.
    pub root: SpanId,
    /// Allocating task.
    pub task: TaskRef,
    /// Allocation.
    pub start: MonotonicNs,
    /// First insertion into a queue before the driver's: the scheduler's, or without scheduler the
    /// software queue of a busy device. None if the request went directly to the driver.
    pub insert: Option<MonotonicNs>,
    /// First issue to the driver: of the request, or of the cache flush that served it before its
    /// data or instead of data. None if nothing was issued: a flush of a device without a write
    /// cache.
    pub issue: Option<MonotonicNs>,
    /// Last completion.
    pub complete: MonotonicNs,
    /// Disk.
    pub device: DeviceId,
    /// First sector at issue, relative to the disk.
    pub sector: Sector,
    /// Bytes at issue, merges included.
    pub bytes: u32,
    /// Op and flags.
    pub op: BlockOp,
    /// Completion status.
    pub status: BlockStatus,
    /// Number of bios that it carried.
    pub bios: u16,
    /// Tag at issue.
    pub tag: Option<u32>,
    /// True if it was allocated inside a plug of its task and waited there for further requests.
    pub plugged: bool,
    /// True if it was requeued and issued again.
    pub requeued: bool,
    /// True if it went through the flush machinery.
    pub flush_sequence: bool,
}

/// A bio and its request if they are one to one, as in nearly all direct I/O: `request.parent` is
/// `bio.span`, `bio.request` is `request.span`, and both ended at one time with one status. It is
/// equivalent to a [`BioEvent`] and a [`RequestEvent`] and passes every queue once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairEvent {
    /// Bio.
    pub bio: BioEvent,
    /// Request of the bio.
    pub request: RequestEvent,
}

impl PairEvent {
    /// Returns a successful write of 4 KiB: a bio of the span `root` and its request, both from
    /// `queue` to `end`. For tests and load generators, like [`SyscallEvent::bare`].
    pub fn bare(
        [root, bio, request]: [SpanId; 3],
        task: TaskRef,
        device: DeviceId,
        [queue, end]: [MonotonicNs; 2],
    ) -> Self {
        let (sector, bytes, op, status) = (Sector(8), 4096, BlockOp(1), BlockStatus(0));
        let bio = BioEvent {
            span: bio,
            submitter: Submitter::Span(root),
            root,
            task,
            request: Some(request),
            first: true,
            split: false,
            has_page_origin: false,
            of_other_program: false,
            queue,
            end,
            device,
            sector,
            bytes,
            op,
            status,
        };
        let request = RequestEvent {
            span: request,
            parent: Some(bio.span),
            root,
            task,
            start: queue,
            insert: None,
            issue: Some(queue),
            complete: end,
            device,
            sector,
            bytes,
            op,
            status,
            bios: 1,
            tag: Some(5),
            plugged: false,
            requeued: false,
            flush_sequence: false,
        };
        Self { bio, request }
    }
}

/// A journal commit: the root of the writes that the journal thread made for all waiting tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitEvent {
    /// Span id, and root of its trace.
    pub span: SpanId,
    /// Journal thread.
    pub task: TaskRef,
    /// Start.
    pub start: MonotonicNs,
    /// End.
    pub end: MonotonicNs,
    /// Device of the file system.
    pub device: DeviceId,
    /// Transaction number: with `device` the key to the system calls that waited for it.
    pub tid: u32,
    /// Bios queued inside the commit.
    pub bios: u32,
}

impl CommitEvent {
    /// Returns a commit of transaction `tid` without bios, by the journal thread `task`. For tests
    /// and load generators, like [`SyscallEvent::bare`].
    pub fn bare(
        span: SpanId,
        task: TaskRef,
        device: DeviceId,
        tid: u32,
        [start, end]: [MonotonicNs; 2],
    ) -> Self {
        Self { span, task, start, end, device, tid, bios: 0 }
    }
}

/// Reason for a task event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskChange {
    /// The tracer saw the task for the first time.
    Discovered,
    /// A traced task forked it.
    Forked,
    /// Executed another program.
    Execed,
    /// Changed comm, user or cgroup.
    Changed,
    /// Exited.
    Exited,
}

/// State of a task from `version` on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Time.
    pub time: MonotonicNs,
    /// Task and version.
    pub task: TaskRef,
    /// Forking task, if it was traced.
    pub parent: Option<TaskId>,
    /// Reason.
    pub change: TaskChange,
    /// Thread id.
    pub tid: Tid,
    /// Process id.
    pub pid: Pid,
    /// Process id of the parent.
    pub ppid: Pid,
    /// User.
    pub uid: Uid,
    /// Cgroup.
    pub cgroup: CgroupId,
    /// Comm at that moment.
    pub comm: Arc<str>,
    /// Executable; none for a kernel thread.
    pub exe: Option<FileId>,
    /// True if it is a kernel thread.
    pub kernel_thread: bool,
    /// Ids in its own pid namespace, if that is not the initial one. Daemon event streams use these
    /// ids. They are not needed after correlation, so snapshots omit them.
    #[serde(skip)]
    pub ns_ids: Option<PidNsIds>,
}

impl TaskEvent {
    /// Returns a discovered thread 100 of process 100, user 1000. For tests and load generators,
    /// like [`SyscallEvent::bare`].
    pub fn bare(task: TaskRef, time: MonotonicNs, comm: &str) -> Self {
        Self {
            time,
            task,
            parent: None,
            change: TaskChange::Discovered,
            tid: Tid(100),
            pid: Pid(100),
            ppid: Pid(1),
            uid: Uid(1000),
            cgroup: CgroupId(1),
            comm: comm.into(),
            exe: None,
            kernel_thread: false,
            ns_ids: None,
        }
    }
}

/// Ids of a task in its own pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidNsIds {
    /// Inode of the namespace (`/proc/PID/ns/pid`).
    pub pid_ns: u32,
    /// Process id in the namespace.
    pub pid: Pid,
    /// Thread id in the namespace.
    pub tid: Tid,
}

/// Path of a file under one of its names. Emitted before the first event that uses the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEvent {
    /// Time.
    pub time: MonotonicNs,
    /// File and name.
    pub file: FileId,
    /// Path from the host's root. It begins with `…/` if the upper directories are missing, and with
    /// `(unmounted)/` if the file system was unmounted while files on it were open. Bytes that are
    /// not UTF-8 are escaped as `\\xNN`.
    pub path: Arc<str>,
    /// Capture state of the path.
    pub captured: Captured,
    /// File system type (`ext4`, `tmpfs`, `pipefs` …).
    pub filesystem: Arc<str>,
    /// Device of a device file.
    pub device_file: Option<DeviceId>,
    /// `st_mode`.
    pub mode: u32,
    /// The name was removed from its directory, or never was in it (O_TMPFILE). The file may have
    /// other names.
    pub removed: bool,
}

impl FileEvent {
    /// Returns a regular file on ext4. For tests and load generators, like [`SyscallEvent::bare`].
    pub fn bare(file: FileId, time: MonotonicNs, path: &str) -> Self {
        let (path, captured, filesystem) = (path.into(), Captured::Full, "ext4".into());
        Self { time, file, path, captured, filesystem, device_file: None, mode: 0o100_644, removed: false }
    }
}

/// Name of a block device, emitted when the tracer first sees the device, and again after another
/// device with the same number replaced it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEvent {
    /// Time.
    pub time: MonotonicNs,
    /// Device.
    pub device: DeviceId,
    /// Name below /dev (`loop0`, `vda1`), or the device numbers if it has none.
    pub name: Box<str>,
    /// Disk of a partition.
    pub partition_of: Option<DeviceId>,
    /// Name of a virtual machine's disk that guest and host both know: `serial=…` if QEMU gave it a serial
    /// number, else `bytes=…` if no other disk without one has that size. None for other devices.
    pub disk: Option<Box<str>>,
}
