//! Store of stage states in the compacted topic [`STATE`], in chunks.
//!
//! *In*: a state and its slot. *Out*: a reference, and later the same state for it. *Invariant*: a
//! state is returned only if its length and checksum match the reference.
//!
//! Key of a chunk: `STAGE/PARTITION/WRITER.COUNT/CHUNK`. Compaction keeps the last record of each
//! key and removes tombstones. The state of input partition p is in partition p of the topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blkkin_wire::fragment::StageId;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError as Driver;
use rdkafka::{Offset, TopicPartitionList};

use super::super::settings::Group;
use super::super::{KafkaError, STATE, Settings};
use super::stage_name;
use super::stage_producer::{DeliveredOffset, OutgoingRecord, StageProducer};
use super::state_ref::{StateRef, StateSlot};

/// Half of Kafka's default record size: a chunk fits whether compression helps or not.
const CHUNK: usize = 512 << 10;

/// Store of one partition's states.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateStore {
    pub(super) stage: StageId,
    /// Partition of the stage's input.
    pub(super) partition: i32,
    /// Number of partitions of the state topic.
    pub(super) partitions: i32,
    /// Longest record, in bytes.
    pub(super) bytes_max: usize,
}

/// State whose chunks are queued.
#[derive(Debug)]
pub(super) struct WrittenState {
    state_ref: StateRef,
    delivered_offset: DeliveredOffset,
}

impl WrittenState {
    /// Returns the reference once every chunk is acknowledged.
    pub(super) fn state_ref(&self) -> StateRef {
        StateRef { at: self.delivered_offset.load(Relaxed), ..self.state_ref }
    }
}

impl StateStore {
    fn key_of(&self, slot: StateSlot) -> String {
        format!("{}/{}/{:016x}.{}/", stage_name(self.stage), self.partition, slot.writer, slot.count)
    }

    pub(super) fn state_partition(&self) -> i32 {
        self.partition % self.partitions.max(1)
    }

    /// Queues a state's chunks; `None` if the queue stays full.
    pub(super) fn write(
        &self,
        slot: StateSlot,
        state: &[u8],
        output: &impl StageProducer,
        timeout: Duration,
    ) -> Result<Option<WrittenState>, KafkaError> {
        let delivered_offset = DeliveredOffset::new(AtomicI64::new(-1));
        let prefix = self.key_of(slot);
        let mut chunks = 0;
        for (n, chunk) in state.chunks(CHUNK.min(self.bytes_max)).enumerate() {
            let record = OutgoingRecord {
                topic: STATE,
                partition: Some(self.state_partition()),
                key: Some(&format!("{prefix}{n}")),
                payload: Some(chunk),
                delivered_offset: (n == 0).then(|| Arc::clone(&delivered_offset)),
                ..OutgoingRecord::default()
            };
            if !output.send(&record, timeout)? {
                return Ok(None);
            }
            chunks += 1;
        }
        let checksum = crc32fast::hash(state);
        let state_ref = StateRef { slot, at: -1, chunks, bytes: state.len() as u64, checksum };
        Ok(Some(WrittenState { state_ref, delivered_offset }))
    }

    /// Sends tombstones for a state's chunks.
    pub(super) fn empty(
        &self,
        slot: StateSlot,
        chunks: u32,
        output: &impl StageProducer,
    ) -> Result<(), KafkaError> {
        let prefix = self.key_of(slot);
        (0..chunks).try_for_each(|n| self.empty_key(&format!("{prefix}{n}"), output))
    }

    pub(super) fn empty_key(&self, key: &str, output: &impl StageProducer) -> Result<(), KafkaError> {
        let record = OutgoingRecord {
            topic: STATE,
            partition: Some(self.state_partition()),
            key: Some(key),
            ..OutgoingRecord::default()
        };
        // If the tombstone cannot be queued now, the obsolete chunk stays and only takes room.
        output.send(&record, Duration::ZERO).map(drop)
    }

    /// Reads the state that `state_ref` refers to, and lists obsolete chunks behind it. Fails if no
    /// record arrives for `timeout`: a long state may take longer.
    pub(super) fn read(
        &self,
        state_ref: &StateRef,
        settings: &Settings,
        timeout: Duration,
    ) -> Result<StoredStates, KafkaError> {
        let fail = |error: Driver| KafkaError::of(settings, &format!("read {STATE} of"), &error);
        let group = Group { name: format!("blkkin-state-{}", stage_name(self.stage)), member: None };
        let mut config = settings.consumer(&group);
        config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
        let reader: BaseConsumer = config.create().map_err(fail)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(STATE, self.state_partition(), Offset::Offset(state_ref.at))
            .map_err(fail)?;
        reader.assign(&from).map_err(fail)?;
        let mut found = StoredStates::new(self, state_ref);
        let poll = || match reader.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => Polled::Record(message),
            Some(Err(Driver::PartitionEOF(_))) => Polled::End,
            // librdkafka retries until the timeout.
            None | Some(Err(_)) => Polled::Nothing,
        };
        if found.collect(timeout, Instant::now, poll) {
            return Ok(found);
        }
        Err(KafkaError {
            what: format!("the state of partition {} cannot be read", self.partition),
            why: format!("the cluster returned nothing of {STATE} for {} s", timeout.as_secs()),
            remedy: "check that all brokers run, then restart the service: committed work is kept".to_owned(),
        })
    }
}

/// Result of one look at a partition.
enum Polled<M> {
    Nothing,
    /// The end of the partition.
    End,
    Record(M),
}

/// Chunks found behind a state's first offset.
#[derive(Debug)]
pub(super) struct StoredStates {
    chunks: Vec<Option<Vec<u8>>>,
    /// Prefix of the keys of the state's chunks.
    prefix: String,
    /// Prefix of the keys of all states of the stage's partition.
    partition_prefix: String,
    /// Keys of obsolete chunks.
    pub(super) obsolete: Vec<String>,
}

impl StoredStates {
    pub(super) fn new(store: &StateStore, state_ref: &StateRef) -> StoredStates {
        StoredStates {
            chunks: vec![None; state_ref.chunks as usize],
            prefix: store.key_of(state_ref.slot),
            partition_prefix: format!("{}/{}/", stage_name(store.stage), store.partition),
            obsolete: Vec::new(),
        }
    }

    /// Adds records up to the end. Returns false if no record arrives for `timeout`: a long state may take longer.
    fn collect<M: Message>(
        &mut self,
        timeout: Duration,
        now: impl Fn() -> Instant,
        mut poll: impl FnMut() -> Polled<M>,
    ) -> bool {
        let mut last_record = now();
        while now().saturating_duration_since(last_record) < timeout {
            match poll() {
                Polled::Nothing => {}
                Polled::End => return true,
                Polled::Record(message) => {
                    last_record = now();
                    if let Some(key) = message.key().and_then(|key| std::str::from_utf8(key).ok()) {
                        self.add(key, message.payload());
                    }
                }
            }
        }
        false
    }

    /// Adds the next record of the topic.
    pub(super) fn add(&mut self, key: &str, payload: Option<&[u8]>) {
        match key.strip_prefix(&self.prefix) {
            Some(n) => {
                if let Some(chunk) = n.parse().ok().and_then(|n: usize| self.chunks.get_mut(n)) {
                    *chunk = payload.map(<[u8]>::to_vec);
                }
            }
            None if key.starts_with(&self.partition_prefix) => self.note_obsolete(key, payload.is_some()),
            None => {}
        }
    }

    fn note_obsolete(&mut self, key: &str, exists: bool) {
        self.obsolete.retain(|other| other != key);
        if exists {
            self.obsolete.push(key.to_owned());
        }
    }

    /// Returns the state if its length and checksum match the reference.
    pub(super) fn state(&self, state_ref: &StateRef) -> Result<Vec<u8>, String> {
        let mut state = Vec::new();
        for (n, chunk) in self.chunks.iter().enumerate() {
            state.extend(
                chunk.as_ref().ok_or_else(|| format!("chunk {n} of {} is missing", state_ref.chunks))?,
            );
        }
        if state.len() as u64 != state_ref.bytes || crc32fast::hash(&state) != state_ref.checksum {
            return Err("its checksum does not match".to_owned());
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const CHUNKS: u32 = 100;

    /// Reads a state of [`CHUNKS`] with this pause before each record; returns whether it is complete.
    fn is_read(pause: Duration) -> bool {
        let store = StateStore { stage: StageId::Join, partition: 0, partitions: 1, bytes_max: CHUNK };
        let (slot, state) = (StateSlot { writer: 1, count: 0 }, vec![b'x'; CHUNKS as usize]);
        let checksum = crc32fast::hash(&state);
        let state_ref = StateRef { slot, at: 0, chunks: CHUNKS, bytes: state.len() as u64, checksum };
        let (now, sent, has_paused) = (Cell::new(Instant::now()), Cell::new(0), Cell::new(false));
        let poll = || {
            if !has_paused.replace(!has_paused.get()) {
                now.set(now.get() + pause);
                return Polled::Nothing;
            }
            let n = sent.replace(sent.get() + 1);
            if n == CHUNKS {
                return Polled::End;
            }
            let (key, topic) = (format!("{}{n}", store.key_of(slot)).into_bytes(), STATE.to_owned());
            let at = Timestamp::NotAvailable;
            Polled::Record(OwnedMessage::new(Some(b"x".to_vec()), Some(key), topic, at, 0, n.into(), None))
        };
        let mut found = StoredStates::new(&store, &state_ref);
        found.collect(TIMEOUT, || now.get(), poll) && found.state(&state_ref).is_ok_and(|read| read == state)
    }

    #[test]
    fn a_state_may_take_longer_than_the_time_between_two_records() {
        // 100 records of 20 s.
        assert!(is_read(Duration::from_secs(20)));
        assert!(!is_read(TIMEOUT));
    }
}
