//! Counters of one destination.

use std::collections::BTreeMap;
use std::time::SystemTime;

use blkkin_zipkin_export::{Attempt, AttemptResult};

use super::duration_histogram::DurationHistogram;

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DestinationStats {
    /// Spans in requests, counted at each attempt.
    pub(super) sent: u64,
    /// Of `sent`: spans that an earlier request carried.
    pub(super) resent: u64,
    /// Bytes of all requests.
    pub(super) bytes: u64,
    /// Requests by result.
    pub(super) answers: BTreeMap<AttemptResult, u64>,
    /// Spans that the destination acknowledged.
    pub(super) delivered: u64,
    /// The time of the last acknowledgement.
    pub(super) acknowledged_at: Option<SystemTime>,
    /// Delivery times, from the first attempt until each span has a verdict.
    pub(super) deliveries: DurationHistogram,
    /// Spans that the destination refused.
    pub(super) rejected: u64,
    /// Of `rejected`: spans in `blkkin.dead`.
    pub(super) dead_lettered: u64,
    /// Spans acknowledged and not accepted; the destination does not report which.
    pub(super) not_taken: u64,
    /// Fragments received.
    pub(super) fragments: u64,
    /// Fragments missing by sequence number.
    pub(super) missing_fragments: u64,
    /// Duplicate records.
    pub(super) duplicate_records: u64,
    /// Unreadable records, moved to `blkkin.dead`.
    pub(super) unreadable: u64,
    /// Spans in flight at the end without an acknowledgement; the next exporter sends them again.
    pub(super) unacknowledged: u64,
    /// Records left in the topic; `None` if the cluster did not report it.
    pub(super) records_left: Option<u64>,
    /// The last commit was not acknowledged, so the next exporter resends some spans.
    pub(super) uncommitted: bool,
    /// Another exporter with the same instance name fenced this one, which ends. Otherwise both
    /// would fence each other forever.
    pub(super) fenced: bool,
}

impl DestinationStats {
    /// Counts a request.
    pub(super) fn attempted(&mut self, attempt: Attempt) {
        let Attempt { spans, bytes, retry: again, result: answer } = attempt;
        self.sent += spans as u64;
        self.resent += if again { spans as u64 } else { 0 };
        self.bytes += bytes as u64;
        *self.answers.entry(answer).or_default() += 1;
    }

    /// Returns the number of requests with this result.
    pub(super) fn requests_with(&self, answer: AttemptResult) -> u64 {
        self.answers.get(&answer).copied().unwrap_or(0)
    }
}
