//! Synchronous producer: each record is acknowledged or failed before the next is sent.
//!
//! *In*: bytes, with a key and headers. *Out*: whether all in-sync replicas have them. *Invariant*:
//! no record is in flight after `send` returns.
//!
//! For records that must be stored before an original may be dropped: requests on a topic that
//! Zipkin reads, dead letters. Each costs a round trip, 1 to 5 ms within a rack: suited to requests
//! of hundreds of spans, not to single spans.

use std::cell::RefCell;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use super::{KafkaError, Settings};

/// Timeout of an acknowledgement, equal to that of a POST to a server.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a record was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The record is longer than the topic allows: a retry cannot succeed.
    #[error("{0}")]
    TooLong(KafkaError),
    /// The cluster does not accept it now.
    #[error("{0}")]
    Unreachable(KafkaError),
}

struct DeliveryCallback;

impl ClientContext for DeliveryCallback {}

impl ProducerContext for DeliveryCallback {
    type DeliveryOpaque = Box<SyncSender<Result<(), Driver>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, ack_sender: Self::DeliveryOpaque) {
        let result = result.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        // The sender waits for it.
        let _ = ack_sender.send(result);
    }
}

/// Synchronous producer to one topic.
pub struct SingleProducer {
    producer: RefCell<ThreadedProducer<DeliveryCallback>>,
    topic: String,
    settings: Settings,
}

impl SingleProducer {
    /// Creates the producer; the cluster may be unreachable.
    pub fn new(settings: &Settings, topic: &str) -> Result<SingleProducer, KafkaError> {
        let producer = RefCell::new(create_producer(settings)?);
        Ok(SingleProducer { producer, topic: topic.to_owned(), settings: settings.clone() })
    }

    /// Sends a record, and waits for the acknowledgement.
    /// Without a payload it removes the key from a compacted topic.
    pub fn send(
        &self,
        key: &[u8],
        headers: &[(&str, String)],
        payload: Option<&[u8]>,
    ) -> Result<(), SendError> {
        let has_fatal_error = self.producer.borrow().client().fatal_error().is_some();
        if has_fatal_error {
            // A fatal error stays until the producer is replaced, whatever the cluster allows
            // later.
            *self.producer.borrow_mut() = create_producer(&self.settings).map_err(SendError::Unreachable)?;
        }
        let (ack_sender, ack) = sync_channel(1);
        let fold = |headers: OwnedHeaders, (key, value): &(&str, String)| {
            headers.insert(Header { key, value: Some(value.as_bytes()) })
        };
        let mut record = BaseRecord::with_opaque_to(&self.topic, Box::new(ack_sender)).key(key);
        record.payload = payload;
        let record = record.headers(headers.iter().fold(OwnedHeaders::new(), fold));
        self.producer.borrow().send(record).map_err(|(error, _)| self.send_error(&error))?;
        // librdkafka always calls back: with the acknowledgement or a timeout.
        match ack.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.send_error(&error)),
            Err(_) => Err(self.send_error(&Driver::MessageProduction(Code::MessageTimedOut))),
        }
    }

    fn send_error(&self, error: &Driver) -> SendError {
        let failure =
            KafkaError::of_client(&self.settings, "send to", error, self.producer.borrow().client());
        let failure = KafkaError { what: format!("{} (topic {})", failure.what, self.topic), ..failure };
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge) => SendError::TooLong(failure),
            _ => SendError::Unreachable(failure),
        }
    }
}

fn create_producer(settings: &Settings) -> Result<ThreadedProducer<DeliveryCallback>, KafkaError> {
    let mut config = settings.producer();
    config.set("message.timeout.ms", ACK_TIMEOUT.as_millis().to_string());
    config
        .create_with_context(DeliveryCallback)
        .map_err(|error| KafkaError::of(settings, "create a client of", &error))
}
