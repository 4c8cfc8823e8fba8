//! Seek of a group by time: its members receive a topic's records since a moment again.

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use super::settings::FIRST_ANSWER;
use super::{Group, KafkaError, Settings};

/// Result of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekResult {
    /// Records from the new offsets to the end of the topic.
    pub records: u64,
    /// Number of partitions.
    pub partitions: usize,
}

impl Settings {
    /// Sets `group` to the first record of each partition of `topic` with a timestamp of `since_ms`
    /// or later (ms since the Unix epoch, the producer's clock). The delivered sequences are reset.
    /// Fails while the group has members: they would commit their own offsets over it.
    pub fn rewind(&self, group: &Group, topic: &str, since_ms: i64) -> Result<SeekResult, KafkaError> {
        let partitions = self.partitions(topic)?;
        let fail = |verb: &'static str| move |error| KafkaError::of(self, verb, &error);
        let asking: BaseConsumer = self.consumer(group).create().map_err(fail("set up"))?;
        let mut wanted = TopicPartitionList::new();
        for partition in 0..partitions as i32 {
            let set = wanted.add_partition_offset(topic, partition, Offset::Offset(since_ms));
            set.map_err(fail("ask for the times of"))?;
        }
        let found = asking.offsets_for_times(wanted, FIRST_ANSWER).map_err(fail("ask for the times of"))?;
        let (mut list, mut records) = (TopicPartitionList::new(), 0);
        for element in found.elements() {
            let partition = element.partition();
            let ends = asking.fetch_watermarks(topic, partition, FIRST_ANSWER);
            let (low, high) = ends.map_err(fail("ask for the ends of"))?;
            // No record is that young: the end offset.
            let next = match element.offset() {
                Offset::Offset(offset) => offset.max(low),
                _ => high,
            };
            records += u64::try_from(high - next).unwrap_or_default();
            let set = list.add_partition_offset(topic, partition, Offset::Offset(next));
            set.map_err(fail("commit to"))?;
        }
        asking.commit(&list, CommitMode::Sync).map_err(|error| match error.rdkafka_error_code() {
            Some(
                Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress | Code::StaleMemberEpoch,
            ) => KafkaError {
                what: format!("the group {} cannot be set back", group.name),
                why: "it has members, who would go on from where they are".to_owned(),
                remedy: "end them first; one that was killed, or has an --instance, is missed by the cluster after its session time (6 s; with group.protocol=consumer 45 s)".to_owned(),
            },
            _ => KafkaError::of(self, "commit to", &error),
        })?;
        Ok(SeekResult { records, partitions })
    }
}
