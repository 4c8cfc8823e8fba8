//! The part of a stretch of time that is accounted for: a union of intervals that only grows.
//!
//! *In*: a stretch, and intervals of any place. *Out*: by how much each lot of them made the covered part longer. *Invariant*: what
//! [`Covered::grow`] says, and at the end [`Covered::rest`], add up to the stretch, to the nanosecond.

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use smallvec::SmallVec;

pub(super) struct Covered {
    from: MonotonicNs,
    to: MonotonicNs,
    /// A call with one bio and its request has three: no allocation for the commonest trace.
    intervals: SmallVec<[(MonotonicNs, MonotonicNs); 4]>,
    length: u64,
}

impl Covered {
    pub(super) fn new(from: MonotonicNs, to: MonotonicNs) -> Self {
        Covered { from, to: to.max(from), intervals: SmallVec::new(), length: 0 }
    }

    pub(super) fn add(&mut self, from: MonotonicNs, to: MonotonicNs) {
        let (from, to) = (from.max(self.from), to.min(self.to));
        if from < to {
            self.intervals.push((from, to));
        }
    }

    /// By how much it grew since the last time: what is covered now and was not before.
    pub(super) fn grow(&mut self) -> DurationNs {
        self.intervals.sort_unstable();
        self.intervals.dedup_by(|next, kept| {
            let touches = next.0 <= kept.1;
            if touches {
                kept.1 = kept.1.max(next.1);
            }
            touches
        });
        let length = self.intervals.iter().map(|(from, to)| to.since(*from).0).sum();
        DurationNs(length - std::mem::replace(&mut self.length, length))
    }

    pub(super) fn rest(&self) -> DurationNs {
        DurationNs(self.to.since(self.from).0 - self.length)
    }
}
