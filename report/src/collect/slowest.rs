//! The slowest calls, whole.

use std::cmp::Reverse;

use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::ids::SpanId;

use super::seen::Seen;

/// Most that are kept, whatever is asked for: each is a whole trace, and nobody reads more in a terminal.
pub const SLOWEST_MAX: usize = 1_000;

/// The slowest calls on storage, the slowest first; of equals the earlier.
#[derive(Clone, Debug, Default)]
pub struct Slowest {
    most: usize,
    traces: Vec<Trace>,
    /// The time of the last of them, once there are as many as are kept: nearly all that come were faster.
    fastest: Option<DurationNs>,
}

type Rank = (Reverse<DurationNs>, MonotonicNs, Option<SpanId>);

impl Slowest {
    pub(crate) fn new(most: usize) -> Self {
        Slowest { most: most.min(SLOWEST_MAX), traces: Vec::new(), fastest: None }
    }

    /// A trace is copied only when it is among the slowest.
    pub(crate) fn add<'a>(&mut self, seen: impl Into<Seen<'a>>) {
        let seen = seen.into();
        if seen.storage_call().is_none() || self.fastest.is_some_and(|fastest| seen.time < fastest) {
            return;
        }
        let trace = seen.trace;
        let place = self.traces.partition_point(|kept| rank(kept) <= rank(trace));
        if place < self.most {
            self.traces.truncate(self.most - 1);
            self.traces.insert(place, trace.clone());
            let full = self.traces.len() == self.most;
            self.fastest = self.traces.last().filter(|_| full).map(Trace::duration);
        }
    }

    /// They.
    pub fn traces(&self) -> &[Trace] {
        &self.traces
    }
}

fn rank(trace: &Trace) -> Rank {
    (Reverse(trace.duration()), trace.start(), trace.call().map(|call| call.span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::sample::call;

    #[test]
    fn the_slowest_stay_in_order_and_equals_keep_the_earlier() {
        let mut slowest = Slowest::new(3);
        for (span, time) in [(1, 50), (2, 10), (3, 70), (4, 50), (5, 60), (6, 60), (7, 1)] {
            slowest.add(&call(span, "fsync", time));
        }
        let kept: Vec<u64> = slowest.traces().iter().map(|trace| trace.root_span.0).collect();
        assert_eq!(kept, [3, 5, 6]);
    }

    #[test]
    fn none_are_kept_when_none_are_asked_for() {
        let mut slowest = Slowest::new(0);
        slowest.add(&call(1, "fsync", 5));
        assert!(slowest.traces().is_empty());
        assert_eq!(Slowest::new(usize::MAX).most, SLOWEST_MAX);
    }
}
