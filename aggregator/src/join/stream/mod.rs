//! The join of one source.
//!
//! *In*: the source's batches, as events in canonical order after [`Window`]. *Out*: traces.
//!
//! *Invariant*: the current time is that of the current event. Timeouts (an inactive trace, a
//! commit's decision) run before the first event at or after their time. So the cut into batches
//! does not matter.
//!
//! *Rejected*: timeouts after each batch. The result would depend on where the batches were cut.

use std::hash::BuildHasherDefault;

use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{
    BioEvent, CommitEvent, FaultEvent, LayerEvent, PairEvent, RequestEvent, Submitter, SyscallEvent,
};
use blkkin_wire::ids::{BootId, NodeId, Source, SpanId, StartEpoch, TraceId};
use blkkin_wire::page_origin::PageOriginEvent;
use blkkin_wire::remote_link::RpcEndpointEvent;
use serde::{Deserialize, Serialize};

use super::commits::{CommitWait, Commits};
use super::config::JoinConfig;
use super::generational_cache::GenerationalCache;
use super::names::{NameTable, NameUpdate};
use super::open::{ClosedTrace, OpenTraces, Slot};
use super::sink::StatsSink;
use super::window::Window;
use crate::trace::async_io::AsyncIo;
use crate::trace::id_map::PassThrough;
use crate::trace::{MergeLink, Root, Trace, WaitLink};

mod closing;
mod continuity;

use continuity::Continuity;
pub(super) use continuity::{Arrival, fingerprint};

/// Maximum number of remembered requests with more than one bio. A request's record is written just
/// before those of the bios that it ended. So a few hundred suffice, also on a machine with many
/// CPUs.
const MERGED_REQUESTS_MAX: usize = 8_192;

/// Maximum number of remembered roots whose trace was closed incomplete, to detect late parts.
/// These are rare; as many as may be open.
const CLOSED_MAX: usize = 65_536;

/// Maximum number of remembered calls with I/O, or with data for later I/O, that belong to an
/// application's trace. Links to them need the trace id. As for requests, only calls that just ended
/// are looked up. A writer is looked up later; the tracer names its trace, unless a daemon's event
/// did.
const APPLICATION_TRACES_MAX: usize = 65_536;

type SpanCache<V> = GenerationalCache<SpanId, V, BuildHasherDefault<PassThrough>>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stream {
    source: Source,
    #[serde(skip)]
    config: JoinConfig,
    anchor: ClockAnchor,
    continuity: Continuity,
    watermark: MonotonicNs,
    now: MonotonicNs,
    /// True once the source has reported an RPC endpoint. From then on a call without bios may have
    /// an open trace before it arrives.
    has_rpc_endpoints: bool,
    /// No timeout is due before this time.
    deadline: MonotonicNs,
    window: Window,
    names: NameTable,
    open: OpenTraces,
    /// Storage for a trace that is complete at once. It is empty between two events.
    #[serde(skip, default = "empty_trace")]
    scratch_trace: Trace,
    commits: Commits,
    merged_requests: SpanCache<RequestEvent>,
    closed: SpanCache<ClosedTrace>,
    /// Trace ids of calls that were made for a span of an application.
    application_traces: SpanCache<TraceId>,
}

impl Stream {
    pub(super) fn new(source: Source, config: JoinConfig) -> Self {
        let (zero, anchor) = (MonotonicNs::default(), no_anchor());
        Stream {
            source,
            anchor,
            scratch_trace: empty_trace(),
            continuity: Continuity::default(),
            watermark: zero,
            now: zero,
            has_rpc_endpoints: false,
            deadline: MonotonicNs(u64::MAX),
            window: Window::new(config.window_max),
            names: NameTable::new(config.files_max, config.tasks_max, config.name_retention()),
            open: OpenTraces::new(),
            commits: Commits::new(config.commit_grace, config.commits_max),
            merged_requests: GenerationalCache::new(MERGED_REQUESTS_MAX),
            closed: GenerationalCache::new(CLOSED_MAX),
            application_traces: GenerationalCache::new(APPLICATION_TRACES_MAX),
            config,
        }
    }

    /// Sets the limits. They are not part of a snapshot.
    pub(super) fn set_limits(&mut self, config: &JoinConfig) {
        self.window.set_limits(config);
        self.names.set_limits(config);
        self.commits.set_limits(config);
        self.merged_requests.set_max(MERGED_REQUESTS_MAX);
        self.closed.set_max(CLOSED_MAX);
        self.application_traces.set_max(APPLICATION_TRACES_MAX);
        self.config = config.clone();
    }

    pub(super) fn drop_caches(&mut self) {
        self.open.drop_device_names();
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Returns how the batch relates to the earlier ones.
    pub(super) fn receive(&mut self, batch: &EventBatch) -> Arrival {
        self.continuity.receive(batch)
    }

    /// Marks the source as claimed by two agents.
    pub(super) fn contest(&mut self) {
        self.continuity.contest();
    }

    /// Joins the next batch.
    pub(super) fn apply(&mut self, batch: EventBatch, sink: &mut StatsSink<'_>) {
        sink.stats.clock_set_back += u64::from(is_set_back(&self.anchor, &batch.anchor));
        self.anchor = batch.anchor;
        for event in &batch.events {
            sink.stats.receive(event);
        }
        let admitted = self.window.admit(batch.events, batch.watermark);
        let behind = admitted.events.partition_point(|event| event.time() < self.watermark);
        // Both arrive late in an orderly stream: names that a flight recorder sends again, and origins of pages.
        let in_order = |event: &&LayerEvent| !event.is_name() && !matches!(event, LayerEvent::PageOrigin(_));
        // So does each part of an operation that its source deferred until the last part ended.
        let stats = &batch.stats;
        let may_defer = stats.calls_unsampled + stats.kept_slow + stats.kept_failed + stats.kept_large > 0;
        if !may_defer {
            sink.stats.behind_watermark += admitted.events[..behind].iter().filter(in_order).count() as u64;
        }
        sink.stats.ahead_of_window += admitted.forced as u64;
        self.watermark = self.watermark.max(batch.watermark);
        for event in admitted.events {
            self.process(event, sink);
        }
        self.expire(self.watermark, sink);
        if self.watermark == MonotonicNs(u64::MAX) && self.open.len() == 0 {
            self.release();
        }
    }

    /// Releases memory of a source that has marked its end: no call of it that could refer to a commit
    /// or a merged request follows. Names, and the roots of incomplete traces, stay for late parts.
    fn release(&mut self) {
        self.open = OpenTraces::new();
        self.scratch_trace = empty_trace();
        self.commits = Commits::new(self.config.commit_grace, self.config.commits_max);
        self.merged_requests = GenerationalCache::new(MERGED_REQUESTS_MAX);
    }

    pub(super) fn finish(&mut self, sink: &mut StatsSink<'_>) {
        for event in self.window.drain() {
            self.process(event, sink);
        }
        for key in self.commits.keys() {
            self.settle(key, sink);
        }
        while let Some((slot, _)) = self.open.oldest() {
            self.close(slot, sink);
        }
    }

    fn process(&mut self, event: LayerEvent, sink: &mut StatsSink<'_>) {
        let time = event.time();
        if time >= self.deadline {
            self.expire(time, sink);
        }
        self.now = self.now.max(time);
        match event {
            LayerEvent::Syscall(call) => self.call(call, sink),
            LayerEvent::Bio(bio) => self.bio(bio, sink),
            LayerEvent::Request(request) => self.request(request, sink),
            LayerEvent::Pair(pair) => self.pair(pair, sink),
            LayerEvent::AsyncIo(io) => self.async_io(io, sink),
            LayerEvent::Commit(commit) => self.commit(commit, sink),
            LayerEvent::Fault(fault) => self.fault(fault, sink),
            LayerEvent::Dirty(_) => {}
            LayerEvent::RpcEndpoint(endpoint) => self.rpc_endpoint(*endpoint, sink),
            LayerEvent::DaemonSpan(daemon_span) => self.daemon_span(daemon_span, sink),
            LayerEvent::PageOrigin(origin) => self.page_origin(*origin, sink),
            LayerEvent::File(file) => self.names.file(file),
            LayerEvent::Device(device) => {
                let dropped = self.names.device(device) == NameUpdate::Dropped;
                sink.stats.names_dropped += u64::from(dropped);
            }
            LayerEvent::ProcessContext(process) => self.names.process(*process),
            LayerEvent::VirtualMachine(machine) => self.names.virtual_machine(*machine),
            LayerEvent::Task(task) => {
                let dropped = self.names.task(task) == NameUpdate::Dropped;
                sink.stats.names_dropped += u64::from(dropped);
            }
        }
    }

    fn call(&mut self, call: SyscallEvent, sink: &mut StatsSink<'_>) {
        let names = self.names.of_call(&call);
        let endpoint = self.has_rpc_endpoints && self.open.find(call.span).is_some();
        if call.bios == 0 && !endpoint && !self.commits.awaits_undecided(&call) {
            let waited = self.commits.wait(&call);
            if call.writes_page_cache
                && let Some(context) = &call.context
            {
                self.application_traces.insert(call.span, context.trace);
            }
            self.scratch_trace.reset(self.source, self.anchor, call.span);
            self.scratch_trace.set_root(Root::Call(call), names);
            self.scratch_trace.waited_for.extend(late_wait_link(waited));
            return sink.emit(&mut self.scratch_trace);
        }
        // The slot comes first. To make room for it may decide this very commit, which must not
        // choose a call without a slot.
        let slot = self.slot(call.span, sink);
        let waited = self.commits.wait(&call);
        let open = self.open.get(slot);
        open.trace.set_root(Root::Call(call), names);
        if let Some(context) = open.trace.context() {
            self.application_traces.insert(open.trace.root_span, context.trace);
        }
        match waited {
            CommitWait::Undecided(key) => open.awaited_commit = Some(key),
            waited => open.trace.waited_for.extend(late_wait_link(waited)),
        }
        self.close_if_complete(slot, sink);
    }

    fn bio(&mut self, bio: BioEvent, sink: &mut StatsSink<'_>) {
        let slot = self.slot(bio.root, sink);
        let link = self.merge_link(&bio);
        let open = self.open.get(slot);
        open.trace.merged_into.extend(link);
        if bio.submitter == Submitter::Kernel && bio.root == bio.span {
            open.trace.root = Root::Kernel;
            open.trace.names = self.names.of_task(bio.task);
        }
        open.add_bio(bio);
        self.close_if_complete(slot, sink);
    }

    fn request(&mut self, request: RequestEvent, sink: &mut StatsSink<'_>) {
        if request.bios > 1 {
            self.merged_requests.insert(request.span, request);
        }
        if request.parent.is_none() {
            // No traced task submitted it.
            self.scratch_trace.reset(self.source, self.anchor, request.span);
            (self.scratch_trace.root, self.scratch_trace.names) =
                (Root::Kernel, self.names.of_task(request.task));
            self.scratch_trace.requests.push(request);
            self.take_rpc_endpoints(request.span);
            return sink.emit(&mut self.scratch_trace);
        }
        let slot = self.slot(request.root, sink);
        self.open.get(slot).add_request(request);
        self.close_if_complete(slot, sink);
    }

    fn pair(&mut self, pair: PairEvent, sink: &mut StatsSink<'_>) {
        let PairEvent { bio, request } = pair;
        let slot = self.slot(bio.root, sink);
        let open = self.open.get(slot);
        if bio.submitter == Submitter::Kernel && bio.root == bio.span {
            open.trace.root = Root::Kernel;
            open.trace.names = self.names.of_task(bio.task);
        }
        open.add_pair(bio, request);
        self.close_if_complete(slot, sink);
    }

    /// Adds an origin to the trace of its bio, before or after the bio. It may arrive late, so it is
    /// no sign of activity: the inactivity timeout does not depend on when it arrives.
    fn page_origin(&mut self, origin: PageOriginEvent, sink: &mut StatsSink<'_>) {
        let slot = match self.open.find(origin.root) {
            Some(slot) => slot,
            None => self.slot(origin.root, sink),
        };
        let open = self.open.get(slot);
        self.names.of_page_origin(&origin, &mut open.trace.origin_names);
        open.add_page_origin(origin);
        self.close_if_complete(slot, sink);
    }

    fn async_io(&mut self, event: AsyncIoEvent, sink: &mut StatsSink<'_>) {
        let file = event.file.and_then(|file| self.names.file_named(file));
        let slot = self.slot(event.root(), sink);
        let open = self.open.get(slot);
        if event.submitter.is_none() {
            (open.trace.root, open.trace.names) = (Root::AsyncIo, self.names.of_task(event.task));
            open.trace.names.file = file.clone();
        }
        open.add_async_io(AsyncIo { event, file });
        self.close_if_complete(slot, sink);
    }

    fn commit(&mut self, commit: CommitEvent, sink: &mut StatsSink<'_>) {
        while let Some(key) = self.commits.evicted_by(&commit) {
            self.settle(key, sink);
            self.commits.forget(key);
        }
        self.commits.insert(&commit);
        self.update_deadline();
        let names = self.names.of_task(commit.task);
        let slot = self.slot(commit.span, sink);
        let open = self.open.get(slot);
        (open.trace.root, open.trace.names) = (Root::Commit(commit), names);
        self.close_if_complete(slot, sink);
    }

    fn fault(&mut self, fault: FaultEvent, sink: &mut StatsSink<'_>) {
        let names = self.names.of_fault(&fault);
        let slot = self.slot(fault.span, sink);
        let open = self.open.get(slot);
        open.trace.set_root(Root::Fault(fault), names);
        if let Some(context) = open.trace.context() {
            self.application_traces.insert(open.trace.root_span, context.trace);
        }
        self.close_if_complete(slot, sink);
    }

    /// Emits a daemon span at once. The work done for it is in traces of their own, with its trace
    /// id.
    #[cold]
    fn daemon_span(&mut self, daemon_span: Box<DaemonSpanEvent>, sink: &mut StatsSink<'_>) {
        self.scratch_trace.reset(self.source, self.anchor, daemon_span.span);
        self.take_rpc_endpoints(daemon_span.span);
        let names = self.names.of_process(daemon_span.pid);
        self.scratch_trace.set_root(Root::DaemonSpan(daemon_span), names);
        sink.emit(&mut self.scratch_trace);
    }

    /// Moves the RPC endpoints that arrived before this root into the scratch trace.
    fn take_rpc_endpoints(&mut self, root: SpanId) {
        if self.has_rpc_endpoints
            && let Some(slot) = self.open.find(root)
        {
            self.scratch_trace.rpc_endpoints.append(&mut self.open.get(slot).trace.rpc_endpoints);
            self.open.end(slot, root);
        }
    }

    /// Adds an RPC endpoint to its root's trace, which it precedes.
    #[cold]
    fn rpc_endpoint(&mut self, endpoint: RpcEndpointEvent, sink: &mut StatsSink<'_>) {
        self.has_rpc_endpoints = true;
        let slot = self.slot(endpoint.root, sink);
        self.open.get(slot).trace.rpc_endpoints.push(endpoint);
        self.close_if_complete(slot, sink);
    }

    /// Returns the link to the request of another trace into which `bio` was merged.
    fn merge_link(&self, bio: &BioEvent) -> Option<MergeLink> {
        let request = *self.merged_requests.peek(&bio.request.filter(|_| !bio.first)?)?;
        let mut link = MergeLink { bio: bio.span, trace: None, request };
        link.trace = self.trace_of(link.root());
        (link.root() != bio.root).then_some(link)
    }

    /// Returns the id of the trace that began at `root`, or none if it is not known yet. The first
    /// call that names a context may arrive too late for a bio that was merged into its request.
    /// From that call on such traces are expected.
    fn trace_of(&self, root: SpanId) -> Option<TraceId> {
        let derived = Some(self.source.trace_id(root));
        if self.application_traces.is_empty() {
            return derived;
        }
        match self.open.find(root).map(|slot| &self.open.peek(slot).trace) {
            Some(trace) if matches!(trace.root, Root::Missing) => None,
            Some(trace) => Some(trace.id),
            None => self.application_traces.peek(&root).copied().or(derived),
        }
    }

    /// Returns the open trace of `root`, opens it if needed, and records its activity.
    fn slot(&mut self, root: SpanId, sink: &mut StatsSink<'_>) -> Slot {
        if let Some(slot) = self.open.find(root) {
            self.open.touch(slot, self.now);
            return slot;
        }
        if self.open.len() >= self.config.open_max
            && let Some((oldest, _)) = self.open.oldest()
        {
            sink.stats.closed_for_room += 1;
            self.close(oldest, sink);
        }
        let slot = self.open.begin(self.source, self.anchor, root, self.now);
        if let Some(closed) = self.closed.peek(&root) {
            self.open.get(slot).resume(*closed);
        }
        self.update_deadline();
        slot
    }
}

/// Returns whether the wall clock was set back between two anchors of a source. The join uses the
/// monotonic clock, which cannot be set back. Each trace is shown by one anchor, so nothing within
/// a trace moves.
fn is_set_back(previous: &ClockAnchor, now: &ClockAnchor) -> bool {
    let offset = |anchor: &ClockAnchor| i128::from(anchor.wallclock.0) - i128::from(anchor.monotonic.0);
    let uncertainty = i128::from(previous.uncertainty.0) + i128::from(now.uncertainty.0);
    offset(now) + uncertainty < offset(previous)
}

fn no_anchor() -> ClockAnchor {
    let (monotonic, wallclock) = (MonotonicNs::default(), WallclockNs::default());
    ClockAnchor { monotonic, wallclock, uncertainty: DurationNs::default(), ..ClockAnchor::NONE }
}

fn empty_trace() -> Trace {
    let source = Source { node: NodeId(0), boot: BootId(0), epoch: StartEpoch(0) };
    Trace::new(source, no_anchor(), SpanId(0))
}

fn late_wait_link(waited: CommitWait) -> Option<WaitLink> {
    match waited {
        CommitWait::Decided(trace) => Some(WaitLink { trace, primary: false }),
        CommitWait::None | CommitWait::Undecided(_) => None,
    }
}
