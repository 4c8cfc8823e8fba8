//! A stage's saved state of one partition in the cluster, read and committed by a client that is not
//! blkkin.

use std::time::{Duration, Instant};

use blkkin_bus::kafka::{STATE, Settings};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::broker;

const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A committed offset and the reference to the state there, as the group has them
/// (bus/src/kafka/stage/state_ref.rs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredState {
    group: String,
    topic: String,
    partition: i32,
    offset: i64,
    metadata: String,
}

impl StoredState {
    /// Returns what the group has committed for this topic.
    pub(crate) fn committed(settings: &Settings, group: &str, topic: &str, partitions: i32) -> Vec<Self> {
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition(topic, partition);
        }
        let found = client(settings, group).committed_offsets(list, TIME_LIMIT).unwrap();
        let state = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
            let Offset::Offset(offset) = element.offset() else { return None };
            let (group, topic) = (group.to_owned(), topic.to_owned());
            let metadata = element.metadata().to_owned();
            Some(StoredState { group, topic, partition: element.partition(), offset, metadata })
        };
        found.elements().into_iter().filter_map(state).collect()
    }

    /// Stores a copy with another format version, as a member of another release does, and returns
    /// its reference.
    pub(crate) fn with_version(&self, settings: &Settings, version: u32) -> StoredState {
        let words: Vec<&str> = self.metadata.split(' ').collect();
        let [prefix, writer, count, at, chunks, ..] = words[..] else { panic!("{}", self.metadata) };
        assert_eq!(chunks, "1", "the test's states are short");
        let stage = self.group.strip_prefix("blkkin-").unwrap();
        let key = |count: u64| format!("{stage}/{}/{writer}.{count}/0", self.partition);
        let mut state = self.read(settings, at.parse().unwrap(), &key(count.parse().unwrap()));
        state[4..8].copy_from_slice(&version.to_le_bytes());
        let count = count.parse::<u64>().unwrap() + 1_000;
        let at = self.write(settings, &key(count), &state);
        let crc = crc32fast::hash(&state);
        let metadata = format!("{prefix} {writer} {count} {at} 1 {} {crc:08x}", state.len());
        StoredState { metadata, ..self.clone() }
    }

    /// Commits this offset and reference for the group, which must have no members.
    pub(crate) fn commit(&self, settings: &Settings) {
        let mut list = TopicPartitionList::new();
        {
            let mut element = list.add_partition(&self.topic, self.partition);
            element.set_offset(Offset::Offset(self.offset)).unwrap();
            element.set_metadata(&self.metadata);
        }
        let (client, started) = (client(settings, &self.group), Instant::now());
        // A member that ended a moment ago may still count.
        while let Err(error) = client.commit(&list, CommitMode::Sync) {
            assert!(started.elapsed() < TIME_LIMIT, "{error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn read(&self, settings: &Settings, at: i64, key: &str) -> Vec<u8> {
        let reader = client(settings, "test-state");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(STATE, self.partition, Offset::Offset(at)).unwrap();
        reader.assign(&list).unwrap();
        let started = Instant::now();
        while started.elapsed() < TIME_LIMIT {
            let Some(Ok(message)) = reader.poll(Duration::from_millis(100)) else { continue };
            if message.key() == Some(key.as_bytes()) {
                return message.payload().unwrap().to_vec();
            }
        }
        panic!("no chunk {key} at {at}");
    }

    /// Appends a chunk and returns its offset.
    fn write(&self, settings: &Settings, key: &str, state: &[u8]) -> i64 {
        let producer: BaseProducer = config(settings, "test-state").create().unwrap();
        let record = BaseRecord::to(STATE).partition(self.partition).key(key).payload(state);
        producer.send(record).unwrap();
        producer.flush(TIME_LIMIT).unwrap();
        let (_, end) =
            client(settings, "test-state").fetch_watermarks(STATE, self.partition, TIME_LIMIT).unwrap();
        end - 1
    }
}

fn config(settings: &Settings, group: &str) -> ClientConfig {
    let mut config = broker::client::client(settings, group);
    config.set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
    config
}

fn client(settings: &Settings, group: &str) -> BaseConsumer {
    config(settings, group).create().unwrap()
}
