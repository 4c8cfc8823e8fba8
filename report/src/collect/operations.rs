//! The slowest operations, whole: what programs said that they did, who answered them, and all that was done for it.
//!
//! *In*: traces, one by one, and which of them is shown in which (`Operations::moved`): that is decided where spans are joined, and
//! never here. *Out*: trees. *Invariant*: what hangs together is what carries one trace's id, or was said to be moved; whatever
//! the order in which it comes, the same trees come of it, as long as nothing was given up.
//!
//! A *family* is what has one trace id: an operation, operations that are parts of it, and the calls made for any of them. Calls come
//! before their operation, which ends after them; so a family waits until its top has come. A family whose top answered somebody
//! waits for who asked, as it is shown in that one's tree; where nobody is heard who asks it is a tree of its own.
//!
//! *Memory*: of families at the top the slowest are kept; all others go as soon as they are known not to be among them, with
//! what hangs below. What waits is bounded by `HELD_MAX`: beyond it the one that has waited longest is taken for what it is by then.
//! What hangs below one that waits is not counted with it; by `BELOW_MAX` and `PARTS_MAX` it is bounded too, and in practice one family.
//! A family keeps its slowest `PARTS_MAX` parts, and how many more there were.
//!
//! *Rejected*: to make trees of spans, which are joined already. Spans have no phases of a request, and this would read back from words
//! what was numbers.

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
use tree::Tree;

/// Traces of families that wait. Some 20 MiB.
const HELD_MAX: usize = 16_384;
/// Traces of one family that are kept. A request of a daemon has a few; a query that reads a table has as many calls as it has pages.
const PARTS_MAX: usize = 128;
/// Families that are shown in one. A request is answered by one; this is against who says that of thousands.
const BELOW_MAX: usize = 128;

/// Whether operations are heard, and whether those that answered find who asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heard {
    /// They are not.
    #[default]
    Nothing,
    /// They are; who asked is not.
    Operations,
    /// Both are.
    Meetings,
}

/// The slowest of them.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    most: usize,
    heard: Heard,
    families: HashMap<TraceId, Family>,
    /// Those that wait, in the order in which they began to; some of them have found their place meanwhile.
    order: VecDeque<TraceId>,
    held: usize,
    ranks: BTreeSet<Rank>,
}

/// The slowest first; of equals the earlier.
type Rank = (Reverse<DurationNs>, MonotonicNs, u128);

#[derive(Clone, Debug, Default)]
struct Family {
    traces: Vec<Trace>,
    more: u64,
    place: Place,
    below: Vec<TraceId>,
}

#[derive(Clone, Debug, Default)]
enum Place {
    /// Not known yet.
    #[default]
    Waiting,
    /// Among the slowest.
    Top(Rank),
    /// In another's tree.
    In(Reparented),
}

impl Operations {
    pub(crate) fn new(most: usize, heard: Heard) -> Operations {
        Operations { most: most.min(SLOWEST_MAX), heard, ..Operations::default() }
    }

    /// Takes one trace in, and keeps a copy if it is an operation or a part of one.
    pub(crate) fn add(&mut self, trace: &Trace) {
        if self.most == 0 || self.heard == Heard::Nothing || !hangs_together(trace) {
            return;
        }
        if !self.families.contains_key(&trace.id) {
            self.order.push_back(trace.id);
        }
        let family = self.families.entry(trace.id).or_default();
        let before = family.traces.len();
        family.keep(trace);
        if matches!(family.place, Place::Waiting) {
            self.held += family.traces.len() - before;
            let asked_for = self.heard == Heard::Meetings && trace.answered();
            if is_top(trace) && !asked_for {
                self.judge(trace.id);
            }
        }
        self.make_room();
    }

    /// The trace `of` is shown in another.
    pub(crate) fn moved(&mut self, of: TraceId, moved: &Reparented) {
        if !self.families.contains_key(&of) || self.is_in(moved.trace, of) {
            return;
        }
        let room = self.families.get(&moved.trace).is_some_and(|asker| asker.below.len() < BELOW_MAX);
        self.leave(of);
        if !room {
            // Who asked was faster than those that are kept, so this was.
            return self.forget(of);
        }
        if let Some(family) = self.families.get_mut(&of) {
            family.place = Place::In(moved.clone());
        }
        if let Some(asker) = self.families.get_mut(&moved.trace) {
            asker.below.push(of);
        }
    }

    /// The slowest by now; what waits is taken for what it is.
    pub fn slowest(&self) -> Vec<Tree<'_>> {
        let tops = self.families.iter().filter(|(_, family)| !matches!(family.place, Place::In(_)));
        let ranks: BTreeSet<Rank> = tops.filter_map(|(id, family)| family.rank(*id)).collect();
        let tops = ranks.into_iter().take(self.most);
        tops.filter_map(|(.., id)| tree::grow(&self.families, TraceId(id))).collect()
    }

    /// Its place is at the top, if it is among the slowest. Without an operation it has none.
    fn judge(&mut self, id: TraceId) {
        self.leave(id);
        let Some(family) = self.families.get_mut(&id) else { return };
        let Some(rank) = family.rank(id) else { return self.forget(id) };
        family.place = Place::Top(rank);
        self.ranks.insert(rank);
        if self.ranks.len() > self.most
            && let Some((.., fastest)) = self.ranks.pop_last()
        {
            self.forget(TraceId(fastest));
        }
    }

    /// It has not the place that it had.
    fn leave(&mut self, id: TraceId) {
        let Some(family) = self.families.get(&id) else { return };
        match &family.place {
            Place::Waiting => self.held -= family.traces.len(),
            Place::Top(rank) => {
                self.ranks.remove(rank);
            }
            Place::In(moved) => {
                let asker = moved.trace;
                if let Some(asker) = self.families.get_mut(&asker) {
                    asker.below.retain(|below| *below != id);
                }
            }
        }
    }

    /// With all that hangs below. Its place is nowhere by now.
    fn forget(&mut self, id: TraceId) {
        let mut all = vec![id];
        while let Some(id) = all.pop() {
            all.extend(self.families.remove(&id).into_iter().flat_map(|family| family.below));
        }
    }

    fn make_room(&mut self) {
        while self.held > HELD_MAX {
            let Some(longest) = self.order.pop_front() else { return };
            if self.waits(longest) {
                self.judge(longest);
            }
        }
        // Those that have found their place leave their turn behind.
        if self.order.len() > 2 * HELD_MAX {
            let families = &self.families;
            self.order.retain(|id| families.get(id).is_some_and(|one| matches!(one.place, Place::Waiting)));
        }
    }

    fn waits(&self, id: TraceId) -> bool {
        self.families.get(&id).is_some_and(|family| matches!(family.place, Place::Waiting))
    }

    /// Whether `id` is `tree`, or is shown in it.
    fn is_in(&self, mut id: TraceId, tree: TraceId) -> bool {
        loop {
            if id == tree {
                return true;
            }
            match self.families.get(&id).map(|family| &family.place) {
                Some(Place::In(moved)) => id = moved.trace,
                _ => return false,
            }
        }
    }
}

impl Family {
    fn keep(&mut self, trace: &Trace) {
        if self.traces.len() < PARTS_MAX {
            return self.traces.push(trace.clone());
        }
        self.more += 1;
        // Operations hold the tree together.
        let worth = |trace: &Trace| (operation(trace).is_some(), trace.duration());
        if let Some(least) = self.traces.iter_mut().min_by_key(|trace| worth(trace))
            && worth(least) < worth(trace)
        {
            *least = trace.clone();
        }
    }

    /// The operation that all others are part of: the one that is no part, or the first to begin.
    fn top(&self) -> Option<&Trace> {
        let operations = || self.traces.iter().filter(|trace| operation(trace).is_some());
        let top = operations().find(|trace| is_top(trace));
        top.or_else(|| operations().min_by_key(|trace| (trace.start(), trace.root_span)))
    }

    fn rank(&self, id: TraceId) -> Option<Rank> {
        self.top().map(|top| (Reverse(top.duration()), top.start(), id.0))
    }
}

/// It is an operation, or made for one. A span of an application's own is none that is heard here; a call below it waits in vain.
fn hangs_together(trace: &Trace) -> bool {
    operation(trace).is_some() || trace.context().is_some()
}

fn is_top(trace: &Trace) -> bool {
    operation(trace).is_some_and(|operation| operation.parent.is_none())
}

fn operation(trace: &Trace) -> Option<&DaemonSpanEvent> {
    match &trace.root {
        Root::Operation(operation) => Some(operation),
        _ => None,
    }
}

/// The span that it hangs below, of its own trace.
fn above(trace: &Trace) -> Option<SpanId> {
    match &trace.root {
        Root::Operation(operation) => operation.parent,
        _ => trace.context().map(|context| context.span),
    }
}
