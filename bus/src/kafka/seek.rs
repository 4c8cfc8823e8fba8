//! Seek of a consumer group by time.
//!
//! *In*: a group without members, a topic and a time. *Out*: committed offsets from which the
//! group's members receive the records since that time again. *Invariant*: the commit has no
//! metadata, so the members treat none of these records as duplicates.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::commits::Commits;
use super::settings::FIRST_REPLY_TIMEOUT;
use super::{Group, KafkaError, Settings};

/// Time limit of the commit. It includes the search for the group's coordinator, of which a new cluster first creates
/// the topic of offsets.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Extent of a seek: what the group receives again.
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
        let client: BaseConsumer = self.consumer(group).create().map_err(fail("create a client of"))?;
        let mut wanted = TopicPartitionList::new();
        for partition in 0..partitions as i32 {
            let set = wanted.add_partition_offset(topic, partition, Offset::Offset(since_ms));
            set.map_err(fail("look up timestamps in"))?;
        }
        let found =
            client.offsets_for_times(wanted, FIRST_REPLY_TIMEOUT).map_err(fail("look up timestamps in"))?;
        let (mut list, mut records) = (TopicPartitionList::new(), 0);
        for element in found.elements() {
            let partition = element.partition();
            let ends = client.fetch_watermarks(topic, partition, FIRST_REPLY_TIMEOUT);
            let (low, high) = ends.map_err(fail("fetch end offsets from"))?;
            // The partition has no record since then: the end offset.
            let next = match element.offset() {
                Offset::Offset(offset) => offset.max(low),
                _ => high,
            };
            records += u64::try_from(high - next).unwrap_or_default();
            let set = list.add_partition_offset(topic, partition, Offset::Offset(next));
            set.map_err(fail("commit to"))?;
        }
        let committed = self.commit_offsets(group, &client, &list);
        if committed.is_err() {
            // Its end would wait for the reply without limit.
            std::mem::forget(client);
        }
        committed?;
        Ok(SeekResult { records, partitions })
    }
    /// Commits offsets of a group without members, within [`COMMIT_TIMEOUT`].
    fn commit_offsets(
        &self,
        group: &Group,
        client: &BaseConsumer,
        offsets: &TopicPartitionList,
    ) -> Result<(), KafkaError> {
        let mut commits = Commits::new(client.client());
        let sent = commits.send(client.client(), offsets);
        let reply = if sent { wait_for_reply(&mut commits, client) } else { Err(Code::UnknownGroup) };
        reply.map_err(|code| match code {
            Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress | Code::StaleMemberEpoch => KafkaError {
                what: format!("the offsets of group {} cannot be reset", group.name),
                why: "it has members, which would commit their own offsets".to_owned(),
                remedy: "stop them first; the cluster removes a member that was killed, or has an --instance name, after its session timeout (6 s; 45 s with group.protocol=consumer)".to_owned(),
            },
            _ => KafkaError::of(self, "commit to", &Driver::ConsumerCommit(code)),
        })
    }
}

fn wait_for_reply(commits: &mut Commits, client: &BaseConsumer) -> Result<(), Code> {
    let deadline = Instant::now() + COMMIT_TIMEOUT;
    loop {
        if let Some(reply) = commits.result() {
            return reply;
        }
        if Instant::now() > deadline {
            return Err(Code::RequestTimedOut);
        }
        commits.wait(Duration::from_millis(20));
        // A rebalance waits for it.
        client.poll(Duration::ZERO);
    }
}
