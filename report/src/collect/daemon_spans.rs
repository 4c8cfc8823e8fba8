//! The slowest daemon spans with everything that was done for them: the trees below them, servers
//! included.
//!
//! *In*: traces, one by one, and which trace belongs into which other trace
//! (`SlowestDaemonSpans::reparent`); the linker of the spans decides that, never this module.
//! *Out*: trees. *Invariant*: traces are connected by a common trace id or by a reparenting, and by
//! nothing else. The trees do not depend on the order of arrival, unless a limit was reached.
//!
//! A *group* is everything with one trace id: a daemon span, its child daemon spans, and the calls
//! made for any of them. A call arrives before its daemon span, which ends later, so a group is
//! pending until its root has arrived. A group whose root is the server of a request stays pending
//! until its client arrives, because it is shown in the client's tree. If no client is recorded, it
//! is a tree of its own.
//!
//! *Memory*: of the complete trees the slowest are kept; every other one is removed as soon as it
//! is known not to be among them, with its nested groups. The pending traces are limited by
//! `PENDING_TRACES_MAX`: beyond it the oldest pending group is ranked with what it has by then.
//! Nested groups of a pending group are not counted with it; `NESTED_MAX` and `GROUP_TRACES_MAX`
//! limit them, and in practice there is one. A group keeps its slowest `GROUP_TRACES_MAX` traces
//! and counts the others.
//!
//! *Rejected*: trees of spans, which are linked already. Spans have no phases of a request, and
//! this module would have to parse numbers from their tags.

#[cfg(test)]
mod tests;
pub mod tree;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::remote_link::Reparented;

use super::slowest::SLOWEST_MAX;
use tree::SpanTree;

/// Maximum number of traces in pending groups, some 20 MiB.
const PENDING_TRACES_MAX: usize = 16_384;
/// Maximum number of traces in one group. A daemon's request has a few, but a query that reads a
/// table has one call for each page.
const GROUP_TRACES_MAX: usize = 128;
/// Maximum number of groups nested in one group. A request has one server; this limits programs
/// that report thousands.
const NESTED_MAX: usize = 128;

/// Daemon spans that a report receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DaemonSpanInput {
    /// No daemon spans.
    #[default]
    None,
    /// Daemon spans without links between client and server.
    Spans,
    /// Daemon spans with links between client and server.
    LinkedSpans,
}

/// Groups of the slowest daemon spans, and pending groups.
#[derive(Clone, Debug, Default)]
pub struct SlowestDaemonSpans {
    limit: usize,
    input: DaemonSpanInput,
    groups: HashMap<TraceId, TraceGroup>,
    /// Groups in the order in which they became pending; some have been ranked or nested since.
    pending_order: VecDeque<TraceId>,
    pending_traces: usize,
    ranks: BTreeSet<Rank>,
}

/// Sort key: the slowest first, equal durations by start time.
type Rank = (Reverse<DurationNs>, MonotonicNs, u128);

/// Traces with one trace id.
#[derive(Clone, Debug, Default)]
struct TraceGroup {
    traces: Vec<Trace>,
    /// Number of traces beyond [`GROUP_TRACES_MAX`].
    traces_dropped: u64,
    state: GroupState,
    nested: Vec<TraceId>,
}

#[derive(Clone, Debug, Default)]
enum GroupState {
    /// Waiting for its root or for its client.
    #[default]
    Pending,
    /// Root of a tree among the slowest.
    Ranked(Rank),
    /// Part of another group's tree.
    Nested(Reparented),
}

impl SlowestDaemonSpans {
    pub(crate) fn new(limit: usize, input: DaemonSpanInput) -> SlowestDaemonSpans {
        SlowestDaemonSpans { limit: limit.min(SLOWEST_MAX), input, ..SlowestDaemonSpans::default() }
    }

    /// Adds a trace; copies it if its root is a daemon span or was called for one.
    pub(crate) fn add(&mut self, trace: &Trace) {
        if self.limit == 0 || self.input == DaemonSpanInput::None || !belongs_to_group(trace) {
            return;
        }
        if !self.groups.contains_key(&trace.id) {
            self.pending_order.push_back(trace.id);
        }
        let group = self.groups.entry(trace.id).or_default();
        let before = group.traces.len();
        group.add(trace);
        if matches!(group.state, GroupState::Pending) {
            self.pending_traces += group.traces.len() - before;
            let has_client = self.input == DaemonSpanInput::LinkedSpans && trace.has_remote_client();
            if is_root(trace) && !has_client {
                self.rank(trace.id);
            }
        }
        self.enforce_limit();
    }

    /// Nests the group `id` in another group.
    pub(crate) fn reparent(&mut self, id: TraceId, reparented: &Reparented) {
        if !self.groups.contains_key(&id) || self.is_within(reparented.trace, id) {
            return;
        }
        let client_has_room =
            self.groups.get(&reparented.trace).is_some_and(|client| client.nested.len() < NESTED_MAX);
        self.detach(id);
        if !client_has_room {
            // The client was faster than the trees that are kept, so its server was too.
            return self.remove(id);
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.state = GroupState::Nested(reparented.clone());
        }
        if let Some(client) = self.groups.get_mut(&reparented.trace) {
            client.nested.push(id);
        }
    }

    /// Returns the slowest trees so far; a pending group counts as a tree of its own.
    pub fn slowest(&self) -> Vec<SpanTree<'_>> {
        let roots = self.groups.iter().filter(|(_, group)| !matches!(group.state, GroupState::Nested(_)));
        let ranks: BTreeSet<Rank> = roots.filter_map(|(id, group)| group.rank(*id)).collect();
        let slowest = ranks.into_iter().take(self.limit);
        slowest.filter_map(|(.., id)| tree::build(&self.groups, TraceId(id))).collect()
    }

    /// Ranks a group as a tree of its own, and removes the fastest tree beyond the limit. A group
    /// without a daemon span is removed.
    fn rank(&mut self, id: TraceId) {
        self.detach(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(rank) = group.rank(id) else { return self.remove(id) };
        group.state = GroupState::Ranked(rank);
        self.ranks.insert(rank);
        if self.ranks.len() > self.limit
            && let Some((.., fastest)) = self.ranks.pop_last()
        {
            self.remove(TraceId(fastest));
        }
    }

    /// Undoes the effect of a group's state on the other fields.
    fn detach(&mut self, id: TraceId) {
        let Some(group) = self.groups.get(&id) else { return };
        match &group.state {
            GroupState::Pending => self.pending_traces -= group.traces.len(),
            GroupState::Ranked(rank) => {
                self.ranks.remove(rank);
            }
            GroupState::Nested(reparented) => {
                let client = reparented.trace;
                if let Some(client) = self.groups.get_mut(&client) {
                    client.nested.retain(|nested| *nested != id);
                }
            }
        }
    }

    /// Removes a detached group with all groups nested in it.
    fn remove(&mut self, id: TraceId) {
        let mut ids = vec![id];
        while let Some(id) = ids.pop() {
            ids.extend(self.groups.remove(&id).into_iter().flat_map(|group| group.nested));
        }
    }

    fn enforce_limit(&mut self) {
        while self.pending_traces > PENDING_TRACES_MAX {
            let Some(oldest) = self.pending_order.pop_front() else { return };
            if self.is_pending(oldest) {
                self.rank(oldest);
            }
        }
        // Groups that are no longer pending leave their entries in the queue.
        if self.pending_order.len() > 2 * PENDING_TRACES_MAX {
            let groups = &self.groups;
            self.pending_order
                .retain(|id| groups.get(id).is_some_and(|group| matches!(group.state, GroupState::Pending)));
        }
    }

    fn is_pending(&self, id: TraceId) -> bool {
        self.groups.get(&id).is_some_and(|group| matches!(group.state, GroupState::Pending))
    }

    /// Returns whether `id` is the group `outer` or is nested in it.
    fn is_within(&self, mut id: TraceId, outer: TraceId) -> bool {
        loop {
            if id == outer {
                return true;
            }
            match self.groups.get(&id).map(|group| &group.state) {
                Some(GroupState::Nested(reparented)) => id = reparented.trace,
                _ => return false,
            }
        }
    }
}

impl TraceGroup {
    fn add(&mut self, trace: &Trace) {
        if self.traces.len() < GROUP_TRACES_MAX {
            return self.traces.push(trace.clone());
        }
        self.traces_dropped += 1;
        // Daemon spans connect the tree, so calls are dropped first.
        let priority = |trace: &Trace| (daemon_span(trace).is_some(), trace.duration());
        if let Some(lowest) = self.traces.iter_mut().min_by_key(|trace| priority(trace))
            && priority(lowest) < priority(trace)
        {
            *lowest = trace.clone();
        }
    }

    /// Returns the daemon span that is the root: the one without a parent, or else the earliest.
    fn root(&self) -> Option<&Trace> {
        let daemon_spans = || self.traces.iter().filter(|trace| daemon_span(trace).is_some());
        let root = daemon_spans().find(|trace| is_root(trace));
        root.or_else(|| daemon_spans().min_by_key(|trace| (trace.start(), trace.root_span)))
    }

    fn rank(&self, id: TraceId) -> Option<Rank> {
        self.root().map(|root| (Reverse(root.duration()), root.start(), id.0))
    }
}

/// Returns whether a trace's root is a daemon span or a call with a context. The context can also
/// name an application's span, which is never recorded here; such a call stays pending until the
/// limit.
fn belongs_to_group(trace: &Trace) -> bool {
    daemon_span(trace).is_some() || trace.context().is_some()
}

fn is_root(trace: &Trace) -> bool {
    daemon_span(trace).is_some_and(|span| span.parent.is_none())
}

fn daemon_span(trace: &Trace) -> Option<&DaemonSpanEvent> {
    match &trace.root {
        Root::DaemonSpan(span) => Some(span),
        _ => None,
    }
}

/// Returns the parent span within the same trace id.
fn parent(trace: &Trace) -> Option<SpanId> {
    match &trace.root {
        Root::DaemonSpan(span) => span.parent,
        _ => trace.context().map(|context| context.span),
    }
}
