//! Commits of processed offsets.
//!
//! *In*: a call after the caller has processed all received records. *Out*: a commit of each
//! partition's next offset, with the delivered sequences as metadata
//! ([`DuplicateDetector::to_metadata`]). *Invariant*: commits are answered in order, so the awaited
//! reply belongs to the last commit ([`Commits`](super::super::commits::Commits)).

use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::{Offset, TopicPartitionList};

use super::super::KafkaError;
use super::super::codec::Codec;
use super::super::dedup::DuplicateDetector;
use super::{REPLY_TIMEOUT, TopicConsumer};

impl<C: Codec> TopicConsumer<C> {
    /// Commits without waiting for the reply. If the commit is lost, the records are received
    /// again.
    pub fn commit_soon(&mut self) -> Result<(), KafkaError> {
        if self.next.is_empty() {
            return Ok(());
        }
        self.send_commit()
    }

    /// Commits and waits up to `timeout`; returns whether the cluster accepted the commit in time.
    pub fn commit_within(&mut self, timeout: Duration) -> Result<bool, KafkaError> {
        if self.next.is_empty() {
            return Ok(true);
        }
        let deadline = Instant::now() + timeout;
        self.commit_soon()?;
        loop {
            if let Some(reply) = self.commits.result() {
                return Ok(reply.is_ok());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if !self.commits.wait(left.min(Duration::from_millis(20))) {
                self.poll_paused(Duration::ZERO)?;
            }
        }
    }

    /// Returns the number of records in this member's partitions that were not received, or `None`
    /// if the cluster does not answer.
    pub fn uncommitted(&self) -> Option<u64> {
        let assigned = self.consumer.assignment().ok()?;
        let mut left = 0;
        for element in assigned.elements() {
            let partition = element.partition();
            let (low, high) = self.consumer.fetch_watermarks(C::TOPIC, partition, REPLY_TIMEOUT).ok()?;
            let next = self.next.get(&partition).copied().unwrap_or(low).max(low);
            left += u64::try_from(high - next).unwrap_or_default();
        }
        Some(left)
    }

    fn send_commit(&mut self) -> Result<(), KafkaError> {
        let fail = |error| KafkaError::of(&self.settings, "commit to", &error);
        let mut list = TopicPartitionList::new();
        for (partition, offset) in &self.next {
            self.progress.set(*partition, Some(*offset));
            let mut element = list.add_partition(C::TOPIC, *partition);
            element.set_offset(Offset::Offset(*offset)).map_err(fail)?;
            element.set_metadata(
                self.sequences.get(partition).map(DuplicateDetector::to_metadata).unwrap_or_default(),
            );
        }
        self.processed.clear();
        // Without success this client has no group any more, and the next poll has the error.
        self.commits.send(self.consumer.client(), &list);
        Ok(())
    }
}
