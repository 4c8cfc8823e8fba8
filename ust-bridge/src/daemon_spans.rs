//! Assembly of daemon spans, and tracking of the span that each thread works for.
//!
//! *In*: span events ([`crate::span_event`]) in order of time, and losses between them. *Out*: a
//! daemon span at its end, or when its end can no longer arrive, and each change of a thread's
//! active span ([`UpdateSink`]).
//!
//! # Span of a system call
//!
//! A thread that enters span A and then makes a system call makes it for A. The thread emits
//! nothing during the call, so its last event before the call's return also applied at its entry.
//! Times are compared only to order the two streams, which have one clock. This is a rule, not an
//! identity, and the parent's evidence records that: it trusts the daemon. If a program publishes
//! the span of each thread, the kernel side reads it at the call itself, which takes precedence.
//!
//! *Invariant*: a wrong parent is worse than none. If an unobserved event could have changed a
//! thread's active span, the thread has none:
//!
//! - *Lost events* in an interval may include an end or a leave of any thread, because buffers
//!   belong to a CPU, not to a process. From the begin of the interval, no thread has an active
//!   span. After its end only new events count. Counter-example to a milder rule: thread T enters
//!   A, the leave is lost, and T reads its configuration for an hour. All of these calls would
//!   belong to A.
//! - *Enter of an unknown span*: the thread works for this span, not for the one that it entered
//!   before.
//! - *Leave of an outer span* also leaves all spans inside it, with or without events of their own.
//! - *Exit of a thread or process*: its id is reused. The kernel side reports the exit, possibly
//!   after the first events of the next owner. A span that was entered before a thread was forked
//!   is therefore not this thread's.
//!
//! *Rejected*: the span with a time that encloses the call, because a thread pool has a hundred of
//! these. Also rejected: keeping a thread's stack over a loss if the next event matches it, because
//! that event may be of the same operation, called again.
//!
//! # End of a span
//!
//! A span ends with its end event. A server emits this event too late for its client: it has sent
//! the reply before, and the client may have received it already. An event named [`REPLY_EVENT`],
//! emitted before the reply is sent, ends the server's RPC endpoint instead. Without this event the
//! span's end does. The bound between two clocks is then too narrow whenever the daemon waited for
//! its CPU in between.
//!
//! When a process exits, its open spans are emitted as unfinished and end with the process. If too
//! many spans are open, the oldest are emitted as unfinished.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::SpanKind;

use crate::span_event::{EventOrigin, SpanEvent, TRUSTED_USER};

/// Maximum number of open spans, some 40 MiB with a few annotations each. Beyond it the oldest
/// eighth is emitted.
const OPEN_MAX: usize = 65_536;
/// Maximum number of threads with an active span.
const THREADS_MAX: usize = 65_536;
/// Maximum number of spans that a thread has entered and not left.
const DEPTH_MAX: usize = 32;
/// Maximum number of annotations of a span, and of bytes of a text.
const ANNOTATIONS_MAX: usize = 64;
const TEXT_MAX: usize = 1_024;

/// Event that a server emits before it sends its reply.
pub const REPLY_EVENT: &str = "answers";

/// Process, as identified in its own pid namespace by a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Inode of the pid namespace; 0 for the initial one.
    pub pid_ns: u64,
    /// Process id in this namespace.
    pub pid: u32,
    /// User that claims these ids; [`TRUSTED_USER`] for root and the kernel.
    pub user: u32,
}

/// Thread, as identified in its own pid namespace by a user. Ids of two namespaces are unrelated:
/// without the namespace, a container's thread could be taken for a thread of the host. A program
/// can write any ids into its user's buffers: without the user, its events would change the state
/// of another user's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// Inode of the pid namespace; 0 for the initial one.
    pub pid_ns: u64,
    /// Process id in this namespace.
    pub pid: u32,
    /// Thread id in this namespace.
    pub tid: u32,
    /// User that claims these ids; [`TRUSTED_USER`] for root and the kernel.
    pub user: u32,
}

impl Process {
    /// Returns true if the other has the same ids, whichever user claims them.
    fn has_ids_of(self, other: Process) -> bool {
        (self.pid_ns, self.pid) == (other.pid_ns, other.pid)
    }
}

impl Thread {
    /// Returns a thread of the initial pid namespace.
    pub const fn initial(pid: u32, tid: u32) -> Thread {
        Thread { pid_ns: 0, pid, tid, user: TRUSTED_USER }
    }

    /// Returns the thread's process.
    pub const fn process(self) -> Process {
        Process { pid_ns: self.pid_ns, pid: self.pid, user: self.user }
    }

    /// Returns the thread as `user` claims it.
    pub const fn claimed_by(self, user: u32) -> Thread {
        Thread { user, ..self }
    }

    fn of(at: &EventOrigin<'_>) -> Thread {
        Thread { pid_ns: at.pid_ns, pid: at.vpid, tid: at.vtid, user: at.user }
    }
}

/// Span that a thread works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveSpan {
    /// Trace of the span.
    pub trace: TraceId,
    /// Span id.
    pub span: SpanId,
    /// Time at which the thread entered the span.
    pub since: MonotonicNs,
}

/// Receiver of updates, in order of time.
pub trait UpdateSink {
    /// Receives an ended span of this process, or a complete RPC endpoint.
    fn event(&mut self, process: Process, event: LayerEvent);
    /// Receives the begin of a span of this node. System calls may name it as their parent from
    /// then on.
    fn span_began(&mut self, at: MonotonicNs, trace: TraceId, span: SpanId);
    /// Receives a change of the thread's active span at `at`.
    fn active_span(&mut self, at: MonotonicNs, thread: Thread, active: Option<ActiveSpan>);
    /// Receives a loss: from `at` on no thread has a known active span, until its next event.
    fn unknown_active_spans(&mut self, at: MonotonicNs);
}

/// Counters of span events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaemonSpanStats {
    /// Spans begun.
    pub begun: u64,
    /// Spans emitted at their end.
    pub ended: u64,
    /// Spans emitted without an end.
    pub unfinished: u64,
    /// Unfinished spans that were emitted because too many were open.
    pub evicted: u64,
    /// Ignored begins of spans that were open already.
    pub duplicate_begins: u64,
    /// Events of spans without a known begin, or after their end.
    pub unmatched: u64,
    /// Annotations dropped because a span had too many.
    pub annotations_dropped: u64,
    /// Lost events, as counted by the streams.
    pub lost: u64,
    /// Losses that were reported after later events had been applied.
    pub lost_late: u64,
}

/// State of all daemon spans of a node.
#[derive(Debug, Default)]
pub struct DaemonSpans {
    open: HashMap<(Process, u64), OpenSpan>,
    /// Spans that each thread has entered and not left; without an active span if the span is not
    /// open.
    threads: HashMap<Thread, Vec<(u64, Option<ActiveSpan>)>>,
    /// Events of threads before this time are not applied.
    uncertain_until: u64,
    now: u64,
    stats: DaemonSpanStats,
}

#[derive(Debug)]
struct OpenSpan {
    event: DaemonSpanEvent,
    root: SpanId,
    endpoints: Vec<RpcEndpointEvent>,
}

impl OpenSpan {
    fn active(&self) -> ActiveSpan {
        ActiveSpan { trace: self.event.trace, span: self.event.span, since: self.event.begin }
    }
}

impl ActiveSpan {
    fn since(self, at: u64) -> ActiveSpan {
        ActiveSpan { since: MonotonicNs(at), ..self }
    }
}

impl DaemonSpans {
    /// Applies the next event.
    pub fn apply(&mut self, at: &EventOrigin<'_>, event: &SpanEvent<'_>, sink: &mut impl UpdateSink) {
        self.now = self.now.max(at.time_ns);
        let (time, thread) = (at.time_ns, Thread::of(at));
        match event {
            SpanEvent::Begin { span, enter, .. } => {
                let active = self.begin(at, event, sink).map(|active| active.since(time));
                if *enter {
                    self.enter(time, thread, *span, active, sink);
                }
            }
            SpanEvent::End { span, status } => self.end(time, thread, *span, *status, sink),
            SpanEvent::Enter { span } => {
                let active = self.open.get(&(thread.process(), *span)).map(|open| open.active().since(time));
                self.stats.unmatched += u64::from(active.is_none());
                self.enter(time, thread, *span, active, sink);
            }
            SpanEvent::Leave { span } => self.leave(time, thread, *span, sink),
            SpanEvent::Event { span, name } => {
                if name == REPLY_EVENT {
                    self.reply_sent(time, thread, *span, sink);
                }
                self.annotate(at, *span, name, AnnotationValue::Event);
            }
            SpanEvent::Text { span, key, value } => {
                self.annotate(at, *span, key, AnnotationValue::Text(truncated(value)))
            }
            SpanEvent::Number { span, key, value } => {
                self.annotate(at, *span, key, AnnotationValue::Number(*value))
            }
            SpanEvent::RpcEndpoint { span, side, unique, protocol, connection, cookie } => {
                let key = RpcKey {
                    protocol: truncated(protocol),
                    connection: truncated(connection),
                    cookie: *cookie,
                };
                self.add_endpoint(thread, *span, *side == RpcSide::Server, *unique, key);
            }
        }
    }

    /// Records the loss of `events` events of unknown threads in an interval.
    pub fn record_loss(&mut self, from: u64, until: u64, events: u64, sink: &mut impl UpdateSink) {
        self.stats.lost += events;
        self.stats.lost_late += u64::from(from < self.now);
        self.uncertain_until = self.uncertain_until.max(until);
        self.threads.clear();
        sink.unknown_active_spans(MonotonicNs(from));
    }

    /// Emits all open spans without an end, for a source with losses: their ends may be lost.
    pub fn abandon_open(&mut self, at: u64, sink: &mut impl UpdateSink) {
        self.emit_unfinished(at, |_, _| true, sink);
    }

    /// Removes the active span of an exited thread, before its id is reused.
    pub fn thread_exited(&mut self, thread: Thread, at: u64, sink: &mut impl UpdateSink) {
        for thread in [thread, thread.claimed_by(TRUSTED_USER)] {
            if self.threads.remove(&thread).is_some() {
                sink.active_span(MonotonicNs(at.max(self.now)), thread, None);
            }
        }
    }

    /// Removes an exited process: its threads have exited, and its open spans have no end.
    pub fn process_exited(&mut self, process: Process, at: u64, sink: &mut impl UpdateSink) {
        self.now = self.now.max(at);
        self.threads.retain(|thread, _| {
            let keep = !thread.process().has_ids_of(process);
            if !keep {
                sink.active_span(MonotonicNs(at), *thread, None);
            }
            keep
        });
        self.emit_unfinished(at, |key, _| key.0.has_ids_of(process), sink);
    }

    /// Emits all open spans at the end of the input.
    pub fn finish(&mut self, at: u64, sink: &mut impl UpdateSink) {
        self.emit_unfinished(at.max(self.now), |_, _| true, sink);
        self.threads.clear();
    }

    /// Returns the counters.
    pub fn stats(&self) -> &DaemonSpanStats {
        &self.stats
    }

    /// Returns the number of open spans.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Begins a span; returns `None` if it is open already.
    fn begin(
        &mut self,
        at: &EventOrigin<'_>,
        event: &SpanEvent<'_>,
        sink: &mut impl UpdateSink,
    ) -> Option<ActiveSpan> {
        let &SpanEvent::Begin {
            trace_hi,
            trace_lo,
            span,
            parent,
            kind,
            sample_rate,
            ref name,
            ref service,
            ..
        } = event
        else {
            return None;
        };
        let thread = Thread::of(at);
        if self.open.len() >= OPEN_MAX {
            self.evict_oldest(sink);
        }
        let local_parent = (parent != 0).then(|| self.open.get(&(thread.process(), parent))).flatten();
        let root = local_parent.map_or(SpanId(span), |parent| parent.root);
        let published_trace = TraceId(u128::from(trace_hi) << 64 | u128::from(trace_lo));
        // A span without a trace id is in its parent's trace, or begins a new one.
        let inherited = || local_parent.map_or(TraceId(span.into()), |parent| parent.event.trace);
        let trace = if published_trace.0 == 0 { inherited() } else { published_trace };
        let parent_is_remote = parent != 0 && local_parent.is_none();
        let Entry::Vacant(entry) = self.open.entry((thread.process(), span)) else {
            self.stats.duplicate_begins += 1;
            return None;
        };
        self.stats.begun += 1;
        let event = DaemonSpanEvent {
            span: SpanId(span),
            parent: (parent != 0).then_some(SpanId(parent)),
            parent_is_remote,
            trace,
            kind,
            name: truncated(name),
            service: truncated(if service.is_empty() { &at.procname } else { service }),
            begin: MonotonicNs(at.time_ns),
            end: MonotonicNs(at.time_ns),
            pid: Pid(thread.pid),
            tid: Tid(thread.tid),
            status: SpanStatus::Ok,
            sample_rate,
            annotations: Vec::new(),
        };
        sink.span_began(event.begin, event.trace, event.span);
        Some(entry.insert(OpenSpan { event, root, endpoints: Vec::new() }).active())
    }

    /// Emits the oldest open spans.
    fn evict_oldest(&mut self, sink: &mut impl UpdateSink) {
        let mut begins: Vec<_> = self.open.values().map(|open| open.event.begin).collect();
        let (_, until, _) = begins.select_nth_unstable(OPEN_MAX / 8);
        let until = *until;
        let before = self.stats.unfinished;
        self.emit_unfinished(self.now, |_, open| open.event.begin < until, sink);
        self.stats.evicted += self.stats.unfinished - before;
    }

    fn end(&mut self, at: u64, thread: Thread, span: u64, status: i32, sink: &mut impl UpdateSink) {
        self.leave(at, thread, span, sink);
        let key = (thread.process(), span);
        let Some(open) = self.open.get_mut(&key) else {
            self.stats.unmatched += 1;
            return;
        };
        open.event.end = MonotonicNs(at.max(open.event.begin.0));
        if status != 0 {
            open.event.status = SpanStatus::Error(status.unsigned_abs());
        }
        self.emit(key, sink);
    }

    /// Enters a span, also an unknown one, because it replaces the active span.
    fn enter(
        &mut self,
        at: u64,
        thread: Thread,
        span: u64,
        active: Option<ActiveSpan>,
        sink: &mut impl UpdateSink,
    ) {
        let has_room = self.threads.len() < THREADS_MAX || self.threads.contains_key(&thread);
        if at < self.uncertain_until || !has_room {
            return;
        }
        let stack = self.threads.entry(thread).or_default();
        // Deeper than expected: the outer spans are forgotten, and are then unknown.
        if stack.len() >= DEPTH_MAX {
            stack.clear();
        }
        let before = stack.last().and_then(|(_, active)| *active);
        stack.push((span, active));
        if before != active {
            sink.active_span(MonotonicNs(at), thread, active);
        }
    }

    fn leave(&mut self, at: u64, thread: Thread, span: u64, sink: &mut impl UpdateSink) {
        let Some(stack) = self.threads.get_mut(&thread) else { return };
        let Some(index) = stack.iter().rposition(|(entered, _)| *entered == span) else { return };
        let before = stack.last().and_then(|(_, active)| *active);
        stack.truncate(index);
        let now = stack.last().and_then(|(_, active)| *active);
        if stack.is_empty() {
            self.threads.remove(&thread);
        }
        if now != before {
            sink.active_span(MonotonicNs(at), thread, now);
        }
    }

    fn annotate(&mut self, at: &EventOrigin<'_>, span: u64, key: &str, value: AnnotationValue) {
        let Some(open) = self.open.get_mut(&(Thread::of(at).process(), span)) else {
            self.stats.unmatched += 1;
            return;
        };
        // blkin marks the role of its spans with Zipkin's annotations.
        if value == AnnotationValue::Event && open.event.kind == SpanKind::Local {
            match key {
                "sr" | "ss" => open.event.kind = SpanKind::Server,
                "cs" | "cr" => open.event.kind = SpanKind::Client,
                _ => {}
            }
        }
        if open.event.annotations.len() < ANNOTATIONS_MAX {
            open.event.annotations.push(Annotation {
                time: MonotonicNs(at.time_ns),
                key: truncated(key),
                value,
            });
        } else {
            self.stats.annotations_dropped += 1;
        }
    }

    fn add_endpoint(&mut self, thread: Thread, span: u64, is_server: bool, unique: bool, key: RpcKey) {
        let Some(open) = self.open.get_mut(&(thread.process(), span)) else {
            self.stats.unmatched += 1;
            return;
        };
        if open.endpoints.len() >= ANNOTATIONS_MAX {
            self.stats.annotations_dropped += 1;
            return;
        }
        open.endpoints.push(RpcEndpointEvent {
            span: open.event.span,
            root: open.root,
            side: if is_server { RpcSide::Server } else { RpcSide::Client },
            key,
            unique,
            no_reply: false,
            begin: open.event.begin,
            // Set when the span has ended.
            end: open.event.begin,
        });
    }

    /// Emits the server's endpoints with their end at `at`, once.
    fn reply_sent(&mut self, at: u64, thread: Thread, span: u64, sink: &mut impl UpdateSink) {
        let process = thread.process();
        let Some(open) = self.open.get_mut(&(process, span)) else { return };
        for endpoint in open.endpoints.extract_if(.., |endpoint| endpoint.side == RpcSide::Server) {
            let end = MonotonicNs(at.max(endpoint.begin.0));
            sink.event(process, LayerEvent::RpcEndpoint(RpcEndpointEvent { end, ..endpoint }.into()));
        }
    }

    /// Emits spans without an end.
    fn emit_unfinished(
        &mut self,
        at: u64,
        select: impl Fn(&(Process, u64), &OpenSpan) -> bool,
        sink: &mut impl UpdateSink,
    ) {
        let mut all: Vec<_> =
            self.open.iter().filter(|(key, open)| select(key, open)).map(|(key, _)| *key).collect();
        // Inner spans first, as if they had ended one after another.
        all.sort_unstable_by_key(|key| std::cmp::Reverse((self.open[key].event.begin, key.1)));
        for key in all {
            if let Some(open) = self.open.get_mut(&key) {
                open.event.status = SpanStatus::Unfinished;
                open.event.end = MonotonicNs(at.max(open.event.begin.0));
            }
            self.emit(key, sink);
        }
    }

    fn emit(&mut self, key: (Process, u64), sink: &mut impl UpdateSink) {
        let Some(OpenSpan { event, endpoints, .. }) = self.open.remove(&key) else { return };
        let ended = event.status != SpanStatus::Unfinished;
        self.stats.ended += u64::from(ended);
        self.stats.unfinished += u64::from(!ended);
        for endpoint in endpoints {
            let no_reply = !ended && endpoint.side == RpcSide::Client;
            let endpoint = RpcEndpointEvent { end: event.end, no_reply, ..endpoint };
            sink.event(key.0, LayerEvent::RpcEndpoint(endpoint.into()));
        }
        sink.event(key.0, LayerEvent::DaemonSpan(event.into()));
    }
}

/// Truncates a text to [`TEXT_MAX`] bytes.
fn truncated(text: &str) -> Box<str> {
    if text.len() <= TEXT_MAX {
        return text.into();
    }
    let end = (0..=TEXT_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &text[..end]).into()
}

#[cfg(test)]
pub(crate) mod tests;
