//! Devices on devices within one trace: which requests have others do their work.
//!
//! *In*: a [`Trace`]. *Out*: which of its bios the root queued and which drivers' commands it sent, and which of its requests are of a device that lies on
//! others. *Invariant*: a byte that moved through three layers of devices is one byte in every sum over "the devices": that
//! of the lowest layer that is known. Each layer's own row counts it for that layer.

use blkkin_wire::event::{BioEvent, RequestEvent, Submitter};

use crate::join::hash::SpanMap;
use crate::trace::Trace;

impl Trace {
    /// Whether the root itself queued it; any other does the work of a request above it.
    pub fn queued_by_root(&self, bio: &BioEvent) -> bool {
        match bio.submitter {
            Submitter::Kernel => true,
            Submitter::Span(span) => span == self.root_span,
        }
    }

    /// Whether it is a driver's command that the root itself sent.
    pub fn sent_by_root(&self, request: &RequestEvent) -> bool {
        request.op.is_passthrough() && request.parent == Some(self.root_span)
    }

    /// How many of its bios the root itself queued, and how many drivers' commands it sent.
    pub fn asked_by_root(&self) -> usize {
        let bios = self.bios.iter().filter(|bio| self.queued_by_root(bio)).count();
        bios + self.requests.iter().filter(|request| self.sent_by_root(request)).count()
    }
}

/// The requests of a trace that have others do their work.
#[derive(Debug, Default)]
pub struct Stacked(SpanMap<()>);

impl Stacked {
    /// Of a trace. Where no device lies on another, which is the rule, nothing is allocated.
    pub fn of(trace: &Trace) -> Self {
        let below = trace.bios.iter().filter(|bio| !trace.queued_by_root(bio));
        let above = below.filter_map(|bio| match bio.submitter {
            Submitter::Span(request) => Some((request, ())),
            Submitter::Kernel => None,
        });
        Stacked(above.collect())
    }

    /// Whether bios of the trace do this request's work.
    pub fn is_above(&self, request: &RequestEvent) -> bool {
        !self.0.is_empty() && self.0.contains_key(&request.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::tests::make;
    use blkkin_wire::ids::SpanId;

    #[test]
    fn a_request_that_a_bio_names_is_above_it() {
        let mut trace = make::trace(1);
        let (upper, above) = make::direct(1, 2, 3, (10, 90));
        let (lower, below) = make::direct(1, 4, 5, (20, 80));
        let lower = BioEvent { submitter: Submitter::Span(SpanId(3)), ..lower };
        trace.bios.extend([upper, lower]);
        trace.requests.extend([above, below]);
        let stacked = Stacked::of(&trace);
        assert_eq!(trace.requests.iter().map(|r| stacked.is_above(r)).collect::<Vec<_>>(), [true, false]);
        assert_eq!(trace.asked_by_root(), 1);
    }

    #[test]
    fn a_command_is_asked_for_by_the_call_that_sent_it() {
        let mut trace = make::trace(1);
        trace.requests.extend([make::command(1, 2, (10, 20)), make::direct(1, 4, 5, (20, 80)).1]);
        assert_eq!(trace.asked_by_root(), 1);
    }
}
