//! Operations of guests, from the guest's kernel to the host's devices, by virtual machine and program.
//!
//! *In*: the finished traces of guests' operations that reached a disk, and all spans that left the linker; those of QEMU's
//! operations are in the guests' traces by then. *Out*: for each program of each virtual machine the time of each layer, and
//! the slowest operations as trees.
//!
//! *Invariant*: each operation counts once, when its links are decided: [`WAIT`] after it was added, by the host's clock, or
//! when too many parts wait, which is counted. An operation with a request that no operation of QEMU serves counts in its own
//! column and not in the layers: all time of that request would be QEMU's.

pub(crate) mod layers;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::ids::{NodeId, SpanId, TraceId};
use blkkin_wire::span::Span;
use blkkin_wire::stage::LogTime;

use layers::{LayerTimes, Part, PartKind, Tree};

/// Time that an operation waits for links, in ms: the link stage gives up after 10 s, and again for a second hop.
const WAIT: u64 = 25_000;
/// Maximum number of parts that wait, some 200 B each.
const PARTS_MAX: usize = 262_144;
/// Maximum number of programs; further ones are counted as one.
const PROGRAMS_MAX: usize = 1_024;
const OTHERS: &str = "(others)";

/// Program in a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GuestKey {
    pub(crate) machine: Arc<str>,
    pub(crate) program: Arc<str>,
}

/// Sums of a program's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestSums {
    /// Operations of which each request has an operation of QEMU.
    pub(crate) operations: u64,
    /// The other ones, which are not in `times`.
    pub(crate) unlinked: u64,
    pub(crate) times: LayerTimes,
}

/// A slow operation.
#[derive(Clone, Debug)]
pub(crate) struct SlowOperation {
    pub(crate) key: GuestKey,
    pub(crate) tree: Tree,
    pub(crate) times: LayerTimes,
}

impl SlowOperation {
    pub(crate) fn duration(&self) -> DurationNs {
        self.times.total()
    }

    /// Returns the name of its system call or other root.
    pub(crate) fn name(&self) -> &str {
        self.tree.parts.first().map_or("", |root| &root.part.label)
    }
}

/// Collected operations of guests.
#[derive(Clone, Debug)]
pub(crate) struct Guests {
    waiting: HashMap<TraceId, Waiting>,
    order: VecDeque<(LogTime, TraceId)>,
    /// Parts of all waiting operations.
    parts: usize,
    rows: BTreeMap<GuestKey, GuestSums>,
    requests: [u64; 2],
    decided_early: u64,
    slowest: Vec<SlowOperation>,
    slowest_max: usize,
    /// Records that each guest lost.
    lost: BTreeMap<NodeId, u64>,
    /// Endpoints that may be of several requests.
    refused: u64,
}

#[derive(Clone, Debug)]
struct Waiting {
    key: GuestKey,
    root: SpanId,
    host: Arc<str>,
    parts: Vec<Part>,
}

impl Guests {
    pub(crate) fn new(slowest_max: usize) -> Guests {
        Guests {
            waiting: HashMap::new(),
            order: VecDeque::new(),
            parts: 0,
            rows: BTreeMap::new(),
            requests: [0; 2],
            decided_early: 0,
            slowest: Vec::new(),
            slowest_max,
            lost: BTreeMap::new(),
            refused: 0,
        }
    }

    /// Adds an operation of a guest, before its spans.
    pub(crate) fn add(&mut self, trace: &Trace, now: LogTime) {
        while let Some((_, oldest)) = self.order.front().copied().filter(|(at, _)| at.0 + WAIT <= now.0) {
            self.order.pop_front();
            self.decide(oldest);
        }
        while self.parts >= PARTS_MAX {
            let Some((_, oldest)) = self.order.pop_front() else { break };
            self.decided_early += u64::from(self.waiting.contains_key(&oldest));
            self.decide(oldest);
        }
        let is_operation = matches!(trace.root, Root::Call(_) | Root::Fault(_) | Root::AsyncIo);
        if !is_operation || trace.bios.is_empty() && trace.waited_for.is_empty() {
            return;
        }
        let machine = trace.names.virtual_machine().map_or("unknown", |machine| machine.shown_name());
        let program =
            trace.names.task.as_ref().map_or_else(|| "unknown".into(), |task| Arc::clone(&task.comm));
        let key = GuestKey { machine: machine.into(), program };
        let host = format!("{:032x}", trace.source.node.0).into();
        let waiting = Waiting { key, root: trace.root_span, host, parts: Vec::new() };
        if self.waiting.insert(trace.id, waiting).is_none() {
            self.order.push_back((now, trace.id));
        }
    }

    /// Adds spans that left the linker. Those of other traces than the waiting ones are ignored.
    pub(crate) fn add_spans(&mut self, spans: &[Span]) {
        for span in spans {
            let Some(waiting) = self.waiting.get_mut(&span.trace) else { continue };
            waiting.parts.push(part_of(span, &waiting.host));
            self.parts += 1;
        }
    }

    /// Sets the number of records that a guest has lost so far.
    pub(crate) fn set_lost(&mut self, guest: NodeId, lost: u64) {
        let known = self.lost.entry(guest).or_default();
        *known = lost.max(*known);
    }

    /// Decides all waiting operations, after the last span. `refused`: endpoints that may be of several requests.
    pub(crate) fn finish(&mut self, refused: u64) {
        self.refused = refused;
        for (_, trace) in std::mem::take(&mut self.order) {
            self.decide(trace);
        }
    }

    fn decide(&mut self, trace: TraceId) {
        let Some(Waiting { key, root, parts, .. }) = self.waiting.remove(&trace) else { return };
        self.parts -= parts.len();
        let Some(tree) = Tree::of(root, parts) else { return };
        let requests = tree.requests();
        self.requests[0] += requests[0];
        self.requests[1] += requests[1];
        if requests[0] == 0 {
            return;
        }
        let is_known = self.rows.contains_key(&key) || self.rows.len() < PROGRAMS_MAX;
        let row_key = if is_known { key.clone() } else { GuestKey { program: OTHERS.into(), ..key.clone() } };
        let row = self.rows.entry(row_key).or_default();
        if requests[0] > requests[1] {
            row.unlinked += 1;
            return;
        }
        let times = tree.times();
        row.operations += 1;
        row.times += times;
        let at = self.slowest.partition_point(|slower| slower.duration() >= times.total());
        // The summary has one, whatever number of trees is drawn.
        let max = self.slowest_max.max(1);
        if at < max {
            self.slowest.truncate(max - 1);
            self.slowest.insert(at, SlowOperation { key, tree, times });
        }
    }

    /// Returns the rows, those with most time first.
    pub(crate) fn rows(&self) -> Vec<(&GuestKey, &GuestSums)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.times.total()));
        rows
    }

    /// Returns the number of the guests' requests, and of those with an operation of QEMU.
    pub(crate) fn requests(&self) -> [u64; 2] {
        self.requests
    }

    /// Returns the number of operations that were decided before their links were known.
    pub(crate) fn decided_early(&self) -> u64 {
        self.decided_early
    }

    /// Returns the number of endpoints that may be of several requests.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the slowest operations, the slowest first.
    pub(crate) fn slowest(&self) -> &[SlowOperation] {
        &self.slowest
    }

    /// Returns the number of records that the guests lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.values().sum()
    }
}

/// Returns a span without its tags, with its machine if it has one.
fn part_of(span: &Span, guest: &str) -> Part {
    let kind = match &*span.name {
        "journal commit" => PartKind::JournalCommit,
        name if name.starts_with("request ") => PartKind::Request,
        name if name.starts_with("nbd ") => PartKind::Nbd,
        _ => PartKind::Other,
    };
    let host = span.tags.iter().find(|(key, _)| key == "host.id").and_then(|(_, value)| value.as_str());
    Part {
        id: span.id,
        parent: span.parent,
        time: span.start.0..span.start.0.saturating_add(span.duration.0),
        kind,
        is_guests: host.map(|host| host == guest),
        label: format!("{} {}", span.service, span.name).into(),
    }
}
