//! Records into a topic: each acknowledged by the cluster, or known not to be.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use blkkin_wire::ids::NodeId;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use super::gather::Record;
use super::reach::Said;
use super::{EVENTS, KafkaError, Settings};

/// Between two looks at a full queue.
const FULL: Duration = Duration::from_millis(5);

/// Who starts before the cluster makes the topic when that comes. By default librdkafka takes a topic that is not there 30 s after
/// the first record for one that never will be, and refuses all that waits for it. This is nearly the longest that it can be told:
/// it counts in µs and 32 bits (`rd_kafka_topic_set_notexists`, rdkafka_topic.c), whatever its documentation allows.
const PATIENT: &str = "topic.metadata.propagation.max.ms";
const TOPIC_MADE_WITHIN: Duration = Duration::from_secs(35 * 60);

/// What became of what was sent. `accepted = delivered + failed + waiting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// Events taken.
    pub accepted: u64,
    /// Of these acknowledged by all replicas that are in sync.
    pub delivered: u64,
    /// Of these given up: the cluster refused them, and they are nowhere else.
    pub failed: u64,
    /// Bytes of the records that were delivered, before compression.
    pub bytes: u64,
    /// ns spent waiting because the queue was full.
    pub waited_ns: u64,
}

impl Deliveries {
    /// On their way.
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
    /// Records with a ticket that have an answer.
    answered: Mutex<Vec<(Ticket, Answer)>>,
    /// The latest refusal.
    refused: Mutex<Option<Driver>>,
    /// Nothing was delivered since that.
    refuses: AtomicBool,
}

/// What a record was queued with.
struct Label {
    events: u64,
    /// Whoever queued it wants to hear of this one.
    ticket: Option<Ticket>,
}

/// Names a record to whoever queued it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// What became of a record with a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All replicas that are in sync have it.
    Arrived,
    /// Not now: it may be written once somebody has mended something. It is not counted as accepted any more.
    Returned,
    /// Nor will it ever be: it is longer than the topic takes, or no record to the broker. Likewise.
    Refused,
}

impl Answer {
    fn of(result: &DeliveryResult<'_>) -> Answer {
        let Err((error, _)) = result else { return Answer::Arrived };
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::InvalidRecord) => Answer::Refused,
            _ => Answer::Returned,
        }
    }
}

/// Told by librdkafka what became of each record.
#[derive(Clone, Debug, Default)]
struct Reports {
    totals: Arc<Totals>,
    /// What hinders it, until something is delivered again.
    said: Said,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.said.log(level, facility, line);
    }

    fn error(&self, error: Driver, reason: &str) {
        self.said.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Label>;

    fn delivery(&self, result: &DeliveryResult<'_>, label: Box<Label>) {
        let Label { events, ticket } = *label;
        let Totals { accepted, delivered, failed, bytes, answered, refused, refuses, .. } = &*self.totals;
        match result {
            Ok(message) => {
                bytes.fetch_add(message.payload_len() as u64, Relaxed);
                delivered.fetch_add(events, Relaxed);
                refuses.store(false, Relaxed);
                self.said.is_well();
            }
            Err((error, _)) => {
                // Who holds a ticket decides what becomes of it.
                if ticket.is_some() {
                    accepted.fetch_sub(events, Relaxed)
                } else {
                    failed.fetch_add(events, Relaxed)
                };
                // Of one that was taken back nobody has refused it.
                let code = error.rdkafka_error_code();
                if !matches!(code, Some(Code::PurgeQueue | Code::PurgeInflight)) {
                    *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
                    refuses.store(true, Relaxed);
                }
            }
        }
        if let Some(ticket) = ticket {
            answered.lock().unwrap_or_else(PoisonError::into_inner).push((ticket, Answer::of(result)));
        }
    }
}

/// Sends a node's records to [`EVENTS`].
pub struct EventProducer {
    producer: ThreadedProducer<Reports>,
    reports: Reports,
    domain: NodeId,
    settings: Settings,
    /// Why one before it had given up.
    gave_up: Option<KafkaError>,
}

impl EventProducer {
    /// For the events of `domain`: a node, or, for a guest, its host. The cluster need not be there yet.
    pub fn new(settings: &Settings, domain: NodeId) -> Result<EventProducer, KafkaError> {
        let reports = Reports::default();
        let producer = make(settings, &reports)?;
        Ok(EventProducer { producer, reports, domain, settings: settings.clone(), gave_up: None })
    }

    /// Begins anew: what is on its way comes back, though some of it may have arrived. For one that has given up for good, as
    /// librdkafka does where it may not write, whatever is allowed later.
    pub fn renew(&mut self) -> Result<(), KafkaError> {
        self.gave_up = self.refused();
        self.producer = make(&self.settings, &self.reports)?;
        Ok(())
    }

    /// It has given up for good.
    pub fn is_out_of_use(&self) -> bool {
        self.producer.client().fatal_error().is_some()
    }

    /// Events that came back and are given up.
    pub fn lost(&self, events: u64) {
        self.reports.totals.accepted.fetch_add(events, Relaxed);
        self.reports.totals.failed.fetch_add(events, Relaxed);
    }

    /// Queues a record; waits while the queue is full, and gives it back when `stop` says so meanwhile.
    pub fn send(&self, record: Record, stop: impl Fn() -> bool) -> Result<Sent, KafkaError> {
        self.send_for(self.domain, record, stop)
    }

    /// The same for what another domain has said.
    pub fn send_for(
        &self,
        domain: NodeId,
        record: Record,
        stop: impl Fn() -> bool,
    ) -> Result<Sent, KafkaError> {
        let mut waiting: Option<Instant> = None;
        loop {
            if self.queue(domain, &record.bytes, Label { events: record.events, ticket: None })? {
                self.waited(waiting.map_or(Duration::ZERO, |since| since.elapsed()));
                return Ok(Sent::Queued);
            }
            let since = *waiting.get_or_insert_with(Instant::now);
            if stop() {
                self.waited(since.elapsed());
                return Ok(Sent::Full(record));
            }
            std::thread::sleep(FULL);
        }
    }

    /// Queues a record without waiting; false where the queue is full. What becomes of it is told under its ticket, by
    /// [`EventProducer::answers`].
    pub fn offer(
        &self,
        domain: NodeId,
        bytes: &[u8],
        events: u64,
        ticket: Ticket,
    ) -> Result<bool, KafkaError> {
        self.queue(domain, bytes, Label { events, ticket: Some(ticket) })
    }

    /// Tickets of records that were answered since one last asked.
    pub fn answers(&self) -> Vec<(Ticket, Answer)> {
        let mut answered = self.reports.totals.answered.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *answered)
    }

    fn queue(&self, domain: NodeId, bytes: &[u8], label: Label) -> Result<bool, KafkaError> {
        let (key, events) = (domain.0.to_be_bytes(), label.events);
        let queued = BaseRecord::with_opaque_to(EVENTS, Box::new(label)).key(&key[..]).payload(bytes);
        // Before it is queued: its answer may come at once, and what is delivered is never more than what was accepted.
        self.reports.totals.accepted.fetch_add(events, Relaxed);
        match self.producer.send(queued) {
            Ok(()) => Ok(true),
            Err((error, _)) => {
                self.reports.totals.accepted.fetch_sub(events, Relaxed);
                // A topic that is not there now is made, by us or by somebody who may.
                let not_now = [
                    Code::QueueFull,
                    Code::UnknownTopic,
                    Code::UnknownPartition,
                    Code::UnknownTopicOrPartition,
                ];
                if not_now.into_iter().any(|code| is(&error, code)) {
                    return Ok(false);
                }
                Err(KafkaError::met(&self.settings, "send to", &error, self.producer.client()))
            }
        }
    }

    /// Waits until all is delivered or given up, `patience` at the most; what became of it.
    pub fn finish(self, patience: Duration) -> Deliveries {
        // What is left over is told by the numbers.
        let _ = self.producer.flush(patience);
        self.deliveries()
    }

    /// Waits until all is delivered or given up, `patience` at the most; what became of it so far.
    pub fn settle(&self, patience: Duration) -> Deliveries {
        // As below.
        let _ = self.producer.flush(patience);
        self.deliveries()
    }

    /// Why the cluster refused what it refused last: [`Deliveries::failed`] says how many events are lost by that.
    pub fn refused(&self) -> Option<KafkaError> {
        if let Some(error) = KafkaError::fatal(&self.settings, self.producer.client()) {
            return Some(error);
        }
        let refused = self.reports.totals.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let verb = format!("write to {EVENTS} of");
        let refused = refused.as_ref().map(|error| KafkaError::of(&self.settings, &verb, error));
        refused.or_else(|| self.gave_up.clone())
    }

    /// The last that was heard of a record is that it was refused.
    pub fn is_refused(&self) -> bool {
        self.reports.totals.refuses.load(Relaxed)
    }

    /// What hinders it, if nothing was delivered since it was met: a broker that is away, a record that was refused.
    pub fn hindrance(&self) -> Option<KafkaError> {
        let refuses = self.is_out_of_use() || self.is_refused();
        let refused = if refuses { self.refused() } else { None };
        refused.or_else(|| self.reports.said.failure(&self.settings))
    }

    /// What became of it so far.
    pub fn deliveries(&self) -> Deliveries {
        let Totals { accepted, delivered, failed, bytes, waited_ns, .. } = &*self.reports.totals;
        // Accepted last: it is never less than what was delivered before it was read.
        let (delivered, failed, bytes) = (delivered.load(Relaxed), failed.load(Relaxed), bytes.load(Relaxed));
        Deliveries {
            delivered,
            failed,
            bytes,
            waited_ns: waited_ns.load(Relaxed),
            accepted: accepted.load(Relaxed),
        }
    }

    /// So long nothing could be queued.
    pub fn waited(&self, time: Duration) {
        self.reports.totals.waited_ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}

fn make(settings: &Settings, reports: &Reports) -> Result<ThreadedProducer<Reports>, KafkaError> {
    let mut config = settings.producer();
    if !settings.extra.contains_key(PATIENT) {
        config.set(PATIENT, TOPIC_MADE_WITHIN.as_millis().to_string());
    }
    let producer = config.create_with_context(reports.clone());
    producer.map_err(|error| KafkaError::of(settings, "set up", &error))
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Queued,
    /// The queue is full and one was told to stop: here it is again.
    Full(Record),
}

fn is(error: &Driver, code: Code) -> bool {
    matches!(error, Driver::MessageProduction(found) if *found == code)
}
