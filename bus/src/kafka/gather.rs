//! Small batches to larger ones: a tracer publishes every few milliseconds, and a record should hold hundreds of events.
//!
//! *In*: a source's batches in their order. *Out*: bytes of records, each with a sequence of its own counting. *Invariant*:
//! each event is in exactly one record, in the order in which it came; a record is at most as long as a broker takes, unless one
//! event alone is longer (then it is counted, see [`Gathered::oversize`]).
//!
//! # When nothing happens
//!
//! A batch without events says how far its source is complete, and what waits for that (events behind the last watermark, a
//! commit whose waiters are collected) must not wait longer because nothing else happens. So empty records go on at the pace of
//! full ones until [`SETTLE`] behind the last event; from there on they only say that the source lives, once a second.
//! What comes after a pause goes at once.

use std::time::{Duration, Instant};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::v1;

/// How far behind the last event a watermark decides all that waits for event time: more than twice what a commit waits for
/// those that waited for it (100 ms; `JoinConfig::commit_grace` of the aggregator). What waits longer (a quiet trace: 30 s)
/// waits a second longer at the most.
const SETTLE: DurationNs = DurationNs(250_000_000);

/// When a record is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherConfig {
    /// Events of a record at the most.
    pub events_max: usize,
    /// How long an event waits for others at the most.
    pub age_max: Duration,
    /// The same where there is nothing but that the source lives: a thirtieth of what its readers wait for that.
    pub idle_max: Duration,
    /// Bytes of a record at the most, before compression.
    pub bytes_max: usize,
}

impl Default for GatherConfig {
    fn default() -> Self {
        // 8,192 events are 256 KiB at 30 B each, which is what they take before compression.
        GatherConfig {
            events_max: 8_192,
            age_max: Duration::from_millis(75),
            idle_max: Duration::from_secs(1),
            bytes_max: 1_000_000,
        }
    }
}

/// Bytes for a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Of the batch.
    pub bytes: Vec<u8>,
    /// In it.
    pub events: u64,
}

/// What a batch came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// To be sent, in order.
    pub records: Vec<Record>,
    /// Events that alone are longer than a record may be: they are nowhere.
    pub oversize: u64,
}

/// A batch without its events.
fn frame(batch: &EventBatch) -> EventBatch {
    let EventBatch { source, sequence, anchor, watermark, .. } = *batch;
    let accounts = batch.accounts.clone();
    EventBatch { source, sequence, anchor, watermark, events: Vec::new(), accounts, killed: Vec::new() }
}

/// Gathers the batches of one source.
#[derive(Debug)]
pub struct Gatherer {
    config: GatherConfig,
    held: Option<EventBatch>,
    sequence: u64,
    /// When the last record went, or the first batch came.
    last: Option<Instant>,
    /// The latest event so far, and the watermark that went last.
    newest: MonotonicNs,
    watermark: MonotonicNs,
}

impl Gatherer {
    /// The first record gets this sequence.
    pub fn new(config: GatherConfig, sequence: u64) -> Gatherer {
        let zero = MonotonicNs(0);
        Gatherer { config, held: None, sequence, last: None, newest: zero, watermark: zero }
    }

    /// Adds a batch that came at `now`.
    pub fn add(&mut self, batch: EventBatch, now: Instant) -> Gathered {
        self.last.get_or_insert(now);
        // They are in the order of their times.
        self.newest = batch.events.last().map_or(self.newest, |event| event.time().max(self.newest));
        match &mut self.held {
            None => self.held = Some(batch),
            Some(held) => {
                held.events.extend(batch.events);
                held.killed.extend(batch.killed);
                // The later frame says all: totals, how far it is complete, the newest anchor.
                (held.anchor, held.watermark, held.accounts) =
                    (batch.anchor, batch.watermark, batch.accounts);
            }
        }
        self.due(now)
    }

    /// What is due at `now`, if nothing more comes.
    pub fn due(&mut self, now: Instant) -> Gathered {
        let full = |held: &EventBatch| held.events.len() >= self.config.events_max;
        if !self.held.as_ref().is_some_and(|held| full(held) || self.patience(now).is_zero()) {
            return Gathered::default();
        }
        self.last = Some(now);
        self.take()
    }

    /// How long nothing is due.
    pub fn patience(&self, now: Instant) -> Duration {
        let Some(held) = &self.held else { return self.config.age_max };
        let settled = self.newest.0.saturating_add(SETTLE.0) <= self.watermark.0;
        let only_alive = settled && held.events.is_empty() && held.killed.is_empty();
        let pace = if only_alive { self.config.idle_max } else { self.config.age_max };
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        pace.saturating_sub(since)
    }

    /// What is held, whether it is due or not.
    pub fn take(&mut self) -> Gathered {
        let mut gathered = Gathered::default();
        if let Some(batch) = self.held.take() {
            self.watermark = batch.watermark;
            self.cut(batch, &mut gathered);
        }
        gathered
    }

    /// One record, or, where that would be too long, each half by itself.
    fn cut(&mut self, batch: EventBatch, gathered: &mut Gathered) {
        if batch.events.len() > self.config.events_max {
            return self.halves(batch, gathered);
        }
        let batch = EventBatch { sequence: self.sequence, ..batch };
        let bytes = v1::encode(&batch);
        match batch.events.len() {
            _ if bytes.len() <= self.config.bytes_max => {
                self.sequence += 1;
                gathered.records.push(Record { bytes, events: batch.events.len() as u64 });
            }
            0 | 1 => gathered.oversize += batch.events.len() as u64,
            _ => self.halves(batch, gathered),
        }
    }

    fn halves(&mut self, mut batch: EventBatch, gathered: &mut Gathered) {
        let second = batch.events.split_off(batch.events.len() / 2);
        // The first half is complete up to where the second begins.
        let until = second.first().map_or(batch.watermark, |event| event.time().min(batch.watermark));
        let rest = EventBatch { events: second, ..frame(&batch) };
        batch.watermark = until;
        self.cut(batch, gathered);
        self.cut(rest, gathered);
    }
}

#[cfg(test)]
#[path = "gather_tests.rs"]
mod tests;
