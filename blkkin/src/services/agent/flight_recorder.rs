//! Flight recorder: keeps the last seconds of all events in memory, and sends them when something asks for them.
//!
//! *In*: the tracer's batches in order, and requests for a dump ([`DumpControl`]). *Out*: batches to send. Between
//! dumps these are one empty batch a second, with the source's counters, unless they go to a folder. A dump is the names of what its events refer
//! to, then every batch that is held, then what arrives in the [`TAIL`] after the request.
//!
//! *Invariant*: an event leaves once, in order, or is overwritten and counted
//! ([`SourceStats::events_overwritten`]). Within a dump nothing is missing: while it is sent nothing is overwritten, and
//! the sender takes no batch for which there is no room ([`FlightRecorder::has_room`]); then the rings fill, and the
//! kernel counts what it drops, as without a flight recorder. What is held takes at most the configured bytes, and one
//! batch.
//!
//! *Names* (tasks, files, devices) are sent once by the tracer, and later events refer to them. Those of overwritten
//! batches stay in a [`NameStore`], some 40 MB at most without process contexts.
//!
//! *Watermark.* It promises the consumers that no earlier event but a name follows, so it is that of the last batch that
//! left: what is held may still be sent. So a trace that waits for event time after a dump waits for the next dump, or
//! until what follows it is overwritten.
//!
//! Batches are held as they are encoded for Kafka, 30 to 42 bytes an event; a decoded event takes 200. *Rejected*: the
//! records themselves, which are numbered. Consumers would count those that were overwritten as lost.

mod control;
mod triggers;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::v1;
use tracing::info;

use super::name_store::NameStore;
use crate::cli::{FlightArgs, units};
use crate::error::CliError;

pub(super) use control::{DumpCause, DumpControl, TooSoon};
pub(super) use triggers::Triggers;

/// Time after a request for which a dump goes on, so that the ends of what was under way are in it. An fsync that
/// waits for a commit of ext4's journal takes some 100 ms.
const TAIL: Duration = Duration::from_secs(2);
/// Interval of the batches without events between dumps. Consumers take a source for dead after 30 s.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Least size of the memory, in bytes: many batches, of up to 100 kB each.
const BYTES_MIN: u64 = 1 << 20;
/// Names in one batch: as many as a record has events.
const NAMES_IN_BATCH: usize = 8_192;

/// Configuration of a flight recorder.
#[derive(Clone, Debug)]
pub(super) struct FlightSettings {
    /// Age at which a batch is overwritten.
    pub(super) window: Duration,
    /// Most bytes of batches.
    pub(super) bytes_max: u64,
    pub(super) triggers: Triggers,
}

/// Counts of a flight recorder: held now, and since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlightStats {
    /// Events and bytes that are held.
    pub(crate) held_events: u64,
    pub(crate) held_bytes: u64,
    /// Age of the oldest held batch.
    pub(crate) held_for: Duration,
    /// Events that were overwritten.
    pub(crate) overwritten: u64,
    /// Events that dumps had.
    pub(crate) dumped: u64,
    /// Names of overwritten batches that found no room.
    pub(crate) names_forgotten: u64,
}

impl fmt::Display for FlightStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, mib) = (self.held_for.as_secs_f64(), self.held_bytes as f64 / f64::from(1 << 20));
        write!(f, "{} events of the last {seconds:.1} s, {mib:.1} MiB", self.held_events)?;
        match self.overwritten {
            0 => Ok(()),
            events => write!(f, "; {events} earlier ones were overwritten"),
        }
    }
}

/// Creates the recorder that the options ask for.
pub(super) fn open(args: &FlightArgs) -> Result<Option<FlightRecorder>, CliError> {
    let Some(window) = &args.flight_recorder else { return Ok(None) };
    let window = units::std_duration("--flight-recorder", window)?;
    let bytes_max = units::bytes(&args.memory).filter(|bytes| *bytes >= BYTES_MIN).ok_or_else(|| {
        let why = "it is not a number of bytes of at least 1M";
        CliError::usage(
            format!("bad size `{}` for --memory", args.memory),
            why,
            "--memory 256M; units are K, M, G",
        )
    })?;
    let settings = FlightSettings { window, bytes_max, triggers: Triggers::parse(&args.dump_on)? };
    let interval = units::std_duration("--dump-every", &args.dump_every)?;
    Ok(Some(FlightRecorder::new(settings, Arc::new(DumpControl::new(interval)))))
}

/// A batch that is held.
#[derive(Debug)]
struct HeldBatch {
    at: Instant,
    bytes: Vec<u8>,
    /// The names of the batch, encoded as a batch of their own; empty without any.
    names: Vec<u8>,
    watermark: MonotonicNs,
    /// Events that are no names.
    events: u64,
}

impl HeldBatch {
    fn new(batch: &EventBatch, at: Instant) -> HeldBatch {
        let names: Vec<_> = batch.events.iter().filter(|event| event.is_name()).cloned().collect();
        let events = (batch.events.len() - names.len()) as u64;
        let named =
            (!names.is_empty()).then(|| v1::encode(&EventBatch { events: names, ..EventBatch::tick() }));
        let (bytes, names) = (v1::encode(batch), named.unwrap_or_default());
        HeldBatch { at, bytes, names, watermark: batch.watermark, events }
    }

    fn size(&self) -> u64 {
        (self.bytes.len() + self.names.len()) as u64
    }
}

/// Decodes a batch that this process encoded.
fn decoded(bytes: &[u8]) -> EventBatch {
    v1::decode(bytes).expect("invariant: this process has encoded the batch").batch
}

/// A dump that is being sent.
#[derive(Debug)]
struct Dump {
    until: Instant,
    /// Batches of names that precede the held ones.
    names: VecDeque<EventBatch>,
    events: u64,
}

/// The recorder.
#[derive(Debug)]
pub(super) struct FlightRecorder {
    settings: FlightSettings,
    control: Arc<DumpControl>,
    held: VecDeque<HeldBatch>,
    held_bytes: u64,
    held_events: u64,
    names: NameStore,
    dump: Option<Dump>,
    /// The latest batch without its events, for its counters; none before the first one.
    latest: Option<EventBatch>,
    /// Watermark of the last batch that left.
    watermark: MonotonicNs,
    overwritten: u64,
    dumped: u64,
    /// Interval of batches without events; none if no consumer waits for them.
    idle_interval: Option<Duration>,
    idle_since: Option<Instant>,
}

impl FlightRecorder {
    pub(super) fn new(settings: FlightSettings, control: Arc<DumpControl>) -> FlightRecorder {
        FlightRecorder {
            settings,
            control,
            held: VecDeque::new(),
            held_bytes: 0,
            held_events: 0,
            names: NameStore::default(),
            dump: None,
            latest: None,
            watermark: MonotonicNs(0),
            overwritten: 0,
            dumped: 0,
            idle_interval: Some(IDLE_INTERVAL),
            idle_since: None,
        }
    }

    /// Sends no batches between dumps, as a recording that has them would grow for ever.
    pub(super) fn disable_idle_batches(&mut self) {
        self.idle_interval = None;
    }

    /// Returns the control by which other threads request dumps.
    pub(super) fn control(&self) -> Arc<DumpControl> {
        Arc::clone(&self.control)
    }

    /// Holds a batch that arrived at `now`.
    pub(super) fn add(&mut self, batch: EventBatch, now: Instant) {
        if let Some(cause) = self.settings.triggers.find(&batch.events) {
            // If the last dump was a moment ago, the control has counted the request.
            let _ = self.control.request(cause, now);
        }
        let held = HeldBatch::new(&batch, now);
        self.latest = Some(EventBatch { events: Vec::new(), ..batch });
        self.held_bytes += held.size();
        self.held_events += held.events;
        self.held.push_back(held);
        self.overwrite(now);
        self.control.set_stats(self.stats(now));
    }

    /// Returns whether one more batch may be added.
    pub(super) fn has_room(&self) -> bool {
        !self.is_sent() || self.held_bytes < self.settings.bytes_max
    }

    /// Returns whether a batch is due now.
    pub(super) fn has_due(&self) -> bool {
        let of_dump = |dump: &Dump| !dump.names.is_empty() || self.has_held_for(dump);
        self.control.is_requested() || self.dump.as_ref().is_some_and(of_dump)
    }

    /// Takes the next batch to send, if one is due at `now`.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<EventBatch> {
        if let Some(cause) = self.control.take_request() {
            self.begin(cause, now);
        }
        let batch = match &mut self.dump {
            None => self.idle(now),
            Some(dump) => dump.names.pop_front().or_else(|| self.take_held(now)),
        };
        self.control.set_stats(self.stats(now));
        batch.map(|batch| EventBatch { stats: self.stats_now(), ..batch })
    }

    /// Takes the next batch after the last one has arrived: the rest of a dump, then the final counters.
    pub(super) fn take_at_end(&mut self, now: Instant) -> Option<EventBatch> {
        self.latest.as_ref()?;
        self.idle_interval = None;
        if let Some(batch) = self.take_due(now) {
            return Some(batch);
        }
        let mut last = self.latest.take()?;
        self.held.clear();
        info!(
            "the flight recorder held {} events that nothing asked for, and overwrote {}",
            self.held_events, self.overwritten
        );
        self.overwritten += std::mem::take(&mut self.held_events);
        self.held_bytes = 0;
        self.control.set_stats(self.stats(now));
        last.stats.events_overwritten = self.overwritten;
        Some(last)
    }

    fn begin(&mut self, cause: DumpCause, now: Instant) {
        let until = now + TAIL;
        if let Some(dump) = &mut self.dump {
            dump.until = until;
            return;
        }
        info!("{cause}: a dump begins, {}", self.stats(now));
        let mut dump = Dump { until, names: VecDeque::new(), events: 0 };
        if let Some(header) = &self.latest {
            let mut names = self.names.take_for_dump().into_iter().peekable();
            while names.peek().is_some() {
                let events = names.by_ref().take(NAMES_IN_BATCH).collect();
                dump.names.push_back(EventBatch { events, watermark: self.watermark, ..header.clone() });
            }
        }
        self.dump = Some(dump);
    }

    /// Returns a batch without events, if one is due.
    fn idle(&mut self, now: Instant) -> Option<EventBatch> {
        let interval = self.idle_interval?;
        if self.idle_since.is_some_and(|since| now.saturating_duration_since(since) < interval) {
            return None;
        }
        let latest = self.latest.clone()?;
        self.idle_since = Some(now);
        Some(EventBatch { watermark: self.watermark, ..latest })
    }

    /// Returns whether a dump has not sent all of its batches that are held.
    fn has_held_for(&self, dump: &Dump) -> bool {
        self.held.front().is_some_and(|held| held.at <= dump.until)
    }

    /// Takes the next batch of the dump; ends the dump after its last one.
    fn take_held(&mut self, now: Instant) -> Option<EventBatch> {
        let mut dump = self.dump.take()?;
        if !self.has_held_for(&dump) {
            match now >= dump.until {
                true => info!("the dump is complete: {} events", dump.events),
                false => self.dump = Some(dump),
            }
            return None;
        }
        let (bytes, events) = self.retire(true)?;
        self.dumped += events;
        dump.events += events;
        self.dump = Some(dump);
        Some(decoded(&bytes))
    }

    /// Returns whether what is held is being sent, or will be.
    fn is_sent(&self) -> bool {
        self.dump.is_some() || self.control.is_requested()
    }

    /// Overwrites what is too old, and what is too much; nothing while a dump is sent.
    fn overwrite(&mut self, now: Instant) {
        while let Some(oldest) = self.held.front().filter(|_| !self.is_sent()) {
            let age = now.saturating_duration_since(oldest.at);
            if age <= self.settings.window && self.held_bytes <= self.settings.bytes_max {
                return;
            }
            let Some((_, events)) = self.retire(false) else { return };
            self.overwritten += events;
        }
    }

    /// Removes the oldest batch, of which the names stay. Returns its bytes and its events that are no names.
    fn retire(&mut self, is_sent: bool) -> Option<(Vec<u8>, u64)> {
        let held = self.held.pop_front()?;
        self.held_bytes -= held.size();
        self.held_events -= held.events;
        self.watermark = self.watermark.max(held.watermark);
        if !held.names.is_empty() {
            decoded(&held.names).events.into_iter().for_each(|event| self.names.add(event, is_sent));
        }
        Some((held.bytes, held.events))
    }

    /// Returns the source's latest counters. A dump does not take them back to those of its time.
    fn stats_now(&self) -> SourceStats {
        let latest = self.latest.as_ref().map(|batch| batch.stats.clone()).unwrap_or_default();
        SourceStats { events_overwritten: self.overwritten, ..latest }
    }

    fn stats(&self, now: Instant) -> FlightStats {
        FlightStats {
            held_events: self.held_events,
            held_bytes: self.held_bytes,
            held_for: self
                .held
                .front()
                .map(|held| now.saturating_duration_since(held.at))
                .unwrap_or_default(),
            overwritten: self.overwritten,
            dumped: self.dumped,
            names_forgotten: self.names.forgotten(),
        }
    }
}

impl fmt::Display for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlightSettings { window, bytes_max, .. } = &self.settings;
        write!(f, "the last {:.1} s, at most {} MiB,", window.as_secs_f64(), bytes_max >> 20)
    }
}

#[cfg(test)]
mod tests;
