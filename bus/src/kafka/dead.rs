//! What could not be read or was refused: kept in a topic, for whoever wants to look.
//!
//! *In*: the bytes, where they were, and why. *Out*: a record of [`DEAD`] with the same bytes; all else stands in its headers,
//! which every Kafka client shows. *Invariant*: once a letter is sent it is acknowledged by the cluster, so what it is about may
//! be forgotten.
//!
//! | header | |
//! |---|---|
//! | `blkkin.reason` | why, in words |
//! | `blkkin.by` | who says so: a group of consumers |
//! | `blkkin.topic`, `blkkin.partition`, `blkkin.offset` | where the record was, if it is one that could not be read |
//! | `blkkin.origin`, `blkkin.number` | which piece it was, if it is a span that a destination refused |
//! | `blkkin.bytes_left_out` | there, and how many, where they do not fit into a record; then it has none |
//!
//! A span's bytes are a `PieceBatch` of that piece with that span alone: what reads `blkkin.traces` reads it.

use super::single::{NotSent, SingleProducer};
use super::{DEAD, KafkaError, Settings};

/// Why, where and what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letter {
    /// Headers, after `blkkin.`.
    pub headers: Vec<(&'static str, String)>,
    /// What it is about.
    pub payload: Vec<u8>,
}

/// Sends letters.
pub struct DeadLetters {
    producer: SingleProducer,
    by: String,
}

impl DeadLetters {
    /// Signed by `by`. The cluster need not be there yet.
    pub fn new(settings: &Settings, by: &str) -> Result<DeadLetters, KafkaError> {
        Ok(DeadLetters { producer: SingleProducer::new(settings, DEAD)?, by: by.to_owned() })
    }

    /// Sends one, and waits for the acknowledgement.
    pub fn send(&self, letter: &Letter) -> Result<(), KafkaError> {
        let mut headers = vec![("blkkin.by", self.by.clone())];
        for (name, value) in &letter.headers {
            headers.push((*name, value.clone()));
        }
        match self.producer.send(&[], &headers, &letter.payload) {
            Err(NotSent::TooLong(_)) => {
                headers.push(("blkkin.bytes_left_out", letter.payload.len().to_string()));
                self.producer.send(&[], &headers, &[]).map_err(told)
            }
            sent => sent.map_err(told),
        }
    }
}

fn told(not: NotSent) -> KafkaError {
    match not {
        NotSent::TooLong(error) | NotSent::Away(error) => error,
    }
}
