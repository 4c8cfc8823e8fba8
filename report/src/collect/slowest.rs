//! Full copies of the slowest calls' traces.

use std::cmp::Reverse;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::ids::SpanId;

use super::classified::ClassifiedTrace;

/// Maximum number of traces, whatever the configuration requests: each is a full copy, and a
/// terminal page is not read further.
pub const SLOWEST_MAX: usize = 1_000;

/// The slowest storage calls, the slowest first; equal durations by start time.
#[derive(Clone, Debug, Default)]
pub struct Slowest {
    limit: usize,
    traces: Vec<Trace>,
    /// Duration of the last entry, once the list is full. Nearly every new trace is faster, and one
    /// comparison rejects it.
    fastest: Option<DurationNs>,
}

type Rank = (Reverse<DurationNs>, MonotonicNs, Option<SpanId>);

impl Slowest {
    pub(crate) fn new(limit: usize) -> Self {
        Slowest { limit: limit.min(SLOWEST_MAX), traces: Vec::new(), fastest: None }
    }

    /// Adds the trace of a storage call or a major page fault; copies it only if it is among the
    /// slowest.
    pub(crate) fn add<'a>(&mut self, classified: impl Into<ClassifiedTrace<'a>>) {
        let classified = classified.into();
        let is_fault = matches!(&classified.trace.root, Root::Fault(fault) if fault.major);
        if (!classified.is_storage_operation() && !is_fault)
            || self.fastest.is_some_and(|fastest| classified.time < fastest)
        {
            return;
        }
        let trace = classified.trace;
        let position = self.traces.partition_point(|slower| rank(slower) <= rank(trace));
        if position < self.limit {
            self.traces.truncate(self.limit - 1);
            self.traces.insert(position, trace.clone());
            let full = self.traces.len() == self.limit;
            self.fastest = self.traces.last().filter(|_| full).map(Trace::duration);
        }
    }

    /// Returns the traces, the slowest first.
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
    use crate::sample::call;

    #[test]
    fn slowest_are_ordered_and_equal_durations_keep_the_earlier() {
        let mut slowest = Slowest::new(3);
        for (span, time) in [(1, 50), (2, 10), (3, 70), (4, 50), (5, 60), (6, 60), (7, 1)] {
            slowest.add(&call(span, "fsync", time));
        }
        let spans: Vec<u64> = slowest.traces().iter().map(|trace| trace.root_span.0).collect();
        assert_eq!(spans, [3, 5, 6]);
    }

    #[test]
    fn a_limit_of_zero_keeps_no_trace() {
        let mut slowest = Slowest::new(0);
        slowest.add(&call(1, "fsync", 5));
        assert!(slowest.traces().is_empty());
        assert_eq!(Slowest::new(usize::MAX).limit, SLOWEST_MAX);
    }
}
