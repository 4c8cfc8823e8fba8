//! What a member has done, told to its group.
//!
//! *In*: that all that was received is done. *Out*: a commit of where each partition goes on, with what was given out of it
//! ([`Seen::note`]). *Invariant*: the answer that is waited for is that of the last commit, as commits are answered in order.

use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::super::KafkaError;
use super::super::codec::Codec;
use super::super::seen::Seen;
use super::{PATIENCE, TopicConsumer};

impl<C: Codec> TopicConsumer<C> {
    /// All that was received is done: the group begins behind it from now on.
    pub fn commit(&mut self) -> Result<(), KafkaError> {
        self.send_commit(CommitMode::Sync)
    }

    /// The same without waiting for the answer. Where it is lost, what was done is received again.
    pub fn commit_soon(&mut self) -> Result<(), KafkaError> {
        if self.next.is_empty() {
            return Ok(());
        }
        self.send_commit(CommitMode::Async)?;
        self.commits_sent += 1;
        Ok(())
    }

    /// The same, waiting for the answer no longer than `patience`; whether it came, and was a yes.
    pub fn commit_within(&mut self, patience: Duration) -> Result<bool, KafkaError> {
        if self.next.is_empty() {
            return Ok(true);
        }
        let deadline = Instant::now() + patience;
        self.commit_soon()?;
        loop {
            let (answers, good) = self.membership.commits();
            if answers >= self.commits_sent {
                return Ok(good);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.hold(left.min(Duration::from_millis(100)))?;
        }
    }

    /// Records of this member's partitions that were not received; none where the cluster does not say.
    pub fn left(&self) -> Option<u64> {
        let assigned = self.consumer.assignment().ok()?;
        let mut left = 0;
        for element in assigned.elements() {
            let partition = element.partition();
            let (low, high) = self.consumer.fetch_watermarks(C::TOPIC, partition, PATIENCE).ok()?;
            let next = self.next.get(&partition).copied().unwrap_or(low).max(low);
            left += u64::try_from(high - next).unwrap_or_default();
        }
        Some(left)
    }

    fn send_commit(&mut self, mode: CommitMode) -> Result<(), KafkaError> {
        if self.next.is_empty() {
            return Ok(());
        }
        let fail = |error| KafkaError::of(&self.settings, "commit to", &error);
        let mut list = TopicPartitionList::new();
        for (partition, offset) in &self.next {
            self.progress.stands(*partition, Some(*offset));
            let mut element = list.add_partition(C::TOPIC, *partition);
            element.set_offset(Offset::Offset(*offset)).map_err(fail)?;
            element.set_metadata(self.seen.get(partition).map(Seen::note).unwrap_or_default());
        }
        self.done.clear();
        self.consumer.commit(&list, mode).map_err(fail)
    }
}
