//! Store of stage states in the compacted topic [`STATE`], in chunks.
//!
//! Key of a chunk: `STAGE/PARTITION/WRITER.COUNT/CHUNK`. Compaction keeps the last record of each
//! key and removes tombstones. The state of input partition p is in partition p of the topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blkkin_wire::fragment::Stage;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError as Driver;
use rdkafka::{Offset, TopicPartitionList};

use super::super::settings::Group;
use super::super::{KafkaError, STATE, Settings};
use super::output::{DeliveredOffset, OutgoingRecord, Output};
use super::stage_name;
use super::state_ref::{StateRef, StateSlot};

/// Half of Kafka's default record size: a chunk fits whether compression helps or not.
const CHUNK: usize = 512 << 10;

/// Store of one partition's states.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateStore {
    pub(super) stage: Stage,
    /// Partition of the stage's input.
    pub(super) partition: i32,
    /// Number of partitions of the state topic.
    pub(super) partitions: i32,
    /// Longest record, in bytes.
    pub(super) bytes_max: usize,
}

/// A state whose chunks are queued.
#[derive(Debug)]
pub(super) struct WrittenState {
    note: StateRef,
    landed: DeliveredOffset,
}

impl WrittenState {
    /// Returns the reference once every chunk is acknowledged.
    pub(super) fn state_ref(&self) -> StateRef {
        StateRef { at: self.landed.load(Relaxed), ..self.note }
    }
}

impl StateStore {
    fn key_of(&self, place: StateSlot) -> String {
        format!("{}/{}/{:016x}.{}/", stage_name(self.stage), self.partition, place.writer, place.count)
    }

    fn state_partition(&self) -> i32 {
        self.partition % self.partitions.max(1)
    }

    /// Queues a state's chunks; `None` if the queue stays full.
    pub(super) fn write(
        &self,
        place: StateSlot,
        state: &[u8],
        output: &Output,
        patience: Duration,
    ) -> Result<Option<WrittenState>, KafkaError> {
        let landed = DeliveredOffset::new(AtomicI64::new(-1));
        let prefix = self.key_of(place);
        let mut chunks = 0;
        for (n, chunk) in state.chunks(CHUNK.min(self.bytes_max)).enumerate() {
            let letter = OutgoingRecord {
                topic: STATE,
                partition: Some(self.state_partition()),
                key: Some(&format!("{prefix}{n}")),
                payload: Some(chunk),
                landed: (n == 0).then(|| Arc::clone(&landed)),
                ..OutgoingRecord::default()
            };
            if !output.send(&letter, patience)? {
                return Ok(None);
            }
            chunks += 1;
        }
        let checksum = crc32fast::hash(state);
        let note = StateRef { place, at: -1, chunks, bytes: state.len() as u64, checksum };
        Ok(Some(WrittenState { note, landed }))
    }

    /// Sends tombstones for a state's chunks.
    pub(super) fn empty(&self, place: StateSlot, chunks: u32, output: &Output) -> Result<(), KafkaError> {
        let prefix = self.key_of(place);
        (0..chunks).try_for_each(|n| self.empty_key(&format!("{prefix}{n}"), output))
    }

    pub(super) fn empty_key(&self, key: &str, output: &Output) -> Result<(), KafkaError> {
        let letter = OutgoingRecord {
            topic: STATE,
            partition: Some(self.state_partition()),
            key: Some(key),
            ..OutgoingRecord::default()
        };
        // If the tombstone cannot be queued now, the obsolete chunk stays and only takes room.
        output.send(&letter, Duration::ZERO).map(drop)
    }

    /// Reads the state that `note` references, and lists obsolete chunks behind it.
    pub(super) fn read(
        &self,
        note: &StateRef,
        settings: &Settings,
        patience: Duration,
    ) -> Result<StoredStates, KafkaError> {
        let fail = |error: Driver| KafkaError::of(settings, &format!("read {STATE} of"), &error);
        let group = Group { name: format!("blkkin-state-{}", stage_name(self.stage)), member: None };
        let mut config = settings.consumer(&group);
        config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
        let reader: BaseConsumer = config.create().map_err(fail)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(STATE, self.state_partition(), Offset::Offset(note.at)).map_err(fail)?;
        reader.assign(&from).map_err(fail)?;
        let (mine, prefix) =
            (format!("{}/{}/", stage_name(self.stage), self.partition), self.key_of(note.place));
        let mut found = StoredStates { chunks: vec![None; note.chunks as usize], left: Vec::new() };
        let begun = Instant::now();
        while begun.elapsed() < patience {
            let message = match reader.poll(Duration::from_millis(100)) {
                None => continue,
                Some(Err(Driver::PartitionEOF(_))) => return Ok(found),
                // librdkafka retries until the timeout.
                Some(Err(_)) => continue,
                Some(Ok(message)) => message,
            };
            let Some(key) = message.key().and_then(|key| std::str::from_utf8(key).ok()) else { continue };
            match key.strip_prefix(&prefix) {
                Some(n) => {
                    if let Some(chunk) = n.parse().ok().and_then(|n: usize| found.chunks.get_mut(n)) {
                        *chunk = message.payload().map(<[u8]>::to_vec);
                    }
                }
                None if key.starts_with(&mine) => found.leave(key, message.payload().is_some()),
                None => {}
            }
        }
        Err(KafkaError {
            what: format!("the state of partition {} cannot be read", self.partition),
            why: format!("the cluster did not give all of {STATE} within {} s", patience.as_secs()),
            remedy: "check that all brokers run; what was done stays done, start again".to_owned(),
        })
    }
}

/// Chunks found behind a state's first offset.
#[derive(Debug)]
pub(super) struct StoredStates {
    chunks: Vec<Option<Vec<u8>>>,
    /// Keys of obsolete chunks.
    pub(super) left: Vec<String>,
}

impl StoredStates {
    fn leave(&mut self, key: &str, full: bool) {
        self.left.retain(|left| left != key);
        if full {
            self.left.push(key.to_owned());
        }
    }

    /// Returns the state if its length and checksum match the reference.
    pub(super) fn state(&self, note: &StateRef) -> Result<Vec<u8>, String> {
        let mut state = Vec::new();
        for (n, chunk) in self.chunks.iter().enumerate() {
            state.extend(chunk.as_ref().ok_or_else(|| format!("chunk {n} of {} is gone", note.chunks))?);
        }
        if state.len() as u64 != note.bytes || crc32fast::hash(&state) != note.checksum {
            return Err("its checksum is another".to_owned());
        }
        Ok(state)
    }
}
