//! Producer of a stage.
//!
//! *In*: trace fragments, states, ticks and dead letters. *Out*: records in Kafka, and the offset
//! of a record if requested. *Invariant*: `flush` returns true only after the cluster has
//! acknowledged every record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use super::super::{KafkaError, Settings};
use super::stage_producer::{DeliveredOffset, OutgoingRecord, StageProducer};

/// Pause between two attempts to queue a record.
const POLL_PAUSE: Duration = Duration::from_millis(5);

#[derive(Clone, Debug, Default)]
struct DeliveryReports(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    failed: Mutex<Option<Driver>>,
    delivered: AtomicU64,
}

impl ClientContext for DeliveryReports {}

impl ProducerContext for DeliveryReports {
    type DeliveryOpaque = Box<Option<DeliveredOffset>>;

    fn delivery(&self, result: &DeliveryResult<'_>, delivered_offset: Box<Option<DeliveredOffset>>) {
        match result {
            Ok(message) => {
                if let Some(delivered_offset) = *delivered_offset {
                    delivered_offset.store(message.offset(), Relaxed);
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

/// Producer with delivery accounting.
pub(super) struct Output {
    producer: ThreadedProducer<DeliveryReports>,
    reports: DeliveryReports,
    settings: Settings,
}

impl Output {
    pub(super) fn new(settings: &Settings) -> Result<Output, KafkaError> {
        let reports = DeliveryReports::default();
        let mut config = settings.producer();
        // Records of several partitions share a request.
        config.set("linger.ms", "5");
        let producer = config.create_with_context(reports.clone());
        let producer = producer.map_err(|error| KafkaError::of(settings, "create a client of", &error))?;
        Ok(Output { producer, reports, settings: settings.clone() })
    }
}

impl StageProducer for Output {
    fn send(&self, outgoing: &OutgoingRecord<'_>, timeout: Duration) -> Result<bool, KafkaError> {
        let start = Instant::now();
        loop {
            let mut record: BaseRecord<'_, str, [u8], Box<Option<DeliveredOffset>>> =
                BaseRecord::with_opaque_to(outgoing.topic, Box::new(outgoing.delivered_offset.clone()));
            record.partition = outgoing.partition;
            record.key = outgoing.key;
            record.payload = outgoing.payload;
            record.headers = outgoing.headers.clone();
            match self.producer.send(record) {
                Ok(()) => return Ok(true),
                Err((Driver::MessageProduction(Code::QueueFull), _)) => {
                    self.failed()?;
                    if start.elapsed() >= timeout {
                        return Ok(false);
                    }
                    std::thread::sleep(POLL_PAUSE);
                }
                Err((error, _)) => {
                    let verb = format!("write to {} of", outgoing.topic);
                    return Err(KafkaError::of_client(&self.settings, &verb, &error, self.producer.client()));
                }
            }
        }
    }

    fn record_bytes(&self) -> usize {
        self.settings.record_bytes()
    }

    fn flush(&self, timeout: Duration) -> Result<bool, KafkaError> {
        // Records in flight are counted below.
        let _ = self.producer.flush(timeout);
        self.failed()?;
        Ok(self.is_idle())
    }

    fn is_idle(&self) -> bool {
        self.producer.in_flight_count() == 0
    }

    fn delivered(&self) -> u64 {
        self.reports.0.delivered.load(Relaxed)
    }

    fn failed(&self) -> Result<(), KafkaError> {
        let failed = self.reports.0.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failed {
            None => Ok(()),
            Some(error) => {
                Err(KafkaError::of_client(&self.settings, "write to", error, self.producer.client()))
            }
        }
    }
}
