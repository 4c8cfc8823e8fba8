//! The join of one source's events.
//!
//! *In*: that source's batches; behind [`Window`], events in canonical order. *Out*: traces.
//! *Invariant*: time is that of the event in hand. What is due (a quiet trace, a commit's decision) is done before
//! the first event at or after its time, so where batches are cut does not matter.

use std::hash::BuildHasherDefault;
use std::sync::Arc;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{
    BioEvent, CommitEvent, LayerEvent, PairEvent, RequestEvent, Submitter, SyscallEvent,
};
use blkkin_wire::ids::{BootId, NodeId, Source, SpanId, StartEpoch, TraceId};
use blkkin_wire::remote_link::RpcEndpointEvent;
use serde::{Deserialize, Serialize};

use super::commits::{Commits, Waited};
use super::config::JoinConfig;
use super::hash::PassThrough;
use super::names::{NameTable, Taken};
use super::open::{Before, OpenTraces, Slot};
use super::recent::Recent;
use super::sink::Sink;
use super::window::Window;
use crate::trace::{Carried, Cause, Names, Root, Trace};

mod closing;

/// Requests remembered that carried more than one bio. A request's record is written just before those of the
/// bios that it ended: a few hundred would do, on a machine of many CPUs too.
const CARRIERS_MAX: usize = 8_192;

/// Roots remembered whose trace was closed incomplete, to know what comes late. Rare; as many as may be open.
const CLOSED_MAX: usize = 65_536;

/// Calls with I/O remembered that belong to an application's trace, to link to what they carried of others' calls: as with the
/// requests themselves, those that ended just before are asked for.
const CONTEXTS_MAX: usize = 65_536;

type RecentSpans<V> = Recent<SpanId, V, BuildHasherDefault<PassThrough>>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stream {
    source: Source,
    #[serde(skip)]
    config: JoinConfig,
    anchor: ClockAnchor,
    next_sequence: Option<u64>,
    watermark: MonotonicNs,
    now: MonotonicNs,
    /// It has told of a request to or from another node: from then on a call without bios may be open before it comes.
    meets: bool,
    /// Nothing is due before.
    deadline: MonotonicNs,
    window: Window,
    names: NameTable,
    open: OpenTraces,
    /// A trace that is complete as soon as it begins: nothing is in it between two events.
    #[serde(skip, default = "nothing_yet")]
    single: Trace,
    commits: Commits,
    carriers: RecentSpans<RequestEvent>,
    closed: RecentSpans<Before>,
    /// Calls that were made for a span of an application's, and its trace.
    contexts: RecentSpans<TraceId>,
}

impl Stream {
    pub(super) fn new(source: Source, config: JoinConfig) -> Self {
        let (zero, anchor) = (MonotonicNs::default(), no_anchor());
        Stream {
            source,
            anchor,
            single: nothing_yet(),
            next_sequence: None,
            watermark: zero,
            now: zero,
            meets: false,
            deadline: MonotonicNs(u64::MAX),
            window: Window::new(config.window_max),
            names: NameTable::new(config.files_max, config.tasks_max, config.quiet_after),
            open: OpenTraces::new(),
            commits: Commits::new(config.commit_grace, config.commits_max),
            carriers: Recent::new(CARRIERS_MAX),
            closed: Recent::new(CLOSED_MAX),
            contexts: Recent::new(CONTEXTS_MAX),
            config,
        }
    }

    /// Has these bounds from now on.
    pub(super) fn set_bounds(&mut self, config: &JoinConfig) {
        self.window.set_bounds(config);
        self.names.set_bounds(config);
        self.commits.set_bounds(config);
        self.carriers.set_max(CARRIERS_MAX);
        self.closed.set_max(CLOSED_MAX);
        self.contexts.set_max(CONTEXTS_MAX);
        self.config = config.clone();
    }

    pub(super) fn lighten(&mut self) {
        self.open.forget_devices();
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    pub(super) fn apply(&mut self, batch: EventBatch, sink: &mut Sink<'_>) {
        if !self.is_next(batch.sequence, sink) {
            return;
        }
        sink.accounts.clock_set_back += u64::from(is_set_back(&self.anchor, &batch.anchor));
        self.anchor = batch.anchor;
        for event in &batch.events {
            sink.accounts.receive(event);
        }
        let admitted = self.window.admit(batch.events, batch.watermark);
        let behind = admitted.events.partition_point(|event| event.time() < self.watermark);
        sink.accounts.behind_watermark += behind as u64;
        sink.accounts.ahead_of_window += admitted.ahead as u64;
        self.watermark = self.watermark.max(batch.watermark);
        for event in admitted.events {
            self.process(event, sink);
        }
        self.expire(self.watermark, sink);
    }

    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
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

    fn is_next(&mut self, sequence: u64, sink: &mut Sink<'_>) -> bool {
        let expected = self.next_sequence.unwrap_or(sequence);
        if sequence < expected {
            sink.accounts.batches_repeated += 1;
            return false;
        }
        sink.accounts.batches_missed += sequence - expected;
        self.next_sequence = Some(sequence.saturating_add(1));
        true
    }

    fn process(&mut self, event: LayerEvent, sink: &mut Sink<'_>) {
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
            LayerEvent::Commit(commit) => self.commit(commit, sink),
            LayerEvent::RpcEndpoint(met) => self.meeting(*met, sink),
            LayerEvent::DaemonSpan(operation) => self.operation(operation, sink),
            LayerEvent::File(file) => self.names.file(file),
            LayerEvent::Device(device) => self.names.device(device),
            LayerEvent::ProcessContext(process) => self.names.process(*process),
            LayerEvent::Task(task) => {
                let dropped = self.names.task(task) == Taken::Dropped;
                sink.accounts.names_dropped += u64::from(dropped);
            }
        }
    }

    fn call(&mut self, call: SyscallEvent, sink: &mut Sink<'_>) {
        let names = self.names.of_call(&call);
        let met = self.meets && self.open.find(call.span).is_some();
        if call.bios == 0 && !met && !self.commits.is_open(&call) {
            let waited = self.commits.wait(&call);
            self.single.begin(self.source, self.anchor, call.span);
            self.single.take_root(Root::Call(call), names);
            self.single.causes.extend(late_cause(waited));
            return sink.emit(&mut self.single);
        }
        // First a place: to make room for it may decide the very commit, which must not choose a call that is nowhere.
        let slot = self.slot(call.span, sink);
        let waited = self.commits.wait(&call);
        let open = self.open.get(slot);
        open.trace.take_root(Root::Call(call), names);
        if let Some(context) = open.trace.context() {
            self.contexts.insert(open.trace.root_span, context.trace);
        }
        match waited {
            Waited::Open(key) => open.waits = Some(key),
            waited => open.trace.causes.extend(late_cause(waited)),
        }
        self.close_if_complete(slot, sink);
    }

    fn bio(&mut self, bio: BioEvent, sink: &mut Sink<'_>) {
        let slot = self.slot(bio.root, sink);
        let carried = self.carried(&bio);
        let open = self.open.get(slot);
        open.trace.carried.extend(carried);
        if bio.submitter == Submitter::Kernel && bio.root == bio.span {
            open.trace.root = Root::Kernel;
            open.trace.names = self.names.of_task(bio.task);
        }
        open.add_bio(bio);
        self.close_if_complete(slot, sink);
    }

    fn request(&mut self, request: RequestEvent, sink: &mut Sink<'_>) {
        if request.bios > 1 {
            self.carriers.insert(request.span, request);
        }
        if request.parent.is_none() {
            // Nobody that was followed asked for it.
            self.single.begin(self.source, self.anchor, request.span);
            (self.single.root, self.single.names) = (Root::Kernel, self.names.of_task(request.task));
            self.single.requests.push(request);
            self.take_meetings(request.span);
            return sink.emit(&mut self.single);
        }
        let slot = self.slot(request.root, sink);
        self.open.get(slot).add_request(request);
        self.close_if_complete(slot, sink);
    }

    fn pair(&mut self, pair: PairEvent, sink: &mut Sink<'_>) {
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

    fn commit(&mut self, commit: CommitEvent, sink: &mut Sink<'_>) {
        while let Some(key) = self.commits.in_the_way(&commit) {
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

    /// It is whole by itself: what was done for it are traces of their own, with its trace's id.
    #[cold]
    fn operation(&mut self, operation: Box<DaemonSpanEvent>, sink: &mut Sink<'_>) {
        self.single.begin(self.source, self.anchor, operation.span);
        self.take_meetings(operation.span);
        let devices = Arc::clone(self.names.devices());
        let names = Names { devices, ..Names::default() };
        self.single.take_root(Root::Operation(operation), names);
        sink.emit(&mut self.single);
    }

    /// What was said of this span before it was there itself.
    fn take_meetings(&mut self, root: SpanId) {
        if self.meets
            && let Some(slot) = self.open.find(root)
        {
            self.single.meetings.append(&mut self.open.get(slot).trace.meetings);
            self.open.end(slot, root);
        }
    }

    /// It comes before its root, or makes a trace that waits for it.
    #[cold]
    fn meeting(&mut self, met: RpcEndpointEvent, sink: &mut Sink<'_>) {
        self.meets = true;
        let slot = self.slot(met.root, sink);
        self.open.get(slot).trace.meetings.push(met);
        self.close_if_complete(slot, sink);
    }

    /// The request of another trace that carried `bio`.
    fn carried(&self, bio: &BioEvent) -> Option<Carried> {
        let request = *self.carriers.peek(&bio.request.filter(|_| !bio.first)?)?;
        let mut carried = Carried { bio: bio.span, trace: None, request };
        carried.trace = self.trace_of(carried.root());
        (carried.root() != bio.root).then_some(carried)
    }

    /// The trace that began at `root`; none where that cannot be told yet. (The first call of all that names a context may come
    /// too late for a bio that was carried by a request of it: from then on it is known that they may.)
    fn trace_of(&self, root: SpanId) -> Option<TraceId> {
        let derived = Some(self.source.trace_id(root));
        if self.contexts.is_empty() {
            return derived;
        }
        match self.open.find(root).map(|slot| &self.open.peek(slot).trace) {
            Some(trace) if matches!(trace.root, Root::Missing) => None,
            Some(trace) => Some(trace.id),
            None => self.contexts.peek(&root).copied().or(derived),
        }
    }

    /// The open trace of `root`, which gives a sign of life.
    fn slot(&mut self, root: SpanId, sink: &mut Sink<'_>) -> Slot {
        if let Some(slot) = self.open.find(root) {
            self.open.touch(slot, self.now);
            return slot;
        }
        if self.open.len() >= self.config.open_max
            && let Some((oldest, _)) = self.open.oldest()
        {
            sink.accounts.closed_for_room += 1;
            self.close(oldest, sink);
        }
        let slot = self.open.begin(self.source, self.anchor, root, self.now);
        if let Some(before) = self.closed.peek(&root) {
            self.open.get(slot).continues(*before);
        }
        self.update_deadline();
        slot
    }
}

/// Whether the wall clock was set back between two anchors of a source. Traces are joined by the other clock, which cannot be;
/// each is shown by one anchor, so nothing in it moves.
fn is_set_back(before: &ClockAnchor, now: &ClockAnchor) -> bool {
    let offset = |anchor: &ClockAnchor| i128::from(anchor.wallclock.0) - i128::from(anchor.monotonic.0);
    let doubt = i128::from(before.uncertainty.0) + i128::from(now.uncertainty.0);
    offset(now) + doubt < offset(before)
}

fn no_anchor() -> ClockAnchor {
    let (monotonic, wallclock) = (MonotonicNs::default(), WallclockNs::default());
    ClockAnchor { monotonic, wallclock, uncertainty: DurationNs::default(), ..ClockAnchor::NONE }
}

fn nothing_yet() -> Trace {
    let source = Source { node: NodeId(0), boot: BootId(0), epoch: StartEpoch(0) };
    Trace::new(source, no_anchor(), SpanId(0))
}

fn late_cause(waited: Waited) -> Option<Cause> {
    match waited {
        Waited::Decided(trace) => Some(Cause { trace, primary: false }),
        Waited::Nothing | Waited::Open(_) => None,
    }
}
