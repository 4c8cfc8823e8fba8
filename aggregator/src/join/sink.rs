//! Output of the join.
//!
//! *In*: finished traces. *Out*: the same traces, with their parts in order, and counted.
//!
//! *Invariant*: every trace that leaves the join passes here once. Page origins whose bio never
//! arrived, or was emitted without them, are counted and dropped: they describe no part of a trace.
//! A sink gets the trace by reference: most sinks read it once, and the next trace reuses its
//! allocations.
//!
//! *Rejected*: traces by value. Each would cost a move through a list and two allocations, for its
//! bios and requests.

use super::stats::JoinStats;
use crate::trace::Trace;

/// A receiver of finished traces.
pub trait TraceSink {
    /// Receives a trace. A sink that retains it clones it.
    fn receive(&mut self, trace: &Trace);
}

impl<F: FnMut(&Trace)> TraceSink for F {
    fn receive(&mut self, trace: &Trace) {
        self(trace);
    }
}

/// Collects all traces.
impl TraceSink for Vec<Trace> {
    fn receive(&mut self, trace: &Trace) {
        self.push(trace.clone());
    }
}

/// A sink that also counts.
pub(super) struct StatsSink<'a> {
    pub(super) out: &'a mut dyn TraceSink,
    pub(super) stats: &'a mut JoinStats,
}

impl StatsSink<'_> {
    pub(super) fn emit(&mut self, trace: &mut Trace) {
        trace.sort_parts();
        self.stats.settle(trace);
        if !trace.has_only_page_origins() {
            self.out.receive(trace);
        }
    }
}
