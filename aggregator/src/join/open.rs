//! Traces that are not complete yet, by root and by their last sign of life.
//!
//! A slab, a map from root to slot, and a list through the slots from the one silent for longest to the one
//! heard of last. Every operation is O(1); nothing is allocated once the slab has grown.

use std::sync::Arc;

use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::event::{BioEvent, RequestEvent};
use blkkin_wire::ids::{Source, SpanId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::commits::CommitKey;
use super::hash::SpanMap;
use crate::trace::{FragmentKind, Missing, Root, Trace};

/// A trace under way.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OpenTrace {
    pub(super) trace: Trace,
    /// Bios that the root itself queued, and commands that it sent, and counted: other bios do the work of requests above them.
    own: u32,
    /// Requests that its bios name as their children and that have not come.
    awaited: Vec<SpanId>,
    /// The commit that the call waited for and whose trace is not decided.
    pub(super) waits: Option<CommitKey>,
    /// What was given out before under this id.
    pub(super) before: Before,
}

/// What was given out under a trace's id when it had to be closed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Before {
    /// So many of the root's bios and commands.
    pub(super) bios: u32,
    /// The root's own record.
    pub(super) root: bool,
}

impl OpenTrace {
    pub(super) fn new(trace: Trace) -> Self {
        OpenTrace { trace, own: 0, awaited: Vec::new(), waits: None, before: Before::default() }
    }

    /// As if it were new.
    fn begin(&mut self, source: Source, anchor: ClockAnchor, root: SpanId) {
        self.trace.begin(source, anchor, root);
        self.own = 0;
        self.awaited.clear();
        (self.waits, self.before) = (None, Before::default());
    }

    /// Lets go of what others share and of lists that are unusually long.
    fn let_go(&mut self) {
        self.trace.causes.clear();
        if self.trace.bios.capacity().max(self.trace.requests.capacity()) > KEPT_PARTS_MAX {
            (self.trace.bios, self.trace.requests) = (Vec::new(), Vec::new());
        }
    }

    pub(super) fn continues(&mut self, before: Before) {
        self.before = before;
        self.trace.part = FragmentKind::Late;
    }

    pub(super) fn add_bio(&mut self, bio: BioEvent) {
        if let Some(request) = bio.request.filter(|_| bio.first) {
            // From the end: a request's record is written just before those of its bios.
            let here = self.trace.requests.iter().rev().any(|known| known.span == request);
            if !here {
                self.awaited.push(request);
            }
        }
        self.push_bio(bio);
    }

    /// Nobody waits for the request: it came with its bio.
    pub(super) fn add_pair(&mut self, bio: BioEvent, request: RequestEvent) {
        self.push_bio(bio);
        push(&mut self.trace.requests, request);
    }

    fn push_bio(&mut self, bio: BioEvent) {
        self.own += u32::from(self.trace.queued_by_root(&bio));
        push(&mut self.trace.bios, bio);
    }

    pub(super) fn add_request(&mut self, request: RequestEvent) {
        if !self.awaited.is_empty() {
            self.awaited.retain(|&awaited| awaited != request.span);
        }
        self.own += u32::from(self.trace.sent_by_root(&request));
        push(&mut self.trace.requests, request);
    }

    /// Whether nothing more is expected.
    pub(super) fn is_complete(&self) -> bool {
        // Its root was given out: whatever comes is late, and nobody knows how much will.
        let late = self.before.root;
        late || (self.bios_missing() == Some(0) && self.awaited.is_empty() && self.waits.is_none())
    }

    pub(super) fn missing(&self) -> Missing {
        let root = matches!(self.trace.root, Root::Missing);
        if self.before.root {
            return Missing { root, ..Missing::default() };
        }
        Missing {
            root,
            bios: self.bios_missing().unwrap_or(0),
            requests: self.awaited.len() as u32,
            commits: self.waits.is_some().into(),
        }
    }

    /// What was given out under its id once this is.
    pub(super) fn given_out(&self) -> Before {
        let root = self.before.root || !matches!(self.trace.root, Root::Missing);
        Before { bios: self.before.bios + self.own, root }
    }

    fn bios_missing(&self) -> Option<u32> {
        let expected = match &self.trace.root {
            Root::Call(call) => call.bios,
            Root::Commit(commit) => commit.bios,
            Root::Operation(_) => 0,
            Root::Kernel => 1,
            Root::Missing => return None,
        };
        Some(expected.saturating_sub(self.before.bios + self.own))
    }
}

/// One is by far the commonest number; `Vec` alone would start with four.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.capacity() == 0 {
        list.reserve_exact(1);
    }
    list.push(item);
}

/// Where an open trace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

impl Slot {
    const NONE: Slot = Slot(u32::MAX);
}

/// More bios or requests than a finished trace may have for its lists to be kept for the next: those of 4096 traces
/// of the largest kept take 60 MB, and nearly all have one of each.
const KEPT_PARTS_MAX: usize = 64;

/// One trace's place; between two traces it is free, and keeps what the last one had allocated.
#[derive(Debug)]
struct Node {
    open: OpenTrace,
    last: MonotonicNs,
    older: Slot,
    newer: Slot,
}

/// All open traces of one source.
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

    /// Lets go of the devices' names, which a trace gets when it is closed, whatever it had.
    pub(super) fn forget_devices(&mut self) {
        let none = Arc::default();
        self.nodes.iter_mut().for_each(|node| node.open.trace.names.devices = Arc::clone(&none));
    }

    /// A new place for a trace that was last heard of at `last`, later than all others.
    fn put(&mut self, open: OpenTrace, last: MonotonicNs) -> Slot {
        let (root, slot) = (open.trace.root_span, Slot(self.nodes.len() as u32));
        self.nodes.push(Node { open, last, older: Slot::NONE, newer: Slot::NONE });
        self.by_root.insert(root, slot);
        self.append(slot);
        slot
    }

    /// From the one silent for longest to the one heard of last.
    fn iter(&self) -> impl Iterator<Item = &Node> {
        let at = |slot: Slot| self.nodes.get(slot.0 as usize);
        std::iter::successors(at(self.oldest), move |node| at(node.newer))
    }

    pub(super) fn get(&mut self, slot: Slot) -> &mut OpenTrace {
        &mut self.node(slot).open
    }

    /// The same, to look at.
    pub(super) fn peek(&self, slot: Slot) -> &OpenTrace {
        &self.nodes[slot.0 as usize].open
    }

    /// It gave a sign of life.
    pub(super) fn touch(&mut self, slot: Slot, now: MonotonicNs) {
        self.node(slot).last = now;
        if slot != self.newest {
            self.unlink(slot);
            self.append(slot);
        }
    }

    /// The trace of `root`, in `slot`, was given out.
    pub(super) fn end(&mut self, slot: Slot, root: SpanId) {
        self.unlink(slot);
        self.by_root.remove(&root);
        self.free.push(slot);
        self.node(slot).open.let_go();
    }

    /// The trace silent for longest, and since when.
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

/// In the order of their last signs of life: which slot each has is nobody else's business.
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
    use blkkin_wire::event::Submitter;

    use super::*;
    use crate::join::tests::make;

    fn order(traces: &OpenTraces) -> Vec<u64> {
        traces.iter().map(|node| node.open.trace.root_span.0).collect()
    }

    #[test]
    fn the_list_goes_from_longest_silent_to_last_heard_of() {
        let mut traces = OpenTraces::new();
        let begin = |traces: &mut OpenTraces, root| {
            let trace = make::trace(root);
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
    fn a_bios_own_request_is_awaited_and_anothers_is_not() {
        let (bio, request) = make::direct(1, 2, 3, (10, 20));
        let mut open = OpenTrace::new(make::trace(1));
        open.trace.root = Root::Call(make::call_with(1, (0, 30), 2));
        open.add_bio(bio);
        open.add_bio(BioEvent { span: SpanId(4), first: false, request: Some(SpanId(99)), ..bio });
        assert_eq!(open.missing(), Missing { requests: 1, ..Missing::default() });
        open.add_request(request);
        assert!(open.is_complete());
    }

    #[test]
    fn a_command_that_ends_after_its_call_is_awaited() {
        let mut open = OpenTrace::new(make::trace(1));
        open.trace.root = Root::Call(make::call_with(1, (0, 30), 1));
        assert!(!open.is_complete());
        open.add_request(make::command(1, 2, (10, 90)));
        assert!(open.is_complete());
    }

    #[test]
    fn a_bio_below_a_request_is_not_one_that_the_root_counted() {
        let (upper, above) = make::direct(1, 2, 3, (10, 90));
        let (lower, below) = make::direct(1, 4, 5, (20, 80));
        let mut open = OpenTrace::new(make::trace(1));
        open.trace.root = Root::Call(make::call_with(1, (0, 100), 1));
        open.add_pair(BioEvent { submitter: Submitter::Span(above.span), ..lower }, below);
        assert!(!open.is_complete());
        open.add_pair(upper, above);
        assert!(open.is_complete());
    }
}
