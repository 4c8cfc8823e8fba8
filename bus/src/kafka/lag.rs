//! Consumer lag of one group member.
//!
//! *In*: the member's processed offsets ([`Progress`]) and the topic's begin and end offsets from
//! the cluster ([`LagReader`]). *Out*: the number of records of its partitions that are not
//! processed ([`Lag`]). *Invariant*: end offsets are fetched at each call, and a member counts its
//! own partitions only, so the lags of all members add up to the group's lag.
//!
//! The member defines *processed*: an exporter after its destinations acknowledged the record, an
//! aggregator stage after it applied it.
//!
//! A reading costs two requests a broker, whatever the number of partitions. The reader has its own
//! client because the member may be blocked while its lag is read.
//!
//! *Rejected*: librdkafka's statistics (`consumer_lag`). They learn end offsets from fetches, and a
//! member that waits for its destination does not fetch: its lag would stop growing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError as Driver;
use rdkafka::{Offset, TopicPartitionList};

use super::settings::FIRST_REPLY_TIMEOUT;
use super::{KafkaError, Settings};

/// First unprocessed offset of each partition; `None` means the partition's first offset.
type PartitionOffsets = BTreeMap<i32, Option<i64>>;

/// Progress of a member, shared by the member and the lag reader.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<PartitionOffsets>>);

impl Progress {
    /// Removes all partitions.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// Adds a partition, or sets its first unprocessed offset.
    pub(super) fn set(&self, partition: i32, next: Option<i64>) {
        self.lock().insert(partition, next);
    }

    /// Removes a revoked partition.
    pub(super) fn remove(&self, partition: i32) {
        self.lock().remove(&partition);
    }

    fn lock(&self) -> MutexGuard<'_, PartitionOffsets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lag of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Existing records of its partitions that are not processed.
    pub records: u64,
    /// Number of its partitions.
    pub partitions: usize,
}

/// Fetches begin and end offsets of topics.
pub struct LagReader {
    client: BaseConsumer,
    settings: Settings,
}

impl LagReader {
    /// Creates the client; the cluster may be unreachable.
    pub fn new(settings: &Settings) -> Result<LagReader, KafkaError> {
        let client = settings
            .client()
            .create()
            .map_err(|error| KafkaError::of(settings, "create a client of", &error))?;
        Ok(LagReader { client, settings: settings.clone() })
    }

    /// Computes the lag of `progress` in `topic`.
    pub fn lag(&self, topic: &str, progress: &Progress) -> Result<Lag, KafkaError> {
        let processed = progress.lock().clone();
        if processed.is_empty() {
            return Ok(Lag::default());
        }
        // Fetched last, so that a processed offset is never behind the end.
        let begins = self.fetch_offsets(topic, &processed, Offset::Beginning)?;
        let ends = self.fetch_offsets(topic, &processed, Offset::End)?;
        Ok(Lag { records: lag_of(&processed, &begins, &ends), partitions: processed.len() })
    }

    /// Fetches the first or the end offset of partitions. ListOffsets reserves a timestamp for each
    /// (ListOffsetsRequest.json: -2 first offset, -1 end offset).
    fn fetch_offsets(
        &self,
        topic: &str,
        processed: &PartitionOffsets,
        which: Offset,
    ) -> Result<BTreeMap<i32, i64>, KafkaError> {
        let fail = |error: Driver| KafkaError::of(&self.settings, "fetch offsets from", &error);
        let mut wanted = TopicPartitionList::new();
        for partition in processed.keys() {
            wanted.add_partition_offset(topic, *partition, which).map_err(fail)?;
        }
        let found = self.client.offsets_for_times(wanted, FIRST_REPLY_TIMEOUT).map_err(fail)?;
        let mut offsets = BTreeMap::new();
        for element in found.elements() {
            element.error().map_err(fail)?;
            if let Offset::Offset(offset) = element.offset() {
                offsets.insert(element.partition(), offset);
            }
        }
        Ok(offsets)
    }
}

/// Sums the lag; records that retention deleted before they were processed do not count.
fn lag_of(processed: &PartitionOffsets, begins: &BTreeMap<i32, i64>, ends: &BTreeMap<i32, i64>) -> u64 {
    let of = |(partition, next): (&i32, &Option<i64>)| {
        let begin = begins.get(partition).copied().unwrap_or(0);
        let next = next.map_or(begin, |next| next.max(begin));
        ends.get(partition).map_or(0, |end| u64::try_from(end - next).unwrap_or(0))
    };
    processed.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_is_the_number_of_existing_unprocessed_records() {
        let processed =
            PartitionOffsets::from([(0, Some(5)), (1, None), (2, Some(3)), (3, Some(9)), (4, Some(1))]);
        let begins = BTreeMap::from([(0, 0), (1, 2), (2, 7), (3, 0), (4, 0)]);
        let ends = BTreeMap::from([(0, 9), (1, 6), (2, 10), (3, 8)]);
        // 4 of 9; all 4; 3, since retention deleted the others; none, since its offset is behind
        // the end; none, since its end offset is unknown.
        assert_eq!(lag_of(&processed, &begins, &ends), 4 + 4 + 3);
    }

    #[test]
    fn a_revoked_partition_is_not_in_the_lag() {
        let progress = Progress::default();
        progress.set(1, None);
        progress.set(2, Some(7));
        progress.set(1, Some(3));
        progress.remove(2);
        assert_eq!(*progress.lock(), PartitionOffsets::from([(1, Some(3))]));
        progress.clear();
        assert!(progress.lock().is_empty());
    }
}
