//! Batches a tracer's small batches into records of up to thousands of events.
//!
//! *In*: one source's batches in order. *Out*: encoded records with consecutive sequences.
//! *Invariant*: each event is in exactly one record, in order. A record is no longer than a broker
//! accepts; a single event that is longer is counted ([`BatchedRecords::oversize`]).
//!
//! # Idle sources
//!
//! A batch without events carries a watermark, and consumers wait for it: events behind the last
//! watermark, commits that collect their waiters. So empty records are sent at the pace of full
//! ones until [`SETTLE`] after the last event. From then on one record a second reports that the
//! source lives. The first events after a pause are sent at once.

use std::time::{Duration, Instant};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::v1;

/// Time after the last event at which a watermark releases everything that waits for event time. It
/// is more than twice the wait of a commit for its waiters (100 ms; `JoinConfig::commit_grace` of
/// the aggregator). An inactive trace (30 s) waits up to a second longer.
const SETTLE: DurationNs = DurationNs(250_000_000);

/// Limits at which a record is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatcherConfig {
    /// Most events of a record.
    pub events_max: usize,
    /// Longest time an event waits for others.
    pub age_max: Duration,
    /// Interval of records without events: a thirtieth of the readers' source timeout.
    pub idle_max: Duration,
    /// Most bytes of a record, before compression.
    pub bytes_max: usize,
}

impl Default for BatcherConfig {
    fn default() -> Self {
        // 8,192 events are 256 KiB at 30 B each, which is what they take before compression.
        BatcherConfig {
            events_max: 8_192,
            age_max: Duration::from_millis(75),
            idle_max: Duration::from_secs(1),
            bytes_max: 1_000_000,
        }
    }
}

/// Encoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Encoded batch.
    pub bytes: Vec<u8>,
    /// Events in it.
    pub events: u64,
}

/// Records that became due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchedRecords {
    /// Records to send, in order.
    pub records: Vec<Record>,
    /// Events that are longer than a record and were dropped.
    pub oversize: u64,
}

/// Copies a batch without its events.
fn without_events(batch: &EventBatch) -> EventBatch {
    let EventBatch { source, sequence, anchor, watermark, .. } = *batch;
    let stats = batch.stats.clone();
    EventBatch { source, sequence, anchor, watermark, events: Vec::new(), stats, crashed_runs: Vec::new() }
}

/// Batcher of one source.
#[derive(Debug)]
pub struct EventBatcher {
    config: BatcherConfig,
    pending: Option<EventBatch>,
    sequence: u64,
    /// Time of the last record, or of the first batch.
    last: Option<Instant>,
    /// Latest event, and the last watermark sent.
    newest: MonotonicNs,
    watermark: MonotonicNs,
}

impl EventBatcher {
    /// Creates a batcher; the first record gets `sequence`.
    pub fn new(config: BatcherConfig, sequence: u64) -> EventBatcher {
        let zero = MonotonicNs(0);
        EventBatcher { config, pending: None, sequence, last: None, newest: zero, watermark: zero }
    }

    /// Adds a batch that arrived at `now`.
    pub fn add(&mut self, batch: EventBatch, now: Instant) -> BatchedRecords {
        self.last.get_or_insert(now);
        // Events are in time order.
        self.newest = batch.events.last().map_or(self.newest, |event| event.time().max(self.newest));
        match &mut self.pending {
            None => self.pending = Some(batch),
            Some(pending) => {
                pending.events.extend(batch.events);
                pending.crashed_runs.extend(batch.crashed_runs);
                // The later batch replaces the header: totals, watermark, newest anchor.
                (pending.anchor, pending.watermark, pending.stats) =
                    (batch.anchor, batch.watermark, batch.stats);
            }
        }
        self.due(now)
    }

    /// Returns the records due at `now`.
    pub fn due(&mut self, now: Instant) -> BatchedRecords {
        let full = |pending: &EventBatch| pending.events.len() >= self.config.events_max;
        if !self.pending.as_ref().is_some_and(|pending| full(pending) || self.due_in(now).is_zero()) {
            return BatchedRecords::default();
        }
        self.last = Some(now);
        self.take()
    }

    /// Returns the time until a record is due.
    pub fn due_in(&self, now: Instant) -> Duration {
        let Some(pending) = &self.pending else { return self.config.age_max };
        let settled = self.newest.0.saturating_add(SETTLE.0) <= self.watermark.0;
        let idle = settled && pending.events.is_empty() && pending.crashed_runs.is_empty();
        let pace = if idle { self.config.idle_max } else { self.config.age_max };
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        pace.saturating_sub(since)
    }

    /// Returns the pending events as records, due or not.
    pub fn take(&mut self) -> BatchedRecords {
        let mut batched = BatchedRecords::default();
        if let Some(batch) = self.pending.take() {
            self.watermark = batch.watermark;
            self.encode_or_split(batch, &mut batched);
        }
        batched
    }

    /// Encodes one record, or splits the batch in halves until each fits.
    fn encode_or_split(&mut self, batch: EventBatch, batched: &mut BatchedRecords) {
        if batch.events.len() > self.config.events_max {
            return self.split(batch, batched);
        }
        let batch = EventBatch { sequence: self.sequence, ..batch };
        let bytes = v1::encode(&batch);
        match batch.events.len() {
            _ if bytes.len() <= self.config.bytes_max => {
                self.sequence += 1;
                batched.records.push(Record { bytes, events: batch.events.len() as u64 });
            }
            0 | 1 => batched.oversize += batch.events.len() as u64,
            _ => self.split(batch, batched),
        }
    }

    fn split(&mut self, mut batch: EventBatch, batched: &mut BatchedRecords) {
        let second = batch.events.split_off(batch.events.len() / 2);
        // The watermark of the first half is the second half's first event.
        let until = second.first().map_or(batch.watermark, |event| event.time().min(batch.watermark));
        let rest = EventBatch { events: second, ..without_events(&batch) };
        batch.watermark = until;
        self.encode_or_split(batch, batched);
        self.encode_or_split(rest, batched);
    }
}

#[cfg(test)]
#[path = "batcher_tests.rs"]
mod tests;
