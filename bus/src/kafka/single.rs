//! Records into a topic one at a time: each is acknowledged, or known not to be, before the next is sent.
//!
//! *In*: bytes, with a key and headers. *Out*: whether all replicas that are in sync have them. *Invariant*: when a send comes
//! back, nothing of it is on its way any more.
//!
//! For what has to be in one place before something else may be forgotten: a request to a topic that Zipkin reads, a letter to
//! `blkkin.dead`. A round trip each, 1 to 5 ms in one's own rack: for requests of hundreds of spans, not for spans.

use std::cell::RefCell;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use super::{KafkaError, Settings};

/// For the acknowledgement: what a POST to a server may take.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// Why a record is not in the topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// It is longer than a record may be: never will it be.
    #[error("{0}")]
    TooLong(KafkaError),
    /// The cluster does not take it now.
    #[error("{0}")]
    Away(KafkaError),
}

struct Answers;

impl ClientContext for Answers {}

impl ProducerContext for Answers {
    type DeliveryOpaque = Box<SyncSender<Result<(), Driver>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, answer: Self::DeliveryOpaque) {
        let result = result.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        // Whoever asked waits for it.
        let _ = answer.send(result);
    }
}

/// Sends to one topic.
pub struct SingleProducer {
    producer: RefCell<ThreadedProducer<Answers>>,
    topic: String,
    settings: Settings,
}

impl SingleProducer {
    /// The cluster need not be there yet.
    pub fn new(settings: &Settings, topic: &str) -> Result<SingleProducer, KafkaError> {
        let producer = RefCell::new(make(settings)?);
        Ok(SingleProducer { producer, topic: topic.to_owned(), settings: settings.clone() })
    }

    /// Sends one, and waits for the answer.
    pub fn send(&self, key: &[u8], headers: &[(&str, String)], payload: &[u8]) -> Result<(), NotSent> {
        let given_up = self.producer.borrow().client().fatal_error().is_some();
        if given_up {
            // It stays so, whatever is allowed to us meanwhile.
            *self.producer.borrow_mut() = make(&self.settings).map_err(NotSent::Away)?;
        }
        let (answer, answered) = sync_channel(1);
        let fold = |headers: OwnedHeaders, (key, value): &(&str, String)| {
            headers.insert(Header { key, value: Some(value.as_bytes()) })
        };
        let record = BaseRecord::with_opaque_to(&self.topic, Box::new(answer))
            .key(key)
            .payload(payload)
            .headers(headers.iter().fold(OwnedHeaders::new(), fold));
        self.producer.borrow().send(record).map_err(|(error, _)| self.not_sent(&error))?;
        // It comes in any case: an answer, or that there was none in time.
        match answered.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.not_sent(&error)),
            Err(_) => Err(self.not_sent(&Driver::MessageProduction(Code::MessageTimedOut))),
        }
    }

    fn not_sent(&self, error: &Driver) -> NotSent {
        let told = KafkaError::met(&self.settings, "send to", error, self.producer.borrow().client());
        let told = KafkaError { what: format!("{} (topic {})", told.what, self.topic), ..told };
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge) => NotSent::TooLong(told),
            _ => NotSent::Away(told),
        }
    }
}

fn make(settings: &Settings) -> Result<ThreadedProducer<Answers>, KafkaError> {
    let mut config = settings.producer();
    config.set("message.timeout.ms", ACKNOWLEDGED_WITHIN.as_millis().to_string());
    config.create_with_context(Answers).map_err(|error| KafkaError::of(settings, "set up", &error))
}
