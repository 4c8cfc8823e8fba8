//! Counters of an exporter.
//!
//! *Invariant*: `offered = sent + dropped + pending` at every observable moment, because one lock
//! guards all of them (see [`crate::queue`]). Losses are counted by cause, because their remedies
//! differ.

/// Counters of offered spans by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportStats {
    /// Spans offered.
    pub offered: u64,
    /// Spans that Zipkin acknowledged, or that were written to the file.
    pub sent: u64,
    /// Spans that found the queue full: Zipkin was unreachable for too long, or is too slow.
    pub dropped_queue_full: u64,
    /// Spans that Zipkin or the format rejects permanently.
    pub dropped_rejected: u64,
    /// Spans not known to be delivered: waiting at the drain deadline, offered after the end, or
    /// not written to a failed file. Zipkin may have accepted some whose response was lost.
    pub dropped_undeliverable: u64,
    /// Retried POSTs. A retry is byte-identical, and Zipkin shows it once.
    pub retries: u64,
    /// Spans in the queue or in flight.
    pub pending: u64,
}

impl ExportStats {
    /// Returns the number of lost spans.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue_full + self.dropped_rejected + self.dropped_undeliverable
    }

    /// Returns whether offered = sent + dropped + pending.
    pub fn balances(&self) -> bool {
        self.offered == self.sent + self.dropped() + self.pending
    }
}
