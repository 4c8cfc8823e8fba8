//! Reader of a compacted topic that has one partition: all records, in their order, and then what follows.
//!
//! *In*: a topic. *Out*: each record that it has, then [`Compacted::End`], then each new record, with an end behind it
//! again. *Invariant*: what was returned before an end is the whole topic of that moment, but for what a later
//! record of the same key replaced. No offset is committed: each reader begins with the first record.
//!
//! A reader that was away does not know a key that was removed and compacted meanwhile, nor a topic that was replaced by one
//! with as many records. So a caller opens a new one from time to time.
//!
//! The order of two keys is known within a partition only, so the topic must have one.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::{Message, Offset, TopicPartitionList};

use super::connectivity::TopicLookup;
use super::settings::Group;
use super::{KafkaError, Settings};

/// Setting of a topic that keeps the last record of each key.
const COMPACTED: (&str, &str) = ("cleanup.policy", "compact");

/// Result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// A record.
    Record {
        /// Place in the topic.
        offset: i64,
        /// Key; empty without one.
        key: Vec<u8>,
        /// Content; none for a tombstone, which removes the key.
        payload: Option<Vec<u8>>,
    },
    /// There is no further record now.
    End,
    /// The time limit has passed.
    Nothing,
}

/// Reader of a topic.
pub struct CompactedReader {
    reader: BaseConsumer,
    settings: Settings,
}

impl Settings {
    /// Creates a compacted topic of one partition unless it exists. Fails if it has more partitions.
    pub fn ensure_compacted_topic(&self, topic: &str) -> Result<(), KafkaError> {
        self.ensure_topic(topic, 1, &[COMPACTED])?;
        self.check_compacted_topic(topic)
    }

    /// Checks whether the topic has one partition.
    pub fn check_compacted_topic(&self, topic: &str) -> Result<(), KafkaError> {
        let command = |name: &str| {
            format!(
                "kafka-topics.sh --bootstrap-server {} --create --topic {name} --partitions 1 --config {}={}",
                self.brokers, COMPACTED.0, COMPACTED.1
            )
        };
        match self.look_up(topic)? {
            TopicLookup::Partitions(1) => Ok(()),
            TopicLookup::Partitions(partitions) => Err(KafkaError {
                what: format!("the topic {topic} has {partitions} partitions"),
                why: "the order of its records is known in one partition only".to_owned(),
                remedy: format!("another topic: {}", command("NAME")),
            }),
            TopicLookup::Missing => Err(KafkaError {
                what: format!("the topic {topic} cannot be used"),
                why: format!("it does not exist in the cluster at {}", self.brokers),
                remedy: format!("create it: {}", command(topic)),
            }),
            TopicLookup::Denied => self.partitions(topic).map(drop),
        }
    }
}

impl CompactedReader {
    /// Creates a reader from the first record on.
    pub fn open(settings: &Settings, topic: &str) -> Result<CompactedReader, KafkaError> {
        let fail = |error: Driver| KafkaError::of(settings, &format!("read {topic} of"), &error);
        // No member of a group: librdkafka wants a name nevertheless.
        let group = Group { name: "blkkin-reader".to_owned(), member: None };
        let mut config = settings.consumer(&group);
        // A topic that was replaced may end before the reader's offset; a new reader is needed then.
        config.set("enable.partition.eof", "true").set("auto.offset.reset", "error");
        let reader: BaseConsumer = config.create().map_err(fail)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(topic, 0, Offset::Beginning).map_err(fail)?;
        reader.assign(&from).map_err(fail)?;
        Ok(CompactedReader { reader, settings: settings.clone() })
    }

    /// Returns what comes next, within this time. Fails if a new reader is needed; the client connects again after
    /// other errors.
    pub fn next(&self, timeout: Duration) -> Result<Compacted, KafkaError> {
        match self.reader.poll(timeout) {
            None => Ok(Compacted::Nothing),
            Some(Err(Driver::PartitionEOF(_))) => Ok(Compacted::End),
            Some(Err(error)) => match error.rdkafka_error_code() {
                // The client asks for the group that it never joins, and reports a missing right to it once.
                Some(Code::GroupAuthorizationFailed) => Ok(Compacted::Nothing),
                Some(
                    Code::AutoOffsetReset
                    | Code::OffsetOutOfRange
                    | Code::UnknownTopic
                    | Code::UnknownTopicOrPartition
                    | Code::UnknownPartition,
                ) => Err(KafkaError::of(&self.settings, "read from", &error)),
                _ => KafkaError::permanent(&self.settings, &error).map_or(Ok(Compacted::Nothing), Err),
            },
            Some(Ok(message)) => Ok(Compacted::Record {
                offset: message.offset(),
                key: message.key().unwrap_or_default().to_vec(),
                payload: message.payload().map(<[u8]>::to_vec),
            }),
        }
    }
}
