//! Requests as records of a topic that Zipkin's own collector reads.
//!
//! *In*: a list of spans. *Out*: one record, acknowledged by the cluster. *Invariant*: the cluster has it when the answer is yes;
//! what Zipkin makes of it Zipkin does not say here: a bad list it drops and counts in its own metrics.

use blkkin_bus::kafka::{KafkaError, NotSent, Settings, SingleProducer};
use blkkin_zipkin_export::{Away, Post, Reason, Reply};

/// Posts to a topic.
pub(crate) struct KafkaPost(SingleProducer);

impl KafkaPost {
    /// The cluster need not be there yet.
    pub(crate) fn new(settings: &Settings, topic: &str) -> Result<KafkaPost, KafkaError> {
        SingleProducer::new(settings, topic).map(KafkaPost)
    }
}

impl Post for KafkaPost {
    fn post(&mut self, request: &[u8]) -> Result<Reply, Away> {
        match self.0.send(&[], &[], request) {
            Ok(()) => Ok(Reply::Accepted),
            Err(NotSent::TooLong(error)) => Ok(Reply::TooLong(error.to_string())),
            Err(NotSent::Away(error)) => {
                Err(Away { reason: Reason::NoAnswer, why: format!("{error}; {}", error.remedy) })
            }
        }
    }

    /// An empty list would be a record that Zipkin counts as broken.
    fn can_be_probed(&self) -> bool {
        false
    }
}
