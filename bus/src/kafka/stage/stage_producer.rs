//! Interface between a stage and its producer.
//!
//! *In*: trace fragments, states, ticks and dead letters. *Out*: the offset of a record if requested.
//! *Invariant*: `flush` returns true only after the cluster has acknowledged every record.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};

use super::super::{DEAD, KafkaError};

/// Offset of a delivered record; -1 until it is known.
pub(super) type DeliveredOffset = Arc<AtomicI64>;

/// Record to send.
#[derive(Clone, Debug, Default)]
pub(super) struct OutgoingRecord<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: Option<i32>,
    pub(super) key: Option<&'a str>,
    /// `None` sends a tombstone for the key.
    pub(super) payload: Option<&'a [u8]>,
    pub(super) headers: Option<OwnedHeaders>,
    pub(super) delivered_offset: Option<DeliveredOffset>,
}

/// Producer with delivery accounting.
pub(super) trait StageProducer {
    /// Queues a record; waits up to `timeout` while the queue is full, and returns false if it
    /// still is.
    fn send(&self, outgoing: &OutgoingRecord<'_>, timeout: Duration) -> Result<bool, KafkaError>;
    /// Returns the longest payload that a record can have.
    fn record_bytes(&self) -> usize;
    /// Waits up to `timeout` until the cluster has acknowledged every record; returns whether it
    /// has.
    fn flush(&self, timeout: Duration) -> Result<bool, KafkaError>;
    /// Returns whether no record is in flight.
    fn is_idle(&self) -> bool;
    /// Returns the number of acknowledged records.
    fn delivered(&self) -> u64;
    /// Returns the error if the cluster has rejected a record.
    fn failed(&self) -> Result<(), KafkaError>;

    /// Sends a copy of a record that cannot be decoded or sent to the dead-letter topic, with its
    /// position and the reason as headers. A payload longer than a record is dropped, and its
    /// length is a header.
    fn send_to_dlq(
        &self,
        fields: &[(&'static str, String)],
        payload: &[u8],
        timeout: Duration,
    ) -> Result<bool, KafkaError> {
        let insert = |headers: OwnedHeaders, (key, value): &(&str, String)| {
            headers.insert(Header { key, value: Some(value.as_bytes()) })
        };
        let mut headers = fields.iter().fold(OwnedHeaders::new(), insert);
        let fits = payload.len() <= self.record_bytes();
        if !fits {
            headers = insert(headers, &("blkkin.bytes_left_out", payload.len().to_string()));
        }
        let payload = if fits { payload } else { &[] };
        let outgoing = OutgoingRecord {
            topic: DEAD,
            payload: Some(payload),
            headers: Some(headers),
            ..OutgoingRecord::default()
        };
        self.send(&outgoing, timeout)
    }
}
