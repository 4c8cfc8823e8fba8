//! Small batches to larger ones: a tracer publishes every few milliseconds, and a record should hold hundreds of events.
//!
//! *In*: a source's batches in their order. *Out*: bytes of records, each with a sequence of its own counting. *Invariant*:
//! each event is in exactly one record, in the order in which it came; a record is at most as long as a broker takes, unless one
//! event alone is longer (then it is counted, see [`Gathered::oversize`]).

use std::time::{Duration, Instant};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::v1;

/// When a record is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherConfig {
    /// Events of a record at the most.
    pub events_max: usize,
    /// How long an event waits for others at the most.
    pub age_max: Duration,
    /// Bytes of a record at the most, before compression.
    pub bytes_max: usize,
}

impl Default for GatherConfig {
    fn default() -> Self {
        // 8,192 events are 256 KiB at 30 B each, which is what they take before compression.
        GatherConfig { events_max: 8_192, age_max: Duration::from_millis(75), bytes_max: 1_000_000 }
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
    EventBatch { source, sequence, anchor, watermark, events: Vec::new(), accounts: batch.accounts.clone() }
}

/// Gathers the batches of one source.
#[derive(Debug)]
pub struct Gatherer {
    config: GatherConfig,
    held: Option<(EventBatch, Instant)>,
    sequence: u64,
}

impl Gatherer {
    /// The first record gets this sequence.
    pub fn new(config: GatherConfig, sequence: u64) -> Gatherer {
        Gatherer { config, held: None, sequence }
    }

    /// Adds a batch that came at `now`.
    pub fn add(&mut self, batch: EventBatch, now: Instant) -> Gathered {
        match &mut self.held {
            None => self.held = Some((batch, now)),
            Some((held, _)) => {
                held.events.extend(batch.events);
                // The later frame says all: totals, how far it is complete, the newest anchor.
                (held.anchor, held.watermark, held.accounts) =
                    (batch.anchor, batch.watermark, batch.accounts);
            }
        }
        self.due(now)
    }

    /// What is due at `now`, if nothing more comes.
    pub fn due(&mut self, now: Instant) -> Gathered {
        let full = self.held.as_ref().is_some_and(|(held, since)| {
            held.events.len() >= self.config.events_max
                || now.saturating_duration_since(*since) >= self.config.age_max
        });
        if full { self.take() } else { Gathered::default() }
    }

    /// How long nothing is due.
    pub fn patience(&self, now: Instant) -> Duration {
        let since = self.held.as_ref().map(|(_, since)| now.saturating_duration_since(*since));
        since.map_or(self.config.age_max, |age| self.config.age_max.saturating_sub(age))
    }

    /// What is held, whether it is due or not.
    pub fn take(&mut self) -> Gathered {
        let mut gathered = Gathered::default();
        if let Some((batch, _)) = self.held.take() {
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
