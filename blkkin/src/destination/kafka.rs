//! A transport that writes requests as records of the topic that Zipkin's own collector reads.
//!
//! *In*: an encoded list of spans. *Out*: one record, acknowledged by the cluster. *Invariant*: an
//! accepted reply means that the cluster has the record. Zipkin's later verdict is not visible
//! here: it drops an invalid list and counts it in its own metrics.

use blkkin_bus::kafka::{KafkaError, SendError, Settings, SingleProducer};
use blkkin_zipkin_export::{FailureReason, ServerReply, Transport, Unreachable};

/// A transport to one topic.
pub(crate) struct KafkaTransport(SingleProducer);

impl KafkaTransport {
    /// Creates the transport; the cluster need not be reachable yet.
    pub(crate) fn new(settings: &Settings, topic: &str) -> Result<KafkaTransport, KafkaError> {
        SingleProducer::new(settings, topic).map(KafkaTransport)
    }
}

impl Transport for KafkaTransport {
    fn post(&mut self, request: &[u8]) -> Result<ServerReply, Unreachable> {
        match self.0.send(&[], &[], Some(request)) {
            Ok(()) => Ok(ServerReply::Accepted),
            Err(SendError::TooLong(error)) => Ok(ServerReply::TooLarge(error.to_string())),
            Err(SendError::Unreachable(error)) => {
                Err(Unreachable { reason: FailureReason::Timeout, why: format!("{error}; {}", error.remedy) })
            }
        }
    }

    /// Returns false: an empty list would be a record that Zipkin counts as invalid.
    fn supports_probe(&self) -> bool {
        false
    }
}
