//! What one layer saw of one request, once it ended there; and the names that such events refer to.
//!
//! Two kinds of facts. *Layer events* (call, bio, request, commit) are spans: begin, end, own id, the id of what
//! submitted them, and the root at which the trace began: no join has to guess between the layers of one node.
//! *Name events* (task, file) are said once and referred to by id, so that a comm or a path is not repeated a
//! million times; a layer event is complete without them, only less readable.
//!
//! "Submitted by" and "caused by" are two relations. `parent` is always *submitted by*: the span that was open in
//! the task that called down. What a request was done for (a commit for an fsync, write-back for a writer) is
//! joined later and never put into `parent`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attributes::ThreadAttributes;
use crate::calls::CallId;
use crate::clock::{DurationNs, MonotonicNs};
use crate::ids::{CgroupId, DeviceId, Fd, FileId, Pid, Sector, SpanId, TaskId, Tid, TraceId, Uid};
use crate::meeting::MeetingEvent;
pub use crate::op::BlockOp;
use crate::operation::OperationEvent;
use crate::process::ProcessEvent;

/// Anything that a tracer says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerEvent {
    /// A system call returned.
    Call(CallEvent),
    /// A bio ended.
    Bio(BioEvent),
    /// A block request ended.
    Request(RequestEvent),
    /// A bio ended, and with it the request that carried it whole and nothing else.
    Pair(PairEvent),
    /// A journal commit ended.
    Commit(CommitEvent),
    /// A task is, from this version on, as said here.
    Task(TaskEvent),
    /// A file has this path.
    File(FileEvent),
    /// A device has this name.
    Device(DeviceEvent),
    /// A span was one end of a request between two nodes.
    Meeting(Box<MeetingEvent>),
    /// A daemon's own operation ended.
    Operation(Box<OperationEvent>),
    /// A process is, from now on, as said here, in its own words.
    Process(Box<ProcessEvent>),
}

impl LayerEvent {
    /// When it was said: the end of what it describes. Streams are ordered by it.
    pub fn time(&self) -> MonotonicNs {
        match self {
            LayerEvent::Call(e) => e.exit,
            LayerEvent::Bio(e) => e.end,
            LayerEvent::Request(e) => e.complete,
            LayerEvent::Pair(e) => e.request.complete,
            LayerEvent::Commit(e) => e.end,
            LayerEvent::Task(e) => e.time,
            LayerEvent::File(e) => e.time,
            LayerEvent::Device(e) => e.time,
            LayerEvent::Meeting(e) => e.end,
            LayerEvent::Operation(e) => e.end,
            LayerEvent::Process(e) => e.time,
        }
    }
}

/// A task at one moment of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskRef {
    /// Which task.
    pub id: TaskId,
    /// Which of its [`TaskEvent`]s holds at that moment.
    pub version: u16,
}

/// Whether a call's whole life was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ending {
    /// It returned this.
    Returned(i64),
    /// The task ended inside it: `exit` is the task's end.
    NoExit,
}

/// How much of a path argument was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Kept {
    /// All of it, or there was none.
    #[default]
    Whole,
    /// It was longer than what is kept: its end is missing, or, of a file's own path, its upper part.
    Truncated,
    /// It could not be read from the program's memory.
    Unreadable,
}

/// An open file, as a call used it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// The descriptor.
    pub fd: Fd,
    /// What it names.
    pub file: FileId,
    /// File position at entry, where the call depends on it.
    pub position_before: Option<i64>,
    /// File position at return, where the call may move it and it could still be read.
    pub position_after: Option<i64>,
}

/// A system call: the root of what this node knows of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallEvent {
    /// Its span, and the root of what is below it.
    pub span: SpanId,
    /// Who called.
    pub task: TaskRef,
    /// Which call.
    pub call: CallId,
    /// Its arguments, as the registers had them at entry; 0 behind its own.
    pub args: [u64; 6],
    /// Entry.
    pub enter: MonotonicNs,
    /// Return, or the task's end.
    pub exit: MonotonicNs,
    /// What became of it.
    pub ending: Ending,
    /// The file that it used by its primary descriptor, or opened.
    pub file: Option<OpenFile>,
    /// The other file of a call that has two: boxed, for an event is moved several times and few have it.
    pub second_file: Option<Box<OpenFile>>,
    /// Path arguments, lossy UTF-8.
    pub paths: [Option<Box<str>>; 2],
    /// Whether the paths are whole.
    pub paths_kept: Kept,
    /// Bios that the task queued inside it, and drivers' commands that it sent: so many events with this call as their
    /// submitter belong to this trace.
    pub bios: u32,
    /// Times that the task gave up the processor to wait; 0 proves that it never slept.
    pub sleeps: u32,
    /// Time inside it in which the task was ready to run and no CPU ran it; none where the kernel does not count it.
    pub cpu_wait: Option<DurationNs>,
    /// The journal transaction that this fsync had to see committed (ext4).
    pub sync_tid: Option<u32>,
    /// The application's own span that the thread worked for when it called, in the application's own trace; none where it
    /// published none. Boxed: an event is moved several times and few have it.
    pub context: Option<Box<TraceContext>>,
    /// What the thread said of its work besides; none where it said nothing. Shared: calls of one span say the same.
    pub attributes: Option<Arc<ThreadAttributes>>,
}

impl CallEvent {
    /// A call of `task` from `enter` to `exit` that returned 0, is about no file and caused nothing: whoever makes one up (a test, a
    /// load) says what else it is. What is read of a record names every field.
    pub fn bare(span: SpanId, task: TaskRef, call: CallId, enter: MonotonicNs, exit: MonotonicNs) -> Self {
        Self {
            span,
            task,
            call,
            args: [0; 6],
            enter,
            exit,
            ending: Ending::Returned(0),
            file: None,
            second_file: None,
            paths: [None, None],
            paths_kept: Kept::Whole,
            bios: 0,
            sleeps: 0,
            cpu_wait: None,
            sync_tid: None,
            context: None,
            attributes: None,
        }
    }
}

/// The span that a thread works for: what `traceparent` says. Most publish it (OpenTelemetry's thread context, OTEP 4947).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TraceContext {
    /// The application's trace; not 0.
    pub trace: TraceId,
    /// The application's span: what it calls for is its child. Not 0.
    pub span: SpanId,
    /// Trace flags (W3C trace context, level 2): bit 0 is *sampled*.
    pub flags: u8,
    /// How that is known.
    pub from: ContextFrom,
}

/// How it is known for what a call was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ContextFrom {
    /// Exact: the thread published it, and it was read at the call.
    Thread,
    /// By rule: the last that the thread had said in its events before the call returned was that it works for this operation,
    /// which is an event of this node too.
    Events,
    /// Exact: the thread published it, and it was read at the call. It is an operation of this node, whose daemon has said it in its
    /// events.
    Both,
}

impl TraceContext {
    /// Whether the application itself may have recorded its span.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// `blk_status_t`: 0 is success (include/linux/blk_types.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockStatus(pub u8);

impl BlockStatus {
    /// Whether it completed without error.
    pub fn is_ok(self) -> bool {
        self.0 == 0
    }
    /// In words.
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

/// What submitted a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Submitter {
    /// The span (call, commit) open in the submitting task.
    Span(SpanId),
    /// No followed span was open: the kernel's own work. The bio is the root of its trace.
    Kernel,
}

/// A bio, from its submission to the completion of its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BioEvent {
    /// Its span.
    pub span: SpanId,
    /// Who asked for it.
    pub submitter: Submitter,
    /// Where its trace began.
    pub root: SpanId,
    /// The task that submitted it.
    pub task: TaskRef,
    /// The request that carried its last bytes; none on a device that makes no requests.
    pub request: Option<SpanId>,
    /// It was the first bio of that request, which is its child; the others are linked.
    pub first: bool,
    /// More than one request carried it.
    pub split: bool,
    /// Submission.
    pub queue: MonotonicNs,
    /// Completion.
    pub end: MonotonicNs,
    /// Device or partition.
    pub device: DeviceId,
    /// First sector, relative to the whole disk, also where `device` is a partition.
    pub sector: Sector,
    /// Bytes when it was submitted.
    pub bytes: u32,
    /// Operation and flags.
    pub op: BlockOp,
    /// Success or failure.
    pub status: BlockStatus,
}

/// A block request, from its allocation to its last completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestEvent {
    /// Its span.
    pub span: SpanId,
    /// Its first bio; of a driver's command the call that sent it. None where that was not followed.
    pub parent: Option<SpanId>,
    /// Where its trace began.
    pub root: SpanId,
    /// The task that allocated it.
    pub task: TaskRef,
    /// Allocation.
    pub start: MonotonicNs,
    /// First insertion into a queue above the driver's: the scheduler's, or without one the software queue of a device
    /// that was busy. None where it went to the driver directly.
    pub insert: Option<MonotonicNs>,
    /// First issue to the driver on its behalf: its own, or that of the flush that served it (it may ask for one before
    /// its data, or for nothing else). None where nothing had to be issued: a flush of a device without a cache.
    pub issue: Option<MonotonicNs>,
    /// Last completion.
    pub complete: MonotonicNs,
    /// The disk.
    pub device: DeviceId,
    /// First sector at issue, relative to the disk.
    pub sector: Sector,
    /// Bytes at issue, merges included.
    pub bytes: u32,
    /// Operation and flags.
    pub op: BlockOp,
    /// Success or failure.
    pub status: BlockStatus,
    /// Bios that it carried.
    pub bios: u16,
    /// Tag at issue.
    pub tag: Option<u32>,
    /// Allocated inside a plug of its task, where it waited for the task to ask for more.
    pub plugged: bool,
    /// Put back and issued again at least once.
    pub requeued: bool,
    /// Went through the flush machinery.
    pub flush_sequence: bool,
}

/// A bio and its request where they are one to one, as with nearly all direct I/O: `request.parent` is `bio.span`,
/// `bio.request` is `request.span`, and both ended at one time with one status. It says what a [`BioEvent`] and a
/// [`RequestEvent`] would, and passes every queue once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairEvent {
    /// The bio.
    pub bio: BioEvent,
    /// Its request.
    pub request: RequestEvent,
}

/// A journal commit: the root of what the journal's thread wrote for everybody who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitEvent {
    /// Its span and the root of its trace.
    pub span: SpanId,
    /// The journal's thread.
    pub task: TaskRef,
    /// Start.
    pub start: MonotonicNs,
    /// End.
    pub end: MonotonicNs,
    /// The file system's device.
    pub device: DeviceId,
    /// The transaction's number: with `device` the key to the calls that waited for it.
    pub tid: u32,
    /// Bios queued inside it.
    pub bios: u32,
}

/// Why a task is described again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskChange {
    /// First sight of it.
    Seen,
    /// A followed task forked it.
    Forked,
    /// It executes another program.
    Execed,
    /// Its name, user or cgroup changed.
    Changed,
    /// It ended.
    Exited,
}

/// A task as it is from `version` on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// When.
    pub time: MonotonicNs,
    /// Which task, which version.
    pub task: TaskRef,
    /// The task that forked it, where that was followed.
    pub parent: Option<TaskId>,
    /// Why.
    pub change: TaskChange,
    /// Thread id.
    pub tid: Tid,
    /// Process id.
    pub pid: Pid,
    /// Its parent's process id.
    pub ppid: Pid,
    /// Its user.
    pub uid: Uid,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// Its name at that moment.
    pub comm: Arc<str>,
    /// Its program; none for a kernel thread.
    pub exe: Option<FileId>,
    /// A thread of the kernel.
    pub kernel_thread: bool,
    /// What it is called in its own pid namespace, where that is not the initial one. Streams of daemons name it so; once they are
    /// put together nobody needs it, so it is in no saved state.
    #[serde(skip)]
    pub inner: Option<InnerTask>,
}

/// A task as its own pid namespace numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerTask {
    /// The namespace, by its inode (`/proc/PID/ns/pid`).
    pub pid_ns: u32,
    /// Process id there.
    pub pid: Pid,
    /// Thread id there.
    pub tid: Tid,
}

/// A file's path at the moment when it was opened or executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEvent {
    /// When.
    pub time: MonotonicNs,
    /// Which file.
    pub file: FileId,
    /// Its path from the host's root; it begins with `…/` when its upper part is missing.
    pub path: Arc<str>,
    /// Whether `path` is whole.
    pub kept: Kept,
    /// The file system's type (`ext4`, `tmpfs`, `pipefs` …).
    pub filesystem: Arc<str>,
    /// The device that a device file stands for.
    pub device_file: Option<DeviceId>,
    /// `st_mode`.
    pub mode: u32,
}

/// A block device's name, said when the device is first met (and again after it was replaced by another of the
/// same number).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEvent {
    /// When.
    pub time: MonotonicNs,
    /// Which device.
    pub device: DeviceId,
    /// Its name below /dev, `loop0`, `vda1`; its numbers where it has none any more.
    pub name: Box<str>,
    /// The disk of a partition.
    pub partition_of: Option<DeviceId>,
}
