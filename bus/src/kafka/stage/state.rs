//! States in the topic [`STATE`]: written in chunks, read by place, emptied.
//!
//! Key of a chunk: `STAGE/PARTITION/WRITER.COUNT/CHUNK`. The topic is compacted: of each key the last record stays, and an
//! empty one goes. The state of partition p lies in partition p.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blkkin_wire::piece::Stage;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError as Driver;
use rdkafka::{Offset, TopicPartitionList};

use super::super::settings::Group;
use super::super::{KafkaError, STATE, Settings};
use super::note::{Note, Place};
use super::output::{Landed, Letter, Output};
use super::word;

/// Half of Kafka's default for a record: compressed or not, a chunk fits.
const CHUNK: usize = 512 << 10;

/// Whose states, and where they lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shelf {
    pub(super) stage: Stage,
    /// Of the stage's input.
    pub(super) partition: i32,
    /// That the topic of states has.
    pub(super) partitions: i32,
    /// Longest record.
    pub(super) bytes_max: usize,
}

/// A state on its way.
#[derive(Debug)]
pub(super) struct Written {
    note: Note,
    landed: Landed,
}

impl Written {
    /// Once everything is acknowledged.
    pub(super) fn note(&self) -> Note {
        Note { at: self.landed.load(Relaxed), ..self.note }
    }
}

impl Shelf {
    fn place_of(&self, place: Place) -> String {
        format!("{}/{}/{:016x}.{}/", word(self.stage), self.partition, place.writer, place.count)
    }

    fn lies_in(&self) -> i32 {
        self.partition % self.partitions.max(1)
    }

    /// Queues a state's chunks. None where the queue stays full.
    pub(super) fn write(
        &self,
        place: Place,
        state: &[u8],
        output: &Output,
        patience: Duration,
    ) -> Result<Option<Written>, KafkaError> {
        let landed = Landed::new(AtomicI64::new(-1));
        let prefix = self.place_of(place);
        let mut chunks = 0;
        for (n, chunk) in state.chunks(CHUNK.min(self.bytes_max)).enumerate() {
            let letter = Letter {
                topic: STATE,
                partition: Some(self.lies_in()),
                key: Some(&format!("{prefix}{n}")),
                payload: Some(chunk),
                landed: (n == 0).then(|| Arc::clone(&landed)),
                ..Letter::default()
            };
            if !output.send(&letter, patience)? {
                return Ok(None);
            }
            chunks += 1;
        }
        let checksum = crc32fast::hash(state);
        let note = Note { place, at: -1, chunks, bytes: state.len() as u64, checksum };
        Ok(Some(Written { note, landed }))
    }

    /// Empties a place.
    pub(super) fn empty(&self, place: Place, chunks: u32, output: &Output) -> Result<(), KafkaError> {
        let prefix = self.place_of(place);
        (0..chunks).try_for_each(|n| self.empty_key(&format!("{prefix}{n}"), output))
    }

    pub(super) fn empty_key(&self, key: &str, output: &Output) -> Result<(), KafkaError> {
        let letter =
            Letter { topic: STATE, partition: Some(self.lies_in()), key: Some(key), ..Letter::default() };
        // Where it cannot be sent now it stays: it takes room, and nobody reads it.
        output.send(&letter, Duration::ZERO).map(drop)
    }

    /// Reads the state that `note` names, and finds what others have left behind it.
    pub(super) fn read(
        &self,
        note: &Note,
        settings: &Settings,
        patience: Duration,
    ) -> Result<Found, KafkaError> {
        let fail = |error: Driver| KafkaError::of(settings, &format!("read {STATE} of"), &error);
        let group = Group { name: format!("blkkin-state-{}", word(self.stage)), member: None };
        let mut config = settings.consumer(&group);
        config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
        let reader: BaseConsumer = config.create().map_err(fail)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(STATE, self.lies_in(), Offset::Offset(note.at)).map_err(fail)?;
        reader.assign(&from).map_err(fail)?;
        let (mine, prefix) = (format!("{}/{}/", word(self.stage), self.partition), self.place_of(note.place));
        let mut found = Found { chunks: vec![None; note.chunks as usize], left: Vec::new() };
        let begun = Instant::now();
        while begun.elapsed() < patience {
            let message = match reader.poll(Duration::from_millis(100)) {
                None => continue,
                Some(Err(Driver::PartitionEOF(_))) => return Ok(found),
                // It comes back, or the patience is over.
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

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    chunks: Vec<Option<Vec<u8>>>,
    /// Keys of chunks that count for nothing.
    pub(super) left: Vec<String>,
}

impl Found {
    fn leave(&mut self, key: &str, full: bool) {
        self.left.retain(|left| left != key);
        if full {
            self.left.push(key.to_owned());
        }
    }

    /// The state, if it is the one that `note` speaks of.
    pub(super) fn state(&self, note: &Note) -> Result<Vec<u8>, String> {
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
