//! The exporter's books.
//!
//! *Invariant*: `offered = sent + dropped + pending` at every moment at which anybody can look, because all of
//! them are changed under one lock (see [`crate::queue`]). A loss has one cause, and the causes are kept apart
//! since their remedies differ.

/// What became of the spans that an exporter was offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportAccounts {
    /// Spans offered.
    pub offered: u64,
    /// Spans that Zipkin acknowledged, or that were written to the file.
    pub sent: u64,
    /// Spans that found the queue full: Zipkin was away for too long, or is too slow.
    pub dropped_queue_full: u64,
    /// Spans that Zipkin, or the format, refuses, however often they are sent.
    pub dropped_rejected: u64,
    /// Spans not known to be delivered: still waiting when the time for draining was over, offered after the
    /// end, or a file that could not be written any more. Zipkin may have taken some whose answer was lost.
    pub dropped_undeliverable: u64,
    /// POSTs that were repeated. A repeat is byte-identical, and Zipkin shows it once.
    pub retries: u64,
    /// Spans in the queue or being sent.
    pub pending: u64,
}

impl ExportAccounts {
    /// Spans lost, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue_full + self.dropped_rejected + self.dropped_undeliverable
    }

    /// Whether the books agree.
    pub fn balances(&self) -> bool {
        self.offered == self.sent + self.dropped() + self.pending
    }
}
