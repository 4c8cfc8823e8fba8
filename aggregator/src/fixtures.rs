//! Event builders for tests: valid events with the minimum of content.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{
    BioEvent, BlockOp, CommitEvent, ContextSource, DeviceEvent, FaultEvent, FileEvent, LayerEvent, OpenFile,
    PairEvent, RequestEvent, Submitter, SyscallEvent, SyscallOutcome, TaskEvent, TaskRef, TraceContext,
};
use blkkin_wire::ids::{
    BootId, DeviceId, Fd, FileId, NameId, NodeId, Pid, Sector, Source, SpanId, StartEpoch, TaskId, Tid,
    TraceId,
};
use blkkin_wire::page_origin::{PageOriginEvent, PageWriter, WritebackReason, WriterEvidence};
use blkkin_wire::process_context::{Attribute, AttributeValue, ProcessContextEvent};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::SpanKind;
use blkkin_wire::syscalls::SyscallId;
use blkkin_wire::virtual_machine::VirtualMachineEvent;

use crate::trace::{Root, Trace};

pub(crate) const SOURCE: Source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
pub(crate) const ANCHOR: ClockAnchor = ClockAnchor {
    monotonic: MonotonicNs(0),
    wallclock: WallclockNs(1_700_000_000_000_000_000),
    uncertainty: DurationNs(100),
    ..ClockAnchor::NONE
};
/// Trace id of all daemon spans of [`daemon_span_event`].
pub(crate) const DAEMON_TRACE: TraceId = TraceId(0xda << 64 | 0xe0);
pub(crate) const DISK: DeviceId = DeviceId { major: 7, minor: 0 };
pub(crate) const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };

pub(crate) fn trace(root: u64) -> Trace {
    Trace::new(SOURCE, ANCHOR, SpanId(root))
}

/// Process context of the process of [`TASK`].
pub(crate) fn process_context(time: u64, name: &str) -> ProcessContextEvent {
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

/// Returns the virtual machine of task 1's process.
pub(crate) fn virtual_machine(time: u64, name: &str) -> VirtualMachineEvent {
    let uuid = "11111111-2222-3333-4444-555555555555";
    VirtualMachineEvent::bare(MonotonicNs(time), task(1, 0, 0, "").pid, name, uuid)
}

/// Returns a daemon span. All of them belong to one trace.
pub(crate) fn daemon_span_event(span: u64, parent: Option<u64>, (begin, end): (u64, u64)) -> LayerEvent {
    let daemon_span_event = DaemonSpanEvent {
        parent: parent.map(SpanId),
        kind: SpanKind::Server,
        name: "NBD read".into(),
        service: "blkkin-nbd".into(),
        pid: Pid(900),
        tid: Tid(901),
        ..DaemonSpanEvent::bare(SpanId(span), DAEMON_TRACE, MonotonicNs(begin), MonotonicNs(end))
    };
    LayerEvent::DaemonSpan(daemon_span_event.into())
}

/// Returns a trace whose root is a daemon span of service `one`, with trace id `span`.
pub(crate) fn daemon_span_trace(span: u64, kind: SpanKind, (begin, end): (u64, u64)) -> Trace {
    let event = DaemonSpanEvent {
        kind,
        name: "nbd read".into(),
        service: "one".into(),
        ..DaemonSpanEvent::bare(SpanId(span), TraceId(span.into()), MonotonicNs(begin), MonotonicNs(end))
    };
    Trace { id: event.trace, root: Root::DaemonSpan(event.into()), ..trace(span) }
}

/// Returns a trace whose root is a call without bios.
pub(crate) fn call_trace(span: u64, times: (u64, u64)) -> Trace {
    Trace { root: Root::Call(call_with(span, times, 0)), ..trace(span) }
}

/// Returns an endpoint of NBD request `cookie`, with a repeated cookie. Its span is a root.
pub(crate) fn rpc_endpoint(
    span: u64,
    side: RpcSide,
    cookie: u64,
    (begin, end): (u64, u64),
) -> RpcEndpointEvent {
    let key = RpcKey { protocol: "nbd".into(), connection: "a>b".into(), cookie };
    RpcEndpointEvent::bare(SpanId(span), side, key, [begin, end].map(MonotonicNs))
}

pub(crate) fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: u64) -> EventBatch {
    let (source, anchor, watermark) = (SOURCE, ANCHOR, MonotonicNs(watermark));
    EventBatch { source, sequence, anchor, events, watermark, ..EventBatch::tick() }
}

/// Returns a pwrite64 without bios.
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

/// Returns a thread context.
pub(crate) fn thread_context(trace: u128, span: u64) -> Option<Box<TraceContext>> {
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

/// Returns an fdatasync that requires the commit of transaction `tid`.
pub(crate) fn fsync_call(span: u64, (enter, exit): (u64, u64), tid: u32) -> SyscallEvent {
    SyscallEvent {
        call: SyscallId::by_name("fdatasync").unwrap(),
        args: [3, 0, 0, 0, 0, 0],
        outcome: SyscallOutcome::Returned(0),
        file: Some(open_file(3, 12)),
        sleeps: 1,
        sync_tid: Some(tid),
        ..call(span, enter, exit)
    }
}

pub(crate) fn open_file(fd: i32, ino: u64) -> OpenFile {
    OpenFile { fd: Fd(fd), file: file_id(ino), position_before: None, position_after: None }
}

pub(crate) fn file_id(ino: u64) -> FileId {
    FileId { device: DISK, ino, generation: 1, name: NameId::NONE }
}

pub(crate) fn file(file: FileId, time: u64, path: &str) -> FileEvent {
    FileEvent::bare(file, MonotonicNs(time), path)
}

pub(crate) fn device(time: u64, name: &str) -> DeviceEvent {
    DeviceEvent { time: MonotonicNs(time), device: DISK, name: name.into(), partition_of: None, disk: None }
}

pub(crate) fn task(id: u64, version: u16, time: u64, comm: &str) -> TaskEvent {
    let task = TaskRef { id: TaskId(id), version };
    TaskEvent { tid: Tid(100 + id as u32), ..TaskEvent::bare(task, MonotonicNs(time), comm) }
}

/// Returns a bio of `root` and its request, both from `queue` to `end`.
pub(crate) fn bio_and_request(
    root: u64,
    bio: u64,
    request: u64,
    (queue, end): (u64, u64),
) -> (BioEvent, RequestEvent) {
    let (spans, times) = ([root, bio, request].map(SpanId), [queue, end].map(MonotonicNs));
    let PairEvent { bio, request } = PairEvent::bare(spans, TASK, DISK, times);
    (bio, RequestEvent { issue: Some(MonotonicNs(queue + (end - queue) / 2)), ..request })
}

/// Returns a passthrough request that `root` sent.
pub(crate) fn passthrough_request(root: u64, request: u64, times: (u64, u64)) -> RequestEvent {
    let (_, event) = bio_and_request(root, root, request, times);
    RequestEvent { op: BlockOp(34), sector: Sector(u64::MAX), bytes: 96, bios: 0, ..event }
}

/// Returns a bio that is the root of its trace, with its request.
pub(crate) fn kernel_bio(bio: u64, request: u64, times: (u64, u64)) -> (BioEvent, RequestEvent) {
    let (bio, request) = bio_and_request(bio, bio, request, times);
    (BioEvent { submitter: Submitter::Kernel, ..bio }, request)
}

pub(crate) fn commit(span: u64, (start, end): (u64, u64), tid: u32, bios: u32) -> CommitEvent {
    let (task, times) = (TaskRef { id: TaskId(9), version: 0 }, [start, end].map(MonotonicNs));
    CommitEvent { bios, ..CommitEvent::bare(SpanId(span), task, DISK, tid, times) }
}

/// Returns the origin of a bio that writes 4 KiB of file 12, all of it by `writers`.
pub(crate) fn page_origin(bio: &BioEvent, writers: Vec<PageWriter>) -> PageOriginEvent {
    PageOriginEvent {
        file: Some(file_id(12)),
        offset: 8192,
        reason: Some(WritebackReason::Periodic),
        ..PageOriginEvent::bare([bio.root, bio.span], bio.queue, bio.bytes, writers)
    }
}

/// Returns a writer: the call `span` of [`TASK`], which ended at `dirtied`.
pub(crate) fn page_writer(span: u64, dirtied: u64, bytes: u32) -> PageWriter {
    PageWriter {
        trace: SOURCE.trace_id(SpanId(span)),
        span: SpanId(span),
        task: TASK,
        dirtied: MonotonicNs(dirtied),
        bytes,
        evidence: WriterEvidence::EndedBefore,
    }
}

pub(crate) fn fault(span: u64, (begin, end): (u64, u64), bios: u32) -> FaultEvent {
    let task = TaskRef { id: TaskId(1), version: 0 };
    FaultEvent { bios, ..FaultEvent::bare(SpanId(span), task, MonotonicNs(begin), MonotonicNs(end)) }
}
