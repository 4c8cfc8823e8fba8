//! Union of intervals within a period.
//!
//! *In*: the period, and intervals. *Out*: the growth of the union after each group of intervals.
//!
//! *Invariant*: the results of [`IntervalSet::take_growth`] and [`IntervalSet::uncovered`] add up
//! to the period, to the nanosecond.

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use smallvec::SmallVec;

pub(super) struct IntervalSet {
    from: MonotonicNs,
    to: MonotonicNs,
    /// A call with one bio and its request has three: no allocation for the most common trace.
    intervals: SmallVec<[(MonotonicNs, MonotonicNs); 4]>,
    length: u64,
}

impl IntervalSet {
    pub(super) fn new(from: MonotonicNs, to: MonotonicNs) -> Self {
        IntervalSet { from, to: to.max(from), intervals: SmallVec::new(), length: 0 }
    }

    pub(super) fn add(&mut self, from: MonotonicNs, to: MonotonicNs) {
        let (from, to) = (from.max(self.from), to.min(self.to));
        if from < to {
            self.intervals.push((from, to));
        }
    }

    /// Returns the growth since the last call: the time that is covered now and was not before.
    pub(super) fn take_growth(&mut self) -> DurationNs {
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

    pub(super) fn uncovered(&self) -> DurationNs {
        DurationNs(self.to.since(self.from).0 - self.length)
    }
}
