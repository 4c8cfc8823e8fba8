//! Builders of events and traces for the tests of this crate. The tests in `tests/` include this
//! file by its path.

use std::sync::Arc;

use blkkin_aggregator::trace::interned_file::InternedFile;
use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{
    BioEvent, ContextSource, FileEvent, OpenFile, PairEvent, RequestEvent, SyscallEvent, TaskRef,
    TraceContext,
};
use blkkin_wire::ids::{
    BootId, DeviceId, Fd, FileId, NameId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId, TraceId,
};
use blkkin_wire::page_origin::{PageOriginEvent, PageWriter, Unattributed, WritebackReason, WriterEvidence};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::syscalls::SyscallId;

/// Task of all events.
pub(crate) const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };
/// Device of all block events.
pub(crate) const DEVICE: DeviceId = DeviceId { major: 7, minor: 0 };
/// Root of block events that set no other.
const ROOT: SpanId = SpanId(1);
const FILE: FileId = FileId { device: DEVICE, ino: 12, generation: 1, name: NameId::NONE };

/// Returns a trace without events.
pub(crate) fn empty(root: u64) -> Trace {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    Trace::new(source, ClockAnchor::NONE, SpanId(root))
}

/// Returns a call at time 0 that takes `time` ns.
pub(crate) fn call(span: u64, name: &str, time: u64) -> Trace {
    call_between(span, name, 0, time)
}

/// Returns a call on file descriptor 3.
pub(crate) fn call_between(span: u64, name: &str, enter: u64, exit: u64) -> Trace {
    let mut trace = empty(span);
    let id = SyscallId::by_name(name).unwrap();
    trace.root = Root::Call(SyscallEvent {
        args: [3, 0, 0, 0, 0, 0],
        ..SyscallEvent::bare(SpanId(span), TASK, id, MonotonicNs(enter), MonotonicNs(exit))
    });
    trace
}

/// Applies `change` to the call of a trace.
pub(crate) fn with_call(trace: &mut Trace, change: impl FnOnce(&mut SyscallEvent)) {
    if let Root::Call(call) = &mut trace.root {
        change(call);
    }
}

/// Returns the call on a file of this path and mode.
pub(crate) fn on_file(mut trace: Trace, path: &str, mode: u32) -> Trace {
    with_call(&mut trace, |call| {
        call.file = Some(OpenFile { fd: Fd(3), file: FILE, position_before: None, position_after: None });
    });
    trace.names.file = Some(file(path, mode));
    trace
}

/// Returns the name of a file.
pub(crate) fn file(path: &str, mode: u32) -> Arc<InternedFile> {
    let event = FileEvent { mode, ..FileEvent::bare(FILE, MonotonicNs(0), path) };
    Arc::new(event.into())
}

/// Returns a write of 4 KiB that the root submitted. Its request has the span id `span + 100`.
pub(crate) fn bio(span: u64, queue: u64, end: u64) -> BioEvent {
    let spans = [ROOT, SpanId(span), SpanId(span + 100)];
    BioEvent { sector: Sector(0), ..PairEvent::bare(spans, TASK, DEVICE, [queue, end].map(MonotonicNs)).bio }
}

/// Returns a write request of 4 KiB without a bio.
pub(crate) fn request(span: u64, start: u64, issue: Option<u64>, complete: u64) -> RequestEvent {
    let (spans, times) = ([ROOT, ROOT, SpanId(span)], [start, complete].map(MonotonicNs));
    let (issue, sector) = (issue.map(MonotonicNs), Sector(0));
    let request = PairEvent::bare(spans, TASK, DEVICE, times).request;
    RequestEvent { parent: None, issue, sector, tag: None, ..request }
}

/// Returns a trace whose root is a daemon span.
pub(crate) fn daemon_span(span: DaemonSpanEvent) -> Trace {
    let mut trace = empty(span.span.0);
    trace.id = span.trace;
    trace.root = Root::DaemonSpan(Box::new(span));
    trace
}

/// Adds the server's endpoint of an NBD request to the root of a trace.
pub(crate) fn with_server_endpoint(mut trace: Trace, connection: &str, cookie: u64) -> Trace {
    let key = RpcKey { protocol: "nbd".into(), connection: connection.into(), cookie };
    let times = [trace.start(), trace.end()];
    trace.rpc_endpoints = vec![RpcEndpointEvent::bare(trace.root_span, RpcSide::Server, key, times)];
    trace
}

/// Makes the call of a trace a child of `parent` in the trace `id`.
pub(crate) fn called_for(mut trace: Trace, id: TraceId, parent: SpanId, source: ContextSource) -> Trace {
    let context = TraceContext { trace: id, span: parent, flags: 0, source };
    with_call(&mut trace, |call| call.context = Some(context.into()));
    trace.id = id;
    trace
}

/// Returns the origin of the bio `span`, which is the root of its trace: 4 KiB of [`file`].
pub(crate) fn page_origin(span: u64, writers: Vec<PageWriter>) -> PageOriginEvent {
    PageOriginEvent {
        file: Some(FILE),
        offset: 8192,
        reason: Some(WritebackReason::Periodic),
        unattributed: Some(Unattributed::NotRecorded),
        ..PageOriginEvent::bare([SpanId(span); 2], MonotonicNs(1), 4096, writers)
    }
}

/// Returns a writer: a call of [`TASK`] that ended at `dirtied`.
pub(crate) fn page_writer(span: u64, dirtied: u64, bytes: u32) -> PageWriter {
    PageWriter {
        trace: TraceId(span.into()),
        span: SpanId(span),
        task: TASK,
        dirtied: MonotonicNs(dirtied),
        bytes,
        evidence: WriterEvidence::EndedBefore,
    }
}
