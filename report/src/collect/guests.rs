//! Operations of guests, from the guest's kernel to the host's devices, by virtual machine and program.
//!
//! *In*: the finished traces of guests' operations that reached a disk, and all spans that left the linker; those of QEMU's
//! operations are in the guests' traces by then. *Out*: for each program of each virtual machine the time of each layer, and
//! the slowest operations as trees.
//!
//! *Invariant*: each operation counts once, when its links are decided: [`WAIT`] after it was added, by the host's clock, or
//! when too many parts wait, which is counted. It is in the layers only if all of its I/O is known: each request to a disk
//! of QEMU has as many operations of QEMU as it needs, no part of it was lost, and it did not wait for requests of other
//! operations. The others are counted by reason ([`LeftOut`]): their time would be attributed to a wrong layer.
//!
//! Spans have no machine and no issue time, and several operations may share a trace id. So the guest's own trace adds what it
//! knows of each request ([`OwnRequest`]), and the parts of an operation are those below its root.

pub(crate) mod layers;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::ids::{NodeId, Source, SpanId, TraceId};
use blkkin_wire::span::Span;
use blkkin_wire::stage::LogTime;

use layers::{LayerTimes, OwnRequest, Part, PartKind, Tree};

/// Time that an operation waits for links, in ms: the link stage gives up after 10 s, and again for a second hop.
const WAIT: u64 = 25_000;
/// Maximum number of parts that wait, up to some 250 B each.
const PARTS_MAX: usize = 262_144;
/// Maximum number of operations that wait.
const WAITING_MAX: usize = 65_536;
/// Maximum number of programs; further ones are counted as one.
const PROGRAMS_MAX: usize = 1_024;
/// Maximum length of a part's label; a guest chooses the name of its devices.
const LABEL_MAX: usize = 80;
const OTHERS: &str = "(others)";

/// Program in a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GuestKey {
    pub(crate) machine: Arc<str>,
    /// Two virtual machines may have one name.
    node: NodeId,
    pub(crate) program: Arc<str>,
}

impl GuestKey {
    pub(crate) fn is_of_one_machine(&self, other: &GuestKey) -> bool {
        (&self.machine, self.node) == (&other.machine, other.node)
    }
}

/// Operations that are not in the layers, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Operations with a request that has fewer operations of QEMU than it needs.
    pub(crate) unlinked: u64,
    /// Operations that waited for requests of other operations, such as a journal commit that another one shows.
    pub(crate) shared: u64,
    /// Operations with missing records.
    pub(crate) incomplete: u64,
    /// Operations on disks without a name that the host knows: of another kind than QEMU's, or reported before tracing began.
    pub(crate) unnamed: u64,
}

impl LeftOut {
    pub(crate) fn total(&self) -> u64 {
        self.unlinked + self.shared + self.incomplete + self.unnamed
    }
}

/// Sums of a program's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestSums {
    /// Operations in `times`.
    pub(crate) operations: u64,
    pub(crate) left_out: LeftOut,
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
    waiting: HashMap<TraceId, WaitingTrace>,
    order: VecDeque<(LogTime, TraceId, SpanId)>,
    /// Parts of all waiting traces.
    parts: usize,
    rows: BTreeMap<GuestKey, GuestSums>,
    requests: [u64; 2],
    decided_early: u64,
    slowest: Vec<SlowOperation>,
    slowest_max: usize,
    lost: HashMap<NodeId, LostRecords>,
    refused: u64,
}

/// Lost records of a guest; its agent counts from its own start.
#[derive(Clone, Copy, Debug)]
struct LostRecords {
    source: Source,
    /// First and last counter of this source.
    counters: [u64; 2],
    /// Sum of earlier starts of the agent.
    before: u64,
}

impl LostRecords {
    fn total(&self) -> u64 {
        self.before + self.counters[1].saturating_sub(self.counters[0])
    }
}

/// Trace with the operations that wait in it, and its other parts by parent.
#[derive(Clone, Debug, Default)]
struct WaitingTrace {
    operations: HashMap<SpanId, WaitingOperation>,
    below: HashMap<SpanId, Vec<Part>>,
    /// Number of parts in `below`.
    parts: usize,
}

#[derive(Clone, Debug)]
struct WaitingOperation {
    key: GuestKey,
    /// Tag `host.id` of its spans.
    host: Arc<str>,
    requests: HashMap<SpanId, OwnRequest>,
    root: Option<Part>,
    is_shared: bool,
    is_incomplete: bool,
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
            lost: HashMap::new(),
            refused: 0,
        }
    }

    /// Adds an operation of a guest, before its spans.
    pub(crate) fn add(&mut self, trace: &Trace, now: LogTime) {
        while let Some((_, id, root)) = self.order.front().copied().filter(|(at, ..)| at.0 + WAIT <= now.0) {
            self.order.pop_front();
            self.decide(id, root);
        }
        let is_operation = matches!(trace.root, Root::Call(_) | Root::Fault(_) | Root::AsyncIo);
        let has_io = !trace.bios.is_empty() || !trace.waited_for.is_empty() || !trace.merged_into.is_empty();
        if !is_operation || !has_io {
            return;
        }
        if self.order.len() >= WAITING_MAX {
            self.decide_oldest();
        }
        let machine = trace.names.virtual_machine().map_or("unknown", |machine| machine.shown_name());
        let program =
            trace.names.task.as_ref().map_or_else(|| "unknown".into(), |task| Arc::clone(&task.comm));
        let waits_for_others = trace.waited_for.iter().any(|wait| !wait.primary);
        let shown = trace.waited_for.iter().filter(|wait| wait.primary).map(|wait| &*wait.trace);
        let operation = WaitingOperation {
            key: GuestKey { machine: machine.into(), node: trace.source.node, program },
            host: format!("{:032x}", trace.source.node.0).into(),
            root: None,
            is_shared: waits_for_others || !trace.merged_into.is_empty(),
            is_incomplete: !trace.incomplete.is_empty(),
            requests: shown.chain([trace]).flat_map(own_requests).collect(),
        };
        self.waiting.entry(trace.id).or_default().operations.insert(trace.root_span, operation);
        self.order.push_back((now, trace.id, trace.root_span));
    }

    /// Adds spans that left the linker. Those of other traces than the waiting ones are ignored.
    pub(crate) fn add_spans(&mut self, spans: &[Span]) {
        for span in spans {
            let Some(waiting) = self.waiting.get_mut(&span.trace) else { continue };
            let part = part_of(span);
            if let Some(operation) = waiting.operations.get_mut(&part.id) {
                operation.root = Some(part);
            } else if let Some(parent) = part.parent {
                waiting.below.entry(parent).or_default().push(part);
                waiting.parts += 1;
                self.parts += 1;
            }
        }
        while self.parts > PARTS_MAX && !self.order.is_empty() {
            self.decide_oldest();
        }
    }

    /// Sets the number of records that a guest has lost since its agent started.
    pub(crate) fn set_lost(&mut self, guest: Source, lost: u64) {
        let new = LostRecords { source: guest, counters: [lost; 2], before: 0 };
        let known = self.lost.entry(guest.node).or_insert(new);
        if known.source != guest {
            *known = LostRecords { counters: [0, lost], before: known.total(), ..new };
        }
        known.counters[1] = lost;
    }

    /// Decides all waiting operations, after the last span. `refused`: endpoints that may be of several requests.
    pub(crate) fn finish(&mut self, refused: u64) {
        self.refused = refused;
        for (_, trace, root) in std::mem::take(&mut self.order) {
            self.decide(trace, root);
        }
    }

    fn decide_oldest(&mut self) {
        if let Some((_, trace, root)) = self.order.pop_front() {
            self.decided_early += 1;
            self.decide(trace, root);
        }
    }

    fn decide(&mut self, trace: TraceId, root: SpanId) {
        let Some(waiting) = self.waiting.get_mut(&trace) else { return };
        let Some(operation) = waiting.operations.remove(&root) else { return };
        let tree = operation.root.map(|root| {
            let tree = Tree::of(root, &mut waiting.below, &operation.host, &operation.requests);
            let taken = (tree.parts.len() - 1).min(waiting.parts);
            waiting.parts -= taken;
            self.parts -= taken;
            tree
        });
        if waiting.operations.is_empty() {
            self.parts -= waiting.parts;
            self.waiting.remove(&trace);
        }
        let Some(tree) = tree else { return };
        let [requests, linked] = tree.requests();
        self.requests[0] += requests;
        self.requests[1] += linked;
        let key = operation.key;
        let is_known = self.rows.contains_key(&key) || self.rows.len() < PROGRAMS_MAX;
        let row_key = if is_known { key.clone() } else { GuestKey { program: OTHERS.into(), ..key.clone() } };
        let row = self.rows.entry(row_key).or_default();
        let left_out = &mut row.left_out;
        if operation.is_incomplete {
            left_out.incomplete += 1;
        } else if operation.is_shared {
            left_out.shared += 1;
        } else if requests == 0 {
            left_out.unnamed += 1;
        } else if requests > linked {
            left_out.unlinked += 1;
        } else {
            let times = tree.times();
            row.operations += 1;
            row.times += times;
            self.add_slow(SlowOperation { key, tree, times });
        }
    }

    fn add_slow(&mut self, operation: SlowOperation) {
        let at = self.slowest.partition_point(|slower| slower.duration() >= operation.duration());
        // The summary has one, whatever number of trees is drawn.
        let max = self.slowest_max.max(1);
        if at < max {
            self.slowest.truncate(max - 1);
            self.slowest.insert(at, operation);
        }
    }

    /// Returns the rows, those with most time first.
    pub(crate) fn rows(&self) -> Vec<(&GuestKey, &GuestSums)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.times.total()));
        rows
    }

    /// Returns the number of operations in the layers, and the other ones.
    pub(crate) fn operations(&self) -> (u64, LeftOut) {
        let mut left_out = LeftOut::default();
        let mut operations = 0;
        for sums in self.rows.values() {
            operations += sums.operations;
            left_out.unlinked += sums.left_out.unlinked;
            left_out.shared += sums.left_out.shared;
            left_out.incomplete += sums.left_out.incomplete;
            left_out.unnamed += sums.left_out.unnamed;
        }
        (operations, left_out)
    }

    /// Returns the number of the guests' requests, and of those with all their operations of QEMU.
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

    /// Returns the number of records that the guests lost since they connected.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.values().map(LostRecords::total).sum()
    }
}

/// Returns the requests of a guest's trace to disks of QEMU.
fn own_requests(trace: &Trace) -> impl Iterator<Item = (SpanId, OwnRequest)> + '_ {
    let is_qemus = |device| trace.names.devices.disks.contains_key(device);
    trace.requests.iter().filter(move |request| is_qemus(&request.device)).map(|request| {
        let is_flush = request.bytes == 0;
        let flushes =
            if is_flush { 1 } else { u32::from(request.op.is_preflush()) + u32::from(request.op.is_fua()) };
        // A flush before the data is a request of its own, which is issued before.
        let issue = request.issue.filter(|_| flushes == 0 || is_flush);
        let issue = issue.map(|issue| trace.anchor.wallclock(issue).0);
        (request.span, OwnRequest { issue, flushes, has_data: !is_flush })
    })
}

/// Returns a span without its tags, with its machine if it has one.
fn part_of(span: &Span) -> Part {
    let has = |name: &str| span.tags.iter().any(|(key, _)| key == name);
    let kind = match &*span.name {
        "journal commit" => PartKind::JournalCommit,
        name if name.starts_with("request ") => PartKind::Request,
        // A call has its thread's name too.
        name if name.starts_with("nbd ") || has("process.pid") && !has("thread.name") => PartKind::Daemon,
        _ => PartKind::Other,
    };
    // A daemon may have a tag of this name too; that of the trace is added last.
    let host = span.tags.iter().rfind(|(key, _)| key == "host.id").and_then(|(_, value)| value.as_str());
    let mut label = format!("{} {}", span.service, span.name);
    label.truncate(label.floor_char_boundary(LABEL_MAX));
    Part {
        id: span.id,
        parent: span.parent,
        time: span.start.0..span.start.0.saturating_add(span.duration.0),
        kind,
        is_flush: span.name.contains("sync") || span.name.ends_with("flush"),
        is_moved: has("blkkin.trace.own"),
        host: host.map(Into::into),
        label: label.into(),
    }
}
