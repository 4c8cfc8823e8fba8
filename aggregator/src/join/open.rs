//! Traces that are not complete, by root and by the time of their last event.
//!
//! *In*: bios, requests, page origins, roots and links of a trace. *Out*: completeness, and the
//! trace that was inactive for longest.
//!
//! The table is a slab, a map from root to slot, and a list through the slots, ordered from the
//! longest inactive trace to the most recent one. *Invariant*: every operation is O(1), and nothing
//! is allocated once the slab has grown.
//!
//! *Rejected*: a heap by time. Each event would move its trace in O(log n).

use std::sync::Arc;

use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::event::{BioEvent, RequestEvent, Submitter};
use blkkin_wire::ids::{Source, SpanId};
use blkkin_wire::page_origin::PageOriginEvent;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::commits::CommitKey;
use crate::trace::async_io::AsyncIo;
use crate::trace::id_map::SpanMap;
use crate::trace::{FragmentKind, Incomplete, Root, Trace};

/// A trace that is not complete.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OpenTrace {
    pub(super) trace: Trace,
    /// Bios that the root itself queued, passthrough requests that it sent, and its submissions of
    /// asynchronous I/O. The root counts these. Bios of stacked devices are not among them.
    counted: u32,
    /// Bios that arrived submissions of asynchronous I/O counted and that have not arrived.
    awaited_bios: u32,
    /// Requests that the trace's bios name as their children and that have not arrived.
    awaited_requests: Vec<SpanId>,
    /// Bios that announce a page origin.
    announced_origins: u32,
    /// Commit for which the call waits and whose primary is not decided.
    pub(super) awaited_commit: Option<CommitKey>,
    /// Parts that were emitted before under this trace id.
    pub(super) closed: ClosedTrace,
}

/// Parts of a closed trace that were emitted under its trace id.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ClosedTrace {
    /// Number of bios and passthrough requests of the root.
    pub(super) bios: u32,
    /// True if the root's own record was emitted.
    pub(super) root: bool,
}

impl OpenTrace {
    pub(super) fn new(trace: Trace) -> Self {
        OpenTrace {
            trace,
            counted: 0,
            awaited_bios: 0,
            awaited_requests: Vec::new(),
            announced_origins: 0,
            awaited_commit: None,
            closed: ClosedTrace::default(),
        }
    }

    /// Resets the slot for a new trace.
    fn begin(&mut self, source: Source, anchor: ClockAnchor, root: SpanId) {
        self.trace.reset(source, anchor, root);
        (self.counted, self.awaited_bios, self.announced_origins) = (0, 0, 0);
        self.awaited_requests.clear();
        (self.awaited_commit, self.closed) = (None, ClosedTrace::default());
    }

    /// Drops shared commits, and lists of unusual length.
    fn shrink(&mut self) {
        self.trace.waited_for.clear();
        if self.trace.bios.capacity().max(self.trace.requests.capacity()) > POOLED_PARTS_MAX {
            (self.trace.bios, self.trace.requests) = (Vec::new(), Vec::new());
            self.trace.page_origins = Vec::new();
        }
    }

    pub(super) fn resume(&mut self, closed: ClosedTrace) {
        self.closed = closed;
        self.trace.kind = FragmentKind::Late;
    }

    pub(super) fn add_bio(&mut self, bio: BioEvent) {
        if let Some(request) = bio.request.filter(|_| bio.first) {
            // From the end: a request's record is written just before those of its bios.
            let arrived = self.trace.requests.iter().rev().any(|known| known.span == request);
            if !arrived {
                self.awaited_requests.push(request);
            }
        }
        self.push_bio(bio);
    }

    /// Adds a bio with its request, which arrived together.
    pub(super) fn add_pair(&mut self, bio: BioEvent, request: RequestEvent) {
        self.push_bio(bio);
        push(&mut self.trace.requests, request);
    }

    /// Adds a submission of asynchronous I/O. Its bios have nearly always arrived: they end before
    /// it, but for those of a read-ahead.
    pub(super) fn add_async_io(&mut self, io: AsyncIo) {
        let AsyncIoEvent { span, submitter, bios, .. } = io.event;
        if span != self.trace.root_span {
            self.counted += u32::from(submitter == Some(self.trace.root_span));
            // From the end, and no further than needed: they arrived just before.
            let own = self.trace.bios.iter().rev().filter(|bio| bio.submitter == Submitter::Span(span));
            self.awaited_bios += bios - own.take(bios as usize).count() as u32;
        }
        push(&mut self.trace.async_ios, io);
    }

    fn push_bio(&mut self, bio: BioEvent) {
        let counted = self.trace.counted_by_root(&bio);
        self.counted += u32::from(counted);
        if self.awaited_bios > 0 && !counted && self.trace.queued_by_root(&bio) {
            self.awaited_bios -= 1;
        }
        self.announced_origins += u32::from(bio.has_page_origin);
        push(&mut self.trace.bios, bio);
    }

    pub(super) fn add_request(&mut self, request: RequestEvent) {
        if !self.awaited_requests.is_empty() {
            self.awaited_requests.retain(|&awaited| awaited != request.span);
        }
        self.counted += u32::from(self.trace.sent_by_root(&request));
        push(&mut self.trace.requests, request);
    }

    pub(super) fn add_page_origin(&mut self, origin: PageOriginEvent) {
        push(&mut self.trace.page_origins, origin);
    }

    /// Returns whether no further event is expected.
    pub(super) fn is_complete(&self) -> bool {
        // The root was emitted before: every further part is late, and their number is unknown.
        let late = self.closed.root;
        late || (self.bios_missing() == Some(0)
            && self.awaited_bios == 0
            && self.awaited_requests.is_empty()
            && self.page_origins_missing() == 0
            && self.awaited_commit.is_none())
    }

    pub(super) fn incomplete(&self) -> Incomplete {
        let root = matches!(self.trace.root, Root::Missing);
        if self.closed.root {
            return Incomplete { root, ..Incomplete::default() };
        }
        Incomplete {
            root,
            bios: self.bios_missing().unwrap_or(0) + self.awaited_bios,
            requests: self.awaited_requests.len() as u32,
            commits: self.awaited_commit.is_some().into(),
            page_origins: self.page_origins_missing(),
        }
    }

    /// Returns the parts that are emitted under the trace id once this trace is.
    pub(super) fn emitted(&self) -> ClosedTrace {
        let root = self.closed.root || !matches!(self.trace.root, Root::Missing);
        ClosedTrace { bios: self.closed.bios + self.counted, root }
    }

    fn page_origins_missing(&self) -> u32 {
        self.announced_origins.saturating_sub(self.trace.page_origins.len() as u32)
    }

    fn bios_missing(&self) -> Option<u32> {
        let expected = match &self.trace.root {
            Root::Call(call) => call.bios,
            Root::Commit(commit) => commit.bios,
            Root::AsyncIo => self.trace.root_async_io().map_or(0, |io| io.event.bios),
            Root::Fault(fault) => fault.bios,
            Root::DaemonSpan(_) => 0,
            Root::Kernel => 1,
            Root::Missing => return None,
        };
        Some(expected.saturating_sub(self.closed.bios + self.counted))
    }
}

/// Appends an item. Most lists have one item, and `Vec` alone would start with room for four.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.capacity() == 0 {
        list.reserve_exact(1);
    }
    list.push(item);
}

/// Index of an open trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

impl Slot {
    const NONE: Slot = Slot(u32::MAX);
}

/// Maximum number of bios or requests for which a finished trace's lists are reused. 4,096 traces
/// with lists of this length take 60 MB. Nearly all traces have one bio and one request.
const POOLED_PARTS_MAX: usize = 64;

/// A slot of the slab. A free slot retains the allocations of its last trace.
#[derive(Debug)]
struct Node {
    open: OpenTrace,
    last: MonotonicNs,
    older: Slot,
    newer: Slot,
}

/// Open traces of one source.
#[derive(Debug)]
pub(super) struct OpenTraces {
    nodes: Vec<Node>,
    free: Vec<Slot>,
    by_root: SpanMap<Slot>,
    oldest: Slot,
    newest: Slot,
}

impl OpenTraces {
    pub(super) fn new() -> Self {
        OpenTraces {
            nodes: Vec::new(),
            free: Vec::new(),
            by_root: SpanMap::default(),
            oldest: Slot::NONE,
            newest: Slot::NONE,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_root.len()
    }

    pub(super) fn find(&self, root: SpanId) -> Option<Slot> {
        self.by_root.get(&root).copied()
    }

    /// Opens the trace of `root`.
    pub(super) fn begin(
        &mut self,
        source: Source,
        anchor: ClockAnchor,
        root: SpanId,
        now: MonotonicNs,
    ) -> Slot {
        let slot = match self.free.pop() {
            Some(slot) => {
                let node = self.node(slot);
                node.open.begin(source, anchor, root);
                node.last = now;
                slot
            }
            None => return self.put(OpenTrace::new(Trace::new(source, anchor, root)), now),
        };
        self.by_root.insert(root, slot);
        self.append(slot);
        slot
    }

    /// Drops the device names. Every trace gets the current ones when it is closed.
    pub(super) fn drop_device_names(&mut self) {
        let none = Arc::default();
        self.nodes.iter_mut().for_each(|node| node.open.trace.names.devices = Arc::clone(&none));
    }

    /// Adds a slot for a trace whose last event was at `last`, later than that of all others.
    fn put(&mut self, open: OpenTrace, last: MonotonicNs) -> Slot {
        let (root, slot) = (open.trace.root_span, Slot(self.nodes.len() as u32));
        self.nodes.push(Node { open, last, older: Slot::NONE, newer: Slot::NONE });
        self.by_root.insert(root, slot);
        self.append(slot);
        slot
    }

    /// Iterates from the longest inactive trace to the most recent one.
    fn iter(&self) -> impl Iterator<Item = &Node> {
        let at = |slot: Slot| self.nodes.get(slot.0 as usize);
        std::iter::successors(at(self.oldest), move |node| at(node.newer))
    }

    pub(super) fn get(&mut self, slot: Slot) -> &mut OpenTrace {
        &mut self.node(slot).open
    }

    /// Returns a trace for reading.
    pub(super) fn peek(&self, slot: Slot) -> &OpenTrace {
        &self.nodes[slot.0 as usize].open
    }

    /// Records an event of the trace.
    pub(super) fn touch(&mut self, slot: Slot, now: MonotonicNs) {
        self.node(slot).last = now;
        if slot != self.newest {
            self.unlink(slot);
            self.append(slot);
        }
    }

    /// Frees the slot of `root`'s trace, which was emitted.
    pub(super) fn end(&mut self, slot: Slot, root: SpanId) {
        self.unlink(slot);
        self.by_root.remove(&root);
        self.free.push(slot);
        self.node(slot).open.shrink();
    }

    /// Returns the trace that was inactive for longest, and the time of its last event.
    pub(super) fn oldest(&self) -> Option<(Slot, MonotonicNs)> {
        let node = self.nodes.get(self.oldest.0 as usize)?;
        Some((self.oldest, node.last))
    }

    fn node(&mut self, slot: Slot) -> &mut Node {
        &mut self.nodes[slot.0 as usize]
    }

    fn append(&mut self, slot: Slot) {
        let newest = std::mem::replace(&mut self.newest, slot);
        let node = self.node(slot);
        (node.older, node.newer) = (newest, Slot::NONE);
        match newest {
            Slot::NONE => self.oldest = slot,
            newest => self.node(newest).newer = slot,
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let (older, newer) = (self.node(slot).older, self.node(slot).newer);
        match older {
            Slot::NONE => self.oldest = newer,
            older => self.node(older).newer = newer,
        }
        match newer {
            Slot::NONE => self.newest = older,
            newer => self.node(newer).older = older,
        }
    }
}

/// Writes the traces in the order of their last events. The slot numbers are not part of a
/// snapshot.
impl Serialize for OpenTraces {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().map(|node| (&node.open, node.last)).collect::<Vec<_>>())
    }
}

impl<'de> Deserialize<'de> for OpenTraces {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut traces = OpenTraces::new();
        for (open, last) in Vec::<(OpenTrace, MonotonicNs)>::deserialize(from)? {
            traces.put(open, last);
        }
        Ok(traces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn order(traces: &OpenTraces) -> Vec<u64> {
        traces.iter().map(|node| node.open.trace.root_span.0).collect()
    }

    #[test]
    fn the_list_is_ordered_by_last_activity() {
        let mut traces = OpenTraces::new();
        let begin = |traces: &mut OpenTraces, root| {
            let trace = fixtures::trace(root);
            traces.begin(trace.source, trace.anchor, trace.root_span, MonotonicNs(root))
        };
        let slots: Vec<Slot> = (1..=4).map(|root| begin(&mut traces, root)).collect();
        traces.touch(slots[1], MonotonicNs(5));
        assert_eq!(order(&traces), [1, 3, 4, 2]);
        traces.end(slots[2], SpanId(3));
        traces.end(slots[0], SpanId(1));
        assert_eq!(order(&traces), [4, 2]);
        assert_eq!(traces.oldest(), Some((slots[3], MonotonicNs(4))));
        begin(&mut traces, 9);
        assert_eq!((order(&traces), traces.nodes.len()), (vec![4, 2, 9], 4));
        assert_eq!(traces.find(SpanId(1)), None);
    }

    #[test]
    fn a_bios_own_request_is_awaited_and_another_one_is_not() {
        let (bio, request) = fixtures::bio_and_request(1, 2, 3, (10, 20));
        let mut open = OpenTrace::new(fixtures::trace(1));
        open.trace.root = Root::Call(fixtures::call_with(1, (0, 30), 2));
        open.add_bio(bio);
        open.add_bio(BioEvent { span: SpanId(4), first: false, request: Some(SpanId(99)), ..bio });
        assert_eq!(open.incomplete(), Incomplete { requests: 1, ..Incomplete::default() });
        open.add_request(request);
        assert!(open.is_complete());
    }

    #[test]
    fn a_passthrough_request_that_ends_after_its_call_is_awaited() {
        let mut open = OpenTrace::new(fixtures::trace(1));
        open.trace.root = Root::Call(fixtures::call_with(1, (0, 30), 1));
        assert!(!open.is_complete());
        open.add_request(fixtures::passthrough_request(1, 2, (10, 90)));
        assert!(open.is_complete());
    }

    #[test]
    fn a_lower_bio_is_not_counted_by_the_root() {
        let (upper_bio, upper_request) = fixtures::bio_and_request(1, 2, 3, (10, 90));
        let (lower_bio, lower_request) = fixtures::bio_and_request(1, 4, 5, (20, 80));
        let mut open = OpenTrace::new(fixtures::trace(1));
        open.trace.root = Root::Call(fixtures::call_with(1, (0, 100), 1));
        open.add_pair(
            BioEvent { submitter: Submitter::Span(upper_request.span), ..lower_bio },
            lower_request,
        );
        assert!(!open.is_complete());
        open.add_pair(upper_bio, upper_request);
        assert!(open.is_complete());
    }
}
