//! Correlation of daemon spans with the kernel's events: each system call gets its thread's span as
//! parent.
//!
//! *In*: a tracer's batches in order; [`Update`]s in order of time, and the time up to which they
//! are complete. *Out*: the same batches, some ms later. System calls in them have the span of
//! their thread as parent, and spans that ended by then are added.
//!
//! *Invariant*: no kernel event is lost, duplicated or changed, except for this parent. A call gets
//! a parent only if all updates of its thread up to its return are known. Both streams use
//! CLOCK_MONOTONIC, so their times have one order. [`crate::daemon_spans`] explains why this is
//! sufficient, and the effect of losses.
//!
//! A batch waits until the updates are complete up to its watermark: one period of the live timer
//! plus the transfer. After [`HOLD_MAX`] the batch is emitted anyway. Its calls that return after
//! the complete updates then have no parent ([`CorrelationStats::calls_uncorrelated`]).
//!
//! *Ids.* A daemon in a container emits ids of its own pid namespace, which belong to other tasks
//! outside of it. The kernel side reports each task's ids in both namespaces, so tasks are matched
//! by (namespace, process, thread, user). Emitted spans have the host's ids, like system calls.
//! *Rejected*: a translation by `NSpid` of /proc/PID/status, because an exited task is not there,
//! and its id may have been reused.
//!
//! *Users.* A program can emit any ids. The events of a user other than root are about a thread
//! only if the kernel side reports that thread with this user. Otherwise they are refused and counted
//! ([`CorrelationStats::updates_foreign_user`]), or, for a thread that is not reported yet, kept
//! apart from the claims of other users. A span whose process is unknown keeps no process id.
//!
//! *Two sources for one call.* For a thread that publishes its thread context, the kernel side has
//! read the context at the call, and it takes precedence. The span events then only show whether
//! the context's span is a daemon span of this node. Differences are counted
//! ([`CorrelationStats::calls_contradicted`]).
//!
//! *Rejected*: correlation in the aggregator. It would have to hold all calls of each node until
//! the node's daemon events arrive. Here both streams are local, and each call leaves the node
//! once.

mod task_ids;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::SpanStatus;
use blkkin_wire::event::{ContextSource, LayerEvent, SyscallEvent, TaskChange, TraceContext};
use blkkin_wire::ids::{SpanId, TaskId, TraceId};

use crate::daemon_spans::{ActiveSpan, Process, Thread, UpdateSink};
use crate::span_event::TRUSTED_USER;
use task_ids::{HostIds, Owner, TaskIds};

/// Maximum time in ns that a batch waits for updates. A live timer is some ms, so a longer wait has
/// another cause.
pub const HOLD_MAX: u64 = 2_000_000_000;
/// Maximum number of events in waiting batches, some 40 MiB. Beyond it the oldest batch is emitted.
const WAITING_EVENTS_MAX: usize = 262_144;
/// Maximum number of tasks with known ids. The tracer reports the end of each task.
const TASKS_MAX: usize = 262_144;

/// Spans known as daemon spans of this node: the last ones that began or became active, and up to
/// as many before these.
const SPANS_MAX: usize = 65_536;
/// Maximum number of users to report.
const FOREIGN_USERS_MAX: usize = 64;

/// Update from the daemons' span events.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly all are events: a box would only add an allocation")]
pub enum Update {
    /// Ended span or RPC endpoint of a process. The span has the process's own ids.
    Event(Process, LayerEvent),
    /// Begin of a span of this node.
    SpanBegan(MonotonicNs, TraceId, SpanId),
    /// Change of a thread's active span.
    ActiveSpan(MonotonicNs, Thread, Option<ActiveSpan>),
    /// Loss: no thread has a known active span from this time on.
    UnknownActiveSpans(MonotonicNs),
}

impl Update {
    fn at(&self) -> MonotonicNs {
        match self {
            Update::Event(_, event) => event.time(),
            Update::SpanBegan(at, ..) | Update::ActiveSpan(at, ..) | Update::UnknownActiveSpans(at) => *at,
        }
    }
}

/// Collects updates in order.
impl UpdateSink for Vec<Update> {
    fn event(&mut self, process: Process, event: LayerEvent) {
        self.push(Update::Event(process, event));
    }
    fn span_began(&mut self, at: MonotonicNs, trace: TraceId, span: SpanId) {
        self.push(Update::SpanBegan(at, trace, span));
    }
    fn active_span(&mut self, at: MonotonicNs, thread: Thread, active: Option<ActiveSpan>) {
        self.push(Update::ActiveSpan(at, thread, active));
    }
    fn unknown_active_spans(&mut self, at: MonotonicNs) {
        self.push(Update::UnknownActiveSpans(at));
    }
}

/// Exit of a thread, from the kernel's task events, for the assembly of daemon spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadExit {
    /// Exited thread.
    pub thread: Thread,
    /// CLOCK_MONOTONIC in ns.
    pub at: u64,
    /// True for the last known thread of its process.
    pub last: bool,
}

/// Counters of system calls, spans and batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorrelationStats {
    /// Calls with a daemon span as parent.
    pub calls_correlated: u64,
    /// Correlated calls with exact evidence: the thread published the span.
    pub calls_exact: u64,
    /// Calls of threads with different published and emitted spans. The published one is used.
    pub calls_contradicted: u64,
    /// Calls without a parent because updates were late.
    pub calls_uncorrelated: u64,
    /// Updates of threads that arrived after their interval counted as complete, so calls were
    /// correlated without them.
    pub updates_late: u64,
    /// Batches emitted before their updates were complete.
    pub batches_incomplete: u64,
    /// Spans emitted.
    pub spans: u64,
    /// Emitted spans without an end.
    pub spans_unfinished: u64,
    /// Emitted spans of an unknown process in another pid namespace, or of a user other than root.
    /// They have no process and no children.
    pub spans_foreign_pidns: u64,
    /// Emitted spans before the watermark of an earlier, incomplete batch. They are complete, and
    /// only out of order.
    pub spans_late: u64,
    /// Spans, endpoints and changes of a thread's span that were refused, because they name a thread
    /// of another user.
    pub updates_foreign_user: u64,
    /// Spans dropped because their process is not traced.
    pub spans_filtered: u64,
}

/// Correlator of one node.
#[derive(Debug, Default)]
pub struct Correlator {
    updates: VecDeque<Update>,
    /// Updates are complete up to this time.
    complete_until: MonotonicNs,
    threads: HashMap<Thread, ActiveSpan>,
    /// Daemon spans of this node, in two generations.
    spans: [HashMap<SpanId, TraceId>; 2],
    /// Ids of each task, and the time of its fork if that was observed.
    tasks: HashMap<TaskId, (TaskIds, MonotonicNs)>,
    /// Number of tasks of each process.
    processes: HashMap<Process, u32>,
    host_ids: HostIds,
    /// Processes that the tracer has reported, also exited ones, because their spans are emitted
    /// later; `None` if all processes are traced.
    traced: Option<HashSet<Process>>,
    exits: Vec<ThreadExit>,
    /// Users whose events named threads of other users: the reported ones, and the new ones.
    foreign_users: [Vec<u32>; 2],
    /// Waiting batches, with their arrival on the caller's clock.
    waiting: VecDeque<(EventBatch, u64)>,
    waiting_events: usize,
    /// Events beyond the watermark of their batch. Earlier events may follow in the next batch.
    beyond_watermark: Vec<LayerEvent>,
    /// Watermark of the last emitted batch.
    emitted_until: MonotonicNs,
    /// Last batch without its events.
    last_batch: Option<EventBatch>,
    stats: CorrelationStats,
}

impl Correlator {
    /// Creates a correlator that drops the spans of untraced processes. An LTTng session belongs to
    /// a user and also contains the events of the user's other daemons.
    pub fn for_traced_processes() -> Correlator {
        Correlator { traced: Some(HashSet::new()), ..Correlator::default() }
    }

    /// Adds updates, which are then complete up to `until`.
    pub fn add_updates(&mut self, updates: impl IntoIterator<Item = Update>, until: MonotonicNs) {
        let complete_until = self.complete_until;
        let updates = updates.into_iter().inspect(|update| {
            let sets_active = matches!(update, Update::ActiveSpan(..));
            self.stats.updates_late += u64::from(sets_active && update.at() < complete_until);
        });
        self.updates.extend(updates);
        self.complete_until = self.complete_until.max(until);
    }

    /// Adds the tracer's next batch, which arrived at `now`, in ns of any clock.
    pub fn add_batch(&mut self, batch: EventBatch, now: u64) {
        self.waiting_events += batch.events.len();
        self.waiting.push_back((batch, now));
    }

    /// Returns the next batch with complete updates, or one that has waited too long at `now`.
    pub fn next_batch(&mut self, now: u64) -> Option<EventBatch> {
        let (batch, arrival) = self.waiting.front()?;
        let complete = batch.watermark <= self.complete_until;
        let timed_out = now.saturating_sub(*arrival) > HOLD_MAX || self.waiting_events > WAITING_EVENTS_MAX;
        if !complete && !timed_out {
            return None;
        }
        self.stats.batches_incomplete += u64::from(!complete);
        let (batch, _) = self.waiting.pop_front()?;
        self.waiting_events -= batch.events.len();
        let until = batch.watermark;
        Some(self.correlate(batch, until))
    }

    /// Emits all waiting batches at the end of the input, and one more batch if events remain.
    pub fn finish(&mut self) -> Vec<EventBatch> {
        let mut all = Vec::new();
        self.complete_until = MonotonicNs(u64::MAX);
        while let Some((batch, _)) = self.waiting.pop_front() {
            let until = batch.watermark;
            all.push(self.correlate(batch, until));
        }
        if (!self.updates.is_empty() || !self.beyond_watermark.is_empty())
            && let Some(last) = self.last_batch.take()
        {
            let more = EventBatch { sequence: last.sequence + 1, crashed_runs: Vec::new(), ..last };
            all.push(self.correlate(more, MonotonicNs(u64::MAX)));
        }
        all
    }

    /// Returns and clears the exited threads.
    pub fn take_exits(&mut self) -> impl Iterator<Item = ThreadExit> + '_ {
        self.exits.drain(..)
    }

    /// Returns the users that were not returned before, whose events named threads of other users.
    pub fn take_foreign_users(&mut self) -> Vec<u32> {
        let [reported, new] = &mut self.foreign_users;
        reported.extend_from_slice(new);
        std::mem::take(new)
    }

    /// Returns the counters.
    pub fn stats(&self) -> &CorrelationStats {
        &self.stats
    }

    fn correlate(&mut self, mut batch: EventBatch, until: MonotonicNs) -> EventBatch {
        let mut events = std::mem::take(&mut self.beyond_watermark);
        events.append(&mut batch.events);
        self.last_batch = Some(EventBatch { events: Vec::new(), ..batch.clone() });
        // In order already, except those beyond the last watermark.
        events.sort_by_key(LayerEvent::time);
        let within = events.partition_point(|event| event.time() <= until);
        self.beyond_watermark = events.split_off(within);
        batch.events.reserve(events.len());
        for mut event in events {
            self.apply_updates(event.time(), &mut batch.events);
            match &mut event {
                LayerEvent::Task(task) => {
                    let ids = TaskIds::of(task);
                    if let Some(traced) = &mut self.traced
                        && traced.len() < TASKS_MAX
                    {
                        traced.extend([ids.own().process(), ids.own_claimed().process()]);
                    }
                    if task.change == TaskChange::Exited {
                        self.task_exited(task.task.id, task.time);
                    } else if let Some((known_ids, _)) = self.tasks.get_mut(&task.task.id) {
                        *known_ids = ids;
                    } else if self.tasks.len() < TASKS_MAX {
                        let forked = task.change == TaskChange::Forked;
                        let forked_at = if forked { task.time } else { MonotonicNs(0) };
                        self.tasks.insert(task.task.id, (ids, forked_at));
                        *self.processes.entry(ids.own().process()).or_default() += 1;
                    }
                    let forked_at = self.tasks.get(&task.task.id).map(|(_, forked_at)| *forked_at);
                    self.host_ids.record(task, forked_at);
                }
                LayerEvent::Syscall(call) => self.correlate_call(call),
                _ => {}
            }
            batch.events.push(event);
        }
        self.apply_updates(until, &mut batch.events);
        self.emitted_until = until;
        batch
    }

    fn is_filtered(&self, process: Process) -> bool {
        self.traced.as_ref().is_some_and(|traced| !traced.contains(&process))
    }

    fn task_exited(&mut self, task: TaskId, at: MonotonicNs) {
        let Some((ids, _)) = self.tasks.remove(&task) else { return };
        for thread in ids.all() {
            self.threads.remove(&thread);
        }
        let thread = ids.own();
        let remaining = self.processes.get_mut(&thread.process());
        let last = remaining.is_none_or(|remaining| {
            *remaining -= 1;
            *remaining == 0
        });
        if last {
            self.processes.remove(&thread.process());
        }
        self.exits.push(ThreadExit { thread: ids.own_claimed(), at: at.0, last });
    }

    /// Applies all updates up to `time`.
    fn apply_updates(&mut self, time: MonotonicNs, events: &mut Vec<LayerEvent>) {
        while let Some(update) = self.updates.pop_front_if(|update| update.at() <= time) {
            match update {
                Update::Event(process, event) if self.is_foreign_event(process, &event) => {}
                Update::ActiveSpan(at, thread, Some(_)) if self.is_foreign(thread, at) => {}
                Update::Event(process, event) if self.is_filtered(process) => {
                    self.stats.spans_filtered += u64::from(matches!(event, LayerEvent::DaemonSpan(_)));
                }
                Update::Event(process, mut event) => {
                    if let LayerEvent::DaemonSpan(span) = &mut event {
                        let known = self.host_ids.translate(span, process);
                        self.stats.spans_foreign_pidns += u64::from(!known);
                    }
                    let is_span = matches!(event, LayerEvent::DaemonSpan(_));
                    self.stats.spans_unfinished += u64::from(is_unfinished(&event));
                    self.stats.spans += u64::from(is_span);
                    self.stats.spans_late += u64::from(is_span && event.time() < self.emitted_until);
                    events.push(event);
                }
                Update::SpanBegan(_, trace, span) => self.remember_span(trace, span),
                Update::ActiveSpan(_, thread, Some(active)) => {
                    self.threads.insert(thread, active);
                    // Renews the entry of a span that may have begun long ago.
                    self.remember_span(active.trace, active.span);
                }
                Update::ActiveSpan(_, thread, None) => drop(self.threads.remove(&thread)),
                Update::UnknownActiveSpans(_) => self.threads.clear(),
            }
        }
    }

    /// Checks whether an event is about a process of another user, and counts it.
    fn is_foreign_event(&mut self, process: Process, event: &LayerEvent) -> bool {
        let (tid, begin) = match event {
            LayerEvent::DaemonSpan(span) => (span.tid.0, span.begin),
            LayerEvent::RpcEndpoint(endpoint) => (process.pid, endpoint.begin),
            _ => return false,
        };
        let Process { pid_ns, pid, user } = process;
        self.is_foreign(Thread { pid_ns, pid, tid, user }, begin)
    }

    /// Checks whether a user other than root names a thread of another user, and counts it.
    fn is_foreign(&mut self, thread: Thread, at: MonotonicNs) -> bool {
        if thread.user == TRUSTED_USER || self.host_ids.owner(thread, at) != Owner::OtherUser {
            return false;
        }
        self.stats.updates_foreign_user += 1;
        let [reported, new] = &mut self.foreign_users;
        let known = reported.contains(&thread.user) || new.contains(&thread.user);
        if !known && reported.len() + new.len() < FOREIGN_USERS_MAX {
            new.push(thread.user);
        }
        true
    }

    fn remember_span(&mut self, trace: TraceId, span: SpanId) {
        if self.spans[0].len() >= SPANS_MAX {
            self.spans[1] = std::mem::take(&mut self.spans[0]);
        }
        self.spans[0].insert(span, trace);
    }

    fn correlate_call(&mut self, call: &mut SyscallEvent) {
        let reported = if call.exit > self.complete_until { None } else { self.active_span_of(call.task.id) };
        if let Some(published) = &mut call.context {
            let same = |active: ActiveSpan| (active.trace, active.span) == (published.trace, published.span);
            self.stats.calls_contradicted += u64::from(reported.is_some_and(|active| !same(active)));
            if self.spans.iter().any(|generation| generation.get(&published.span) == Some(&published.trace)) {
                published.source = ContextSource::Both;
                self.stats.calls_correlated += 1;
                self.stats.calls_exact += 1;
            }
            return;
        }
        if call.exit > self.complete_until {
            self.stats.calls_uncorrelated += 1;
            return;
        }
        call.context = reported.map(|active| {
            self.stats.calls_correlated += 1;
            TraceContext {
                trace: active.trace,
                span: active.span,
                flags: 0,
                source: ContextSource::DaemonSpan,
            }
            .into()
        });
    }

    /// Returns the active span of a task's thread.
    fn active_span_of(&self, task: TaskId) -> Option<ActiveSpan> {
        if self.threads.is_empty() {
            return None;
        }
        let (ids, forked_at) = self.tasks.get(&task)?;
        let active = ids.all().find_map(|thread| self.threads.get(&thread));
        active.filter(|active| active.since >= *forked_at).copied()
    }
}

fn is_unfinished(event: &LayerEvent) -> bool {
    matches!(event, LayerEvent::DaemonSpan(span) if span.status == SpanStatus::Unfinished)
}
