//! Stacked devices within one trace.
//!
//! *In*: a [`Trace`]. *Out*: the bios that the root queued, the passthrough requests that it sent,
//! and the requests of stacked devices.
//!
//! *Invariant*: a byte that moves through three layers of devices is one byte in every sum over all
//! devices: that of the lowest known layer. Each layer's own row counts it for that layer.
//!
//! *Rejected*: a list of stacked drivers. The trace itself shows which requests have lower bios.

use blkkin_wire::event::{BioEvent, RequestEvent, Submitter};

use crate::trace::Trace;
use crate::trace::id_map::SpanMap;

impl Trace {
    /// Returns whether the root or one of its submissions of asynchronous I/O queued the bio. Every
    /// other bio is a lower bio of a stacked device.
    pub fn queued_by_root(&self, bio: &BioEvent) -> bool {
        match bio.submitter {
            Submitter::Kernel => true,
            Submitter::Span(span) => span == self.root_span || self.async_io(span).is_some(),
        }
    }

    /// Returns whether the root counts the bio: it queued it itself.
    pub fn counted_by_root(&self, bio: &BioEvent) -> bool {
        bio.submitter == Submitter::Kernel || bio.submitter == Submitter::Span(self.root_span)
    }

    /// Returns whether it is a passthrough request that the root itself sent.
    pub fn sent_by_root(&self, request: &RequestEvent) -> bool {
        request.op.is_passthrough() && request.parent == Some(self.root_span)
    }

    /// Returns the number of bios that the root queued itself, of passthrough requests that it sent,
    /// and of its submissions of asynchronous I/O.
    pub fn submitted_by_root(&self) -> usize {
        let bios = self.bios.iter().filter(|bio| self.counted_by_root(bio)).count();
        let async_ios = self.async_ios.iter().filter(|io| io.event.submitter == Some(self.root_span)).count();
        bios + async_ios + self.requests.iter().filter(|request| self.sent_by_root(request)).count()
    }
}

/// Requests of a trace that have lower bios.
#[derive(Debug, Default)]
pub struct Stacked(SpanMap<()>);

impl Stacked {
    /// Finds the stacked requests of a trace. Without stacked devices, the usual case, nothing is
    /// allocated.
    pub fn of(trace: &Trace) -> Self {
        let lower_bios = trace.bios.iter().filter(|bio| !trace.queued_by_root(bio));
        let upper_requests = lower_bios.filter_map(|bio| match bio.submitter {
            Submitter::Span(request) => Some((request, ())),
            Submitter::Kernel => None,
        });
        Stacked(upper_requests.collect())
    }

    /// Returns whether lower bios of the trace serve this request.
    pub fn is_above(&self, request: &RequestEvent) -> bool {
        !self.0.is_empty() && self.0.contains_key(&request.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use blkkin_wire::ids::SpanId;

    #[test]
    fn a_request_with_a_lower_bio_is_stacked() {
        let mut trace = fixtures::trace(1);
        let (upper_bio, upper_request) = fixtures::bio_and_request(1, 2, 3, (10, 90));
        let (lower_bio, lower_request) = fixtures::bio_and_request(1, 4, 5, (20, 80));
        let lower_bio = BioEvent { submitter: Submitter::Span(SpanId(3)), ..lower_bio };
        trace.bios.extend([upper_bio, lower_bio]);
        trace.requests.extend([upper_request, lower_request]);
        let stacked = Stacked::of(&trace);
        assert_eq!(trace.requests.iter().map(|r| stacked.is_above(r)).collect::<Vec<_>>(), [true, false]);
        assert_eq!(trace.submitted_by_root(), 1);
    }

    #[test]
    fn a_passthrough_request_is_submitted_by_its_call() {
        let mut trace = fixtures::trace(1);
        trace.requests.extend([
            fixtures::passthrough_request(1, 2, (10, 20)),
            fixtures::bio_and_request(1, 4, 5, (20, 80)).1,
        ]);
        assert_eq!(trace.submitted_by_root(), 1);
    }
}
