//! Dead-letter topic: a copy of each record that cannot be decoded and each span that a destination
//! refused.
//!
//! *In*: the bytes, their origin and the reason. *Out*: a record of [`DEAD`] with the same bytes as
//! payload and everything else as headers, which every Kafka client shows. *Invariant*: `send`
//! returns after the cluster has acknowledged the copy, so the original may be dropped.
//!
//! | header | content |
//! |---|---|
//! | `blkkin.reason` | reason as text |
//! | `blkkin.by` | consumer group that wrote the copy |
//! | `blkkin.topic`, `blkkin.partition`, `blkkin.offset` | position of a record that cannot be decoded |
//! | `blkkin.origin`, `blkkin.number` | trace fragment of a span that a destination refused |
//! | `blkkin.bytes_left_out` | length of a payload that does not fit into a record; the copy then has no payload |
//!
//! A refused span is encoded as a `FragmentBatch` with that span alone, so readers of
//! `blkkin.traces` can read it.

use super::single_producer::{SendError, SingleProducer};
use super::{DEAD, KafkaError, Settings};

/// A record for the dead-letter topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetter {
    /// Headers, with the prefix `blkkin.` added on sending.
    pub headers: Vec<(&'static str, String)>,
    /// Bytes of the original.
    pub payload: Vec<u8>,
}

/// Producer of dead letters.
pub struct DeadLetters {
    producer: SingleProducer,
    by: String,
}

impl DeadLetters {
    /// Creates the producer; `by` is its consumer group. The cluster may be unreachable.
    pub fn new(settings: &Settings, by: &str) -> Result<DeadLetters, KafkaError> {
        Ok(DeadLetters { producer: SingleProducer::new(settings, DEAD)?, by: by.to_owned() })
    }

    /// Sends a dead letter, and waits for the acknowledgement.
    pub fn send(&self, letter: &DeadLetter) -> Result<(), KafkaError> {
        let mut headers = vec![("blkkin.by", self.by.clone())];
        for (name, value) in &letter.headers {
            headers.push((*name, value.clone()));
        }
        match self.producer.send(&[], &headers, Some(&letter.payload)) {
            Err(SendError::TooLong(_)) => {
                headers.push(("blkkin.bytes_left_out", letter.payload.len().to_string()));
                self.producer.send(&[], &headers, Some(&[])).map_err(unwrap_error)
            }
            sent => sent.map_err(unwrap_error),
        }
    }
}

fn unwrap_error(error: SendError) -> KafkaError {
    match error {
        SendError::TooLong(error) | SendError::Unreachable(error) => error,
    }
}
