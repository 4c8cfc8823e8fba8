//! The one producer of a stage: pieces, states, ticks and dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use super::super::{DEAD, KafkaError, Settings};

/// Between two looks at a full queue, or at what is on its way.
const LOOK: Duration = Duration::from_millis(5);

/// Where a record came to lie; -1 until that is known.
pub(super) type Landed = Arc<AtomicI64>;

#[derive(Clone, Debug, Default)]
struct Reports(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    failed: Mutex<Option<Driver>>,
    delivered: AtomicU64,
}

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Option<Landed>>;

    fn delivery(&self, result: &DeliveryResult<'_>, landed: Box<Option<Landed>>) {
        match result {
            Ok(message) => {
                if let Some(landed) = *landed {
                    landed.store(message.offset(), Relaxed);
                }
                self.0.delivered.fetch_add(1, Relaxed);
            }
            Err((error, _)) => {
                let mut failed = self.0.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert_with(|| error.clone());
            }
        }
    }
}

/// Records out.
pub(super) struct Output {
    producer: ThreadedProducer<Reports>,
    reports: Reports,
    settings: Settings,
}

/// A record of a topic.
#[derive(Clone, Debug, Default)]
pub(super) struct Letter<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: Option<i32>,
    pub(super) key: Option<&'a str>,
    /// None empties the key's place.
    pub(super) payload: Option<&'a [u8]>,
    pub(super) headers: Option<OwnedHeaders>,
    pub(super) landed: Option<Landed>,
}

impl Output {
    pub(super) fn new(settings: &Settings) -> Result<Output, KafkaError> {
        let reports = Reports::default();
        let mut config = settings.producer();
        // Records of several partitions travel together.
        config.set("linger.ms", "5");
        let producer = config.create_with_context(reports.clone());
        let producer = producer.map_err(|error| KafkaError::of(settings, "set up", &error))?;
        Ok(Output { producer, reports, settings: settings.clone() })
    }

    /// Queues a record; waits while the queue is full, `patience` at the most. False if it is full still.
    pub(super) fn send(&self, letter: &Letter<'_>, patience: Duration) -> Result<bool, KafkaError> {
        let begun = Instant::now();
        loop {
            let mut record: BaseRecord<'_, str, [u8], Box<Option<Landed>>> =
                BaseRecord::with_opaque_to(letter.topic, Box::new(letter.landed.clone()));
            record.partition = letter.partition;
            record.key = letter.key;
            record.payload = letter.payload;
            record.headers = letter.headers.clone();
            match self.producer.send(record) {
                Ok(()) => return Ok(true),
                Err((Driver::MessageProduction(Code::QueueFull), _)) => {
                    self.failed()?;
                    if begun.elapsed() >= patience {
                        return Ok(false);
                    }
                    std::thread::sleep(LOOK);
                }
                Err((error, _)) => {
                    let verb = format!("write to {} of", letter.topic);
                    return Err(KafkaError::met(&self.settings, &verb, &error, self.producer.client()));
                }
            }
        }
    }

    /// A copy of what could not be read or sent, with where it was and why in its headers. What is longer than a record is left
    /// out, and how long it was is said.
    pub(super) fn bury(
        &self,
        said: &[(&'static str, String)],
        payload: &[u8],
        patience: Duration,
    ) -> Result<bool, KafkaError> {
        let insert = |headers: OwnedHeaders, (key, value): &(&str, String)| {
            headers.insert(Header { key, value: Some(value.as_bytes()) })
        };
        let mut headers = said.iter().fold(OwnedHeaders::new(), insert);
        let fits = payload.len() <= self.record_bytes();
        if !fits {
            headers = insert(headers, &("blkkin.bytes_left_out", payload.len().to_string()));
        }
        let payload = if fits { payload } else { &[] };
        let letter =
            Letter { topic: DEAD, payload: Some(payload), headers: Some(headers), ..Letter::default() };
        self.send(&letter, patience)
    }

    /// The longest record.
    pub(super) fn record_bytes(&self) -> usize {
        self.settings.record_bytes()
    }

    /// Waits until the cluster has acknowledged everything, `patience` at the most; whether it has.
    pub(super) fn settle(&self, patience: Duration) -> Result<bool, KafkaError> {
        // What is not yet is told by the number.
        let _ = self.producer.flush(patience);
        self.failed()?;
        Ok(self.is_idle())
    }

    /// Nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.producer.in_flight_count() == 0
    }

    /// Records that are there.
    pub(super) fn delivered(&self) -> u64 {
        self.reports.0.delivered.load(Relaxed)
    }

    /// The cluster has refused a record for good.
    pub(super) fn failed(&self) -> Result<(), KafkaError> {
        let failed = self.reports.0.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failed {
            None => Ok(()),
            Some(error) => Err(KafkaError::met(&self.settings, "write to", error, self.producer.client())),
        }
    }
}
