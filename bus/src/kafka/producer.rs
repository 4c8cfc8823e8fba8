//! Producer of event records.
//!
//! *In*: encoded records of a node. *Out*: the same records in [`EVENTS`], and the outcome of each
//! ([`Ack`]). *Invariant*: each accepted event is acknowledged by the cluster, counted as failed,
//! or in flight.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use blkkin_wire::ids::NodeId;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use super::batcher::Record;
use super::connectivity::LogCapture;
use super::{EVENTS, KafkaError, Settings};

/// Pause between two checks of a full queue.
const FULL_POLL: Duration = Duration::from_millis(5);

/// librdkafka's time to wait for a missing topic, so that an agent may start before its topic
/// exists. By default librdkafka treats a topic that is missing for 30 s after the first record as
/// nonexistent, and fails every queued record. The value is close to the largest possible:
/// librdkafka counts µs in 32 bits (`rd_kafka_topic_set_notexists`, rdkafka_topic.c), whatever its
/// documentation allows.
const TOPIC_WAIT_SETTING: &str = "topic.metadata.propagation.max.ms";
const TOPIC_WAIT: Duration = Duration::from_secs(35 * 60);

/// Delivery counters: `accepted = delivered + failed + waiting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryStats {
    /// Events accepted for sending.
    pub accepted: u64,
    /// Accepted events that all in-sync replicas acknowledged.
    pub delivered: u64,
    /// Accepted events that the cluster rejected for good.
    pub failed: u64,
    /// Bytes of the delivered records, before compression.
    pub bytes: u64,
    /// Time spent waiting for room in the queue, in ns.
    pub waited_ns: u64,
}

impl DeliveryStats {
    /// Returns the events in flight.
    pub fn waiting(&self) -> u64 {
        self.accepted.saturating_sub(self.delivered + self.failed)
    }
}

#[derive(Debug, Default)]
struct Totals {
    accepted: AtomicU64,
    delivered: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    waited_ns: AtomicU64,
    /// Records with a handle that were acknowledged or rejected since the last `take_acks`.
    acked: Mutex<Vec<(DeliveryHandle, Ack)>>,
    /// Latest rejection.
    rejection: Mutex<Option<Driver>>,
    /// True if no record was delivered since the latest rejection.
    rejecting: AtomicBool,
}

/// Data attached to a queued record.
struct RecordLabel {
    events: u64,
    /// Some if the caller wants this record's acknowledgement.
    handle: Option<DeliveryHandle>,
}

/// Handle by which the caller recognises a record's acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryHandle(pub u64);

/// Outcome of a record with a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Acknowledged by all in-sync replicas.
    Delivered,
    /// Rejected for now: the caller may send it again. It no longer counts as accepted.
    Retriable,
    /// Rejected for good: longer than the topic allows, or invalid. It no longer counts as
    /// accepted.
    Rejected,
}

impl Ack {
    fn of(result: &DeliveryResult<'_>) -> Ack {
        let Err((error, _)) = result else { return Ack::Delivered };
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::InvalidRecord) => Ack::Rejected,
            _ => Ack::Retriable,
        }
    }
}

/// Delivery callback of librdkafka.
#[derive(Clone, Debug, Default)]
struct DeliveryReports {
    totals: Arc<Totals>,
    /// Latest connection error, cleared by the next delivery.
    log: LogCapture,
}

impl ClientContext for DeliveryReports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.log(level, facility, line);
    }

    fn error(&self, error: Driver, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ProducerContext for DeliveryReports {
    type DeliveryOpaque = Box<RecordLabel>;

    fn delivery(&self, result: &DeliveryResult<'_>, label: Box<RecordLabel>) {
        let RecordLabel { events, handle } = *label;
        let Totals { accepted, delivered, failed, bytes, acked, rejection, rejecting, .. } = &*self.totals;
        match result {
            Ok(message) => {
                bytes.fetch_add(message.payload_len() as u64, Relaxed);
                delivered.fetch_add(events, Relaxed);
                rejecting.store(false, Relaxed);
                self.log.clear();
            }
            Err((error, _)) => {
                // The caller that holds the handle decides whether to send it again.
                if handle.is_some() {
                    accepted.fetch_sub(events, Relaxed)
                } else {
                    failed.fetch_add(events, Relaxed)
                };
                // Purged by this process, not rejected by the cluster.
                let code = error.rdkafka_error_code();
                if !matches!(code, Some(Code::PurgeQueue | Code::PurgeInflight)) {
                    *rejection.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
                    rejecting.store(true, Relaxed);
                }
            }
        }
        if let Some(handle) = handle {
            acked.lock().unwrap_or_else(PoisonError::into_inner).push((handle, Ack::of(result)));
        }
    }
}

/// Sends a node's records to [`EVENTS`].
pub struct EventProducer {
    producer: ThreadedProducer<DeliveryReports>,
    reports: DeliveryReports,
    domain: NodeId,
    settings: Settings,
    /// Error of the producer before `recreate`.
    previous_error: Option<KafkaError>,
}

impl EventProducer {
    /// Creates a producer for the events of `domain`: a node, or a guest's host. The cluster may be
    /// unreachable.
    pub fn new(settings: &Settings, domain: NodeId) -> Result<EventProducer, KafkaError> {
        let reports = DeliveryReports::default();
        let producer = create_producer(settings, &reports)?;
        Ok(EventProducer { producer, reports, domain, settings: settings.clone(), previous_error: None })
    }

    /// Replaces a producer with a fatal error: records in flight are returned as retriable, though
    /// some may have arrived. librdkafka has no other way back after a rejected authorization.
    pub fn recreate(&mut self) -> Result<(), KafkaError> {
        self.previous_error = self.last_rejection();
        self.producer = create_producer(&self.settings, &self.reports)?;
        Ok(())
    }

    /// Returns whether librdkafka has a fatal error and sends no more.
    pub fn has_fatal_error(&self) -> bool {
        self.producer.client().fatal_error().is_some()
    }

    /// Counts returned events that the caller drops.
    pub fn count_lost(&self, events: u64) {
        self.reports.totals.accepted.fetch_add(events, Relaxed);
        self.reports.totals.failed.fetch_add(events, Relaxed);
    }

    /// Queues a record; waits while the queue is full, and returns the record if `stop` becomes
    /// true meanwhile.
    pub fn send(&self, record: Record, stop: impl Fn() -> bool) -> Result<Sent, KafkaError> {
        self.send_for(self.domain, record, stop)
    }

    /// Queues a record for another join domain, like [`EventProducer::send`].
    pub fn send_for(
        &self,
        domain: NodeId,
        record: Record,
        stop: impl Fn() -> bool,
    ) -> Result<Sent, KafkaError> {
        let mut waiting: Option<Instant> = None;
        loop {
            if self.queue(domain, &record.bytes, RecordLabel { events: record.events, handle: None })? {
                self.add_wait(waiting.map_or(Duration::ZERO, |since| since.elapsed()));
                return Ok(Sent::Queued);
            }
            let since = *waiting.get_or_insert_with(Instant::now);
            if stop() {
                self.add_wait(since.elapsed());
                return Ok(Sent::Full(record));
            }
            std::thread::sleep(FULL_POLL);
        }
    }

    /// Queues a record without waiting; returns false if the queue is full.
    /// [`EventProducer::take_acks`] returns its outcome with `handle`.
    pub fn try_send(
        &self,
        domain: NodeId,
        bytes: &[u8],
        events: u64,
        handle: DeliveryHandle,
    ) -> Result<bool, KafkaError> {
        self.queue(domain, bytes, RecordLabel { events, handle: Some(handle) })
    }

    /// Takes the outcomes of records with a handle since the last call.
    pub fn take_acks(&self) -> Vec<(DeliveryHandle, Ack)> {
        let mut acked = self.reports.totals.acked.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *acked)
    }

    fn queue(&self, domain: NodeId, bytes: &[u8], label: RecordLabel) -> Result<bool, KafkaError> {
        let (key, events) = (domain.0.to_be_bytes(), label.events);
        let queued = BaseRecord::with_opaque_to(EVENTS, Box::new(label)).key(&key[..]).payload(bytes);
        // Counted before it is queued: its acknowledgement may arrive at once, and delivered never
        // exceeds accepted.
        self.reports.totals.accepted.fetch_add(events, Relaxed);
        match self.producer.send(queued) {
            Ok(()) => Ok(true),
            Err((error, _)) => {
                self.reports.totals.accepted.fetch_sub(events, Relaxed);
                // A missing topic may be created later, by this process or an operator.
                let transient = [
                    Code::QueueFull,
                    Code::UnknownTopic,
                    Code::UnknownPartition,
                    Code::UnknownTopicOrPartition,
                ];
                if transient.into_iter().any(|code| has_code(&error, code)) {
                    return Ok(false);
                }
                Err(KafkaError::of_client(&self.settings, "send to", &error, self.producer.client()))
            }
        }
    }

    /// Waits up to `timeout` for all records to be delivered or failed, and returns the counters.
    pub fn finish(self, timeout: Duration) -> DeliveryStats {
        // The counters show records that are still in flight.
        let _ = self.producer.flush(timeout);
        self.stats()
    }

    /// Waits up to `timeout` for all records to be delivered or failed; the producer stays usable.
    pub fn flush(&self, timeout: Duration) -> DeliveryStats {
        // The counters show records that are still in flight.
        let _ = self.producer.flush(timeout);
        self.stats()
    }

    /// Returns the latest rejection; [`DeliveryStats::failed`] counts the events that it cost.
    pub fn last_rejection(&self) -> Option<KafkaError> {
        if let Some(error) = KafkaError::fatal(&self.settings, self.producer.client()) {
            return Some(error);
        }
        let rejection = self.reports.totals.rejection.lock().unwrap_or_else(PoisonError::into_inner);
        let verb = format!("write to {EVENTS} of");
        let rejection = rejection.as_ref().map(|error| KafkaError::of(&self.settings, &verb, error));
        rejection.or_else(|| self.previous_error.clone())
    }

    /// Returns whether the latest outcome was a rejection.
    pub fn is_rejecting(&self) -> bool {
        self.reports.totals.rejecting.load(Relaxed)
    }

    /// Returns the current obstacle, if nothing was delivered since: an unreachable broker or a
    /// rejection.
    pub fn current_error(&self) -> Option<KafkaError> {
        let rejects = self.has_fatal_error() || self.is_rejecting();
        let rejection = if rejects { self.last_rejection() } else { None };
        rejection.or_else(|| self.reports.log.failure(&self.settings))
    }

    /// Returns the counters.
    pub fn stats(&self) -> DeliveryStats {
        let Totals { accepted, delivered, failed, bytes, waited_ns, .. } = &*self.reports.totals;
        // Accepted is read last: it is never less than the deliveries read before.
        let (delivered, failed, bytes) = (delivered.load(Relaxed), failed.load(Relaxed), bytes.load(Relaxed));
        DeliveryStats {
            delivered,
            failed,
            bytes,
            waited_ns: waited_ns.load(Relaxed),
            accepted: accepted.load(Relaxed),
        }
    }

    /// Adds time spent waiting for room in the queue.
    pub fn add_wait(&self, time: Duration) {
        self.reports.totals.waited_ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}

fn create_producer(
    settings: &Settings,
    reports: &DeliveryReports,
) -> Result<ThreadedProducer<DeliveryReports>, KafkaError> {
    let mut config = settings.producer();
    if !settings.extra.contains_key(TOPIC_WAIT_SETTING) {
        config.set(TOPIC_WAIT_SETTING, TOPIC_WAIT.as_millis().to_string());
    }
    let producer = config.create_with_context(reports.clone());
    producer.map_err(|error| KafkaError::of(settings, "create a client of", &error))
}

/// Outcome of queueing a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// In the queue.
    Queued,
    /// The queue stayed full until `stop`: the record is returned.
    Full(Record),
}

fn has_code(error: &Driver, code: Code) -> bool {
    matches!(error, Driver::MessageProduction(found) if *found == code)
}
