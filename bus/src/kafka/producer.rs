//! Records into a topic: each acknowledged by the cluster, or known not to be.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use blkkin_wire::ids::NodeId;
use rdkafka::ClientContext;
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use super::gather::Record;
use super::{EVENTS, KafkaError, Settings};

/// Between two looks at a full queue.
const FULL: Duration = Duration::from_millis(5);

/// What became of what was sent. `accepted = delivered + failed + waiting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// Events taken.
    pub accepted: u64,
    /// Of these acknowledged by all replicas that are in sync.
    pub delivered: u64,
    /// Of these given up: the cluster refused them.
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
    /// The latest refusal.
    refused: Mutex<Option<Driver>>,
}

/// Told by librdkafka what became of each record; a record's own data is how many events it holds.
#[derive(Clone, Debug, Default)]
struct Reports(Arc<Totals>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, events: Box<u64>) {
        match result {
            Ok(message) => {
                self.0.bytes.fetch_add(message.payload_len() as u64, Relaxed);
                self.0.delivered.fetch_add(*events, Relaxed);
            }
            Err((error, _)) => {
                self.0.failed.fetch_add(*events, Relaxed);
                *self.0.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
            }
        }
    }
}

/// Sends a node's records to [`EVENTS`].
pub struct EventProducer {
    producer: ThreadedProducer<Reports>,
    reports: Reports,
    domain: NodeId,
    settings: Settings,
}

impl EventProducer {
    /// For the events of `domain`: a node, or, for a guest, its host. The cluster need not be there yet.
    pub fn new(settings: &Settings, domain: NodeId) -> Result<EventProducer, KafkaError> {
        let reports = Reports::default();
        let producer = settings.producer().create_with_context(reports.clone());
        let producer = producer.map_err(|error| KafkaError::of(settings, "set up", &error))?;
        Ok(EventProducer { producer, reports, domain, settings: settings.clone() })
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
        let key = domain.0.to_be_bytes();
        let totals = &self.reports.0;
        let mut waiting: Option<Instant> = None;
        loop {
            let queued = BaseRecord::with_opaque_to(EVENTS, Box::new(record.events))
                .key(&key[..])
                .payload(&record.bytes);
            let refused = match self.producer.send(queued) {
                Ok(()) => None,
                Err((error, _)) => Some(error),
            };
            match refused {
                None => {
                    totals.accepted.fetch_add(record.events, Relaxed);
                    self.waited(waiting);
                    return Ok(Sent::Queued);
                }
                Some(error) if is(&error, Code::QueueFull) && !stop() => {
                    waiting.get_or_insert_with(Instant::now);
                    std::thread::sleep(FULL);
                }
                Some(error) if is(&error, Code::QueueFull) => {
                    self.waited(waiting);
                    return Ok(Sent::Full(record));
                }
                Some(error) => {
                    let told = KafkaError::met(&self.settings, "send to", &error, self.producer.client());
                    return Err(told);
                }
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

    /// Why the cluster refused what it refused last: [`Deliveries::failed`] says how many events were.
    pub fn refused(&self) -> Option<KafkaError> {
        let refused = self.reports.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let verb = format!("write to {EVENTS} of");
        refused.as_ref().map(|error| KafkaError::met(&self.settings, &verb, error, self.producer.client()))
    }

    /// What became of it so far.
    pub fn deliveries(&self) -> Deliveries {
        let Totals { accepted, delivered, failed, bytes, waited_ns, .. } = &*self.reports.0;
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

    fn waited(&self, since: Option<Instant>) {
        if let Some(since) = since {
            self.reports.0.waited_ns.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        }
    }
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
