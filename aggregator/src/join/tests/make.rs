//! Events for tests: the least that is a true event.

use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, Captured, CommitEvent, ContextSource, DeviceEvent, FileEvent, LayerEvent,
    OpenFile, RequestEvent, Submitter, SyscallEvent, SyscallOutcome, TaskChange, TaskEvent, TaskRef,
    TraceContext,
};
use blkkin_wire::ids::{
    BootId, CgroupId, DeviceId, Fd, FileId, NodeId, Pid, Sector, Source, SpanId, StartEpoch, TaskId, Tid,
    TraceId, Uid,
};
use blkkin_wire::process_context::{Attribute, AttributeValue, ProcessContextEvent};
use blkkin_wire::span::SpanKind;
use blkkin_wire::syscalls::SyscallId;

use crate::trace::Trace;

pub(crate) const SOURCE: Source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
pub(crate) const ANCHOR: ClockAnchor = ClockAnchor {
    monotonic: MonotonicNs(0),
    wallclock: WallclockNs(1_700_000_000_000_000_000),
    uncertainty: DurationNs(100),
    ..ClockAnchor::NONE
};
/// The trace of [`operation`]s.
pub(crate) const OPERATIONS: TraceId = TraceId(0xda << 64 | 0xe0);
pub(crate) const DISK: DeviceId = DeviceId { major: 7, minor: 0 };
pub(crate) const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };

pub(crate) fn trace(root: u64) -> Trace {
    Trace::new(SOURCE, ANCHOR, SpanId(root))
}

/// What the process of [`TASK`] says of itself.
pub(crate) fn process(time: u64, name: &str) -> ProcessContextEvent {
    let attributes = vec![
        Attribute { key: "service.name".into(), value: AttributeValue::Text(name.into()) },
        Attribute { key: "shard".into(), value: AttributeValue::Number(7) },
    ];
    ProcessContextEvent {
        time: MonotonicNs(time),
        pid: task(1, 0, 0, "").pid,
        attributes,
        dropped_attributes_count: 1,
        thread_keys: Vec::new(),
    }
}

/// A daemon's operation; all of them here are of one trace.
pub(crate) fn operation(span: u64, parent: Option<u64>, (begin, end): (u64, u64)) -> LayerEvent {
    let operation = DaemonSpanEvent {
        parent: parent.map(SpanId),
        kind: SpanKind::Server,
        name: "NBD read".into(),
        service: "blkkin-nbd".into(),
        pid: Pid(900),
        tid: Tid(901),
        ..DaemonSpanEvent::bare(SpanId(span), OPERATIONS, MonotonicNs(begin), MonotonicNs(end))
    };
    LayerEvent::DaemonSpan(operation.into())
}

pub(crate) fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: u64) -> EventBatch {
    let (source, anchor, watermark) = (SOURCE, ANCHOR, MonotonicNs(watermark));
    EventBatch {
        source,
        sequence,
        anchor,
        events,
        watermark,
        stats: SourceStats::default(),
        crashed_runs: Vec::new(),
    }
}

/// A pwrite64 without bios.
pub(crate) fn call(span: u64, enter: u64, exit: u64) -> SyscallEvent {
    SyscallEvent {
        args: [3, 0x7f00, 4096, 8192, 0, 0],
        outcome: SyscallOutcome::Returned(4096),
        ..SyscallEvent::bare(
            SpanId(span),
            TASK,
            SyscallId::by_name("pwrite64").unwrap(),
            MonotonicNs(enter),
            MonotonicNs(exit),
        )
    }
}

/// What a thread says of its span.
pub(crate) fn context(trace: u128, span: u64) -> Option<Box<TraceContext>> {
    Some(Box::new(TraceContext {
        trace: TraceId(trace),
        span: SpanId(span),
        flags: 1,
        source: ContextSource::ThreadContext,
    }))
}

pub(crate) fn call_with(span: u64, (enter, exit): (u64, u64), bios: u32) -> SyscallEvent {
    SyscallEvent { bios, sleeps: bios, ..call(span, enter, exit) }
}

/// An fdatasync that had to see transaction `tid`.
pub(crate) fn sync(span: u64, (enter, exit): (u64, u64), tid: u32) -> SyscallEvent {
    SyscallEvent {
        call: SyscallId::by_name("fdatasync").unwrap(),
        args: [3, 0, 0, 0, 0, 0],
        outcome: SyscallOutcome::Returned(0),
        file: Some(open_file(3, 12)),
        sleeps: 1,
        cpu_wait: None,
        sync_tid: Some(tid),
        ..call(span, enter, exit)
    }
}

pub(crate) fn open_file(fd: i32, ino: u64) -> OpenFile {
    OpenFile { fd: Fd(fd), file: file_id(ino), position_before: None, position_after: None }
}

pub(crate) fn file_id(ino: u64) -> FileId {
    FileId { device: DISK, ino, generation: 1 }
}

pub(crate) fn file(file: FileId, time: u64, path: &str) -> FileEvent {
    FileEvent {
        time: MonotonicNs(time),
        file,
        path: path.into(),
        captured: Captured::Full,
        filesystem: "ext4".into(),
        device_file: None,
        mode: 0o100_644,
    }
}

pub(crate) fn device(time: u64, name: &str) -> DeviceEvent {
    DeviceEvent { time: MonotonicNs(time), device: DISK, name: name.into(), partition_of: None }
}

pub(crate) fn task(id: u64, version: u16, time: u64, comm: &str) -> TaskEvent {
    TaskEvent {
        time: MonotonicNs(time),
        task: TaskRef { id: TaskId(id), version },
        parent: None,
        change: TaskChange::Discovered,
        tid: Tid(100 + id as u32),
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

/// A bio of `root` and the request made for it, both from `queue` to `end`.
pub(crate) fn direct(
    root: u64,
    bio: u64,
    request: u64,
    (queue, end): (u64, u64),
) -> (BioEvent, RequestEvent) {
    let op = BlockOp(1);
    let bio = BioEvent {
        span: SpanId(bio),
        submitter: Submitter::Span(SpanId(root)),
        root: SpanId(root),
        task: TASK,
        request: Some(SpanId(request)),
        first: true,
        split: false,
        queue: MonotonicNs(queue),
        end: MonotonicNs(end),
        device: DISK,
        sector: Sector(8),
        bytes: 4096,
        op,
        status: BlockStatus(0),
    };
    let request = RequestEvent {
        span: SpanId(request),
        parent: Some(bio.span),
        root: bio.root,
        task: TASK,
        start: MonotonicNs(queue),
        insert: None,
        issue: Some(MonotonicNs(queue + (end - queue) / 2)),
        complete: MonotonicNs(end),
        device: DISK,
        sector: Sector(8),
        bytes: 4096,
        op,
        status: BlockStatus(0),
        bios: 1,
        tag: Some(5),
        plugged: false,
        requeued: false,
        flush_sequence: false,
    };
    (bio, request)
}

/// A driver's command that `root` sent.
pub(crate) fn command(root: u64, request: u64, times: (u64, u64)) -> RequestEvent {
    let (_, event) = direct(root, root, request, times);
    RequestEvent { op: BlockOp(34), sector: Sector(u64::MAX), bytes: 96, bios: 0, ..event }
}

/// A bio that is the root of its trace, with its request.
pub(crate) fn kernel(bio: u64, request: u64, times: (u64, u64)) -> (BioEvent, RequestEvent) {
    let (bio, request) = direct(bio, bio, request, times);
    (BioEvent { submitter: Submitter::Kernel, ..bio }, request)
}

pub(crate) fn commit(span: u64, (start, end): (u64, u64), tid: u32, bios: u32) -> CommitEvent {
    CommitEvent {
        span: SpanId(span),
        task: TaskRef { id: TaskId(9), version: 0 },
        start: MonotonicNs(start),
        end: MonotonicNs(end),
        device: DISK,
        tid,
        bios,
    }
}
