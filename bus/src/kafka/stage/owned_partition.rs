//! Partition that is assigned to this member.
//!
//! *In*: the partition's records. *Out*: the stage's output in a batcher, dead letters, and when a
//! save is due. *Invariant*: `next` is the offset behind the last record that the stage applied.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use blkkin_wire::fragment::FragmentOrigin;
use blkkin_wire::stage::{InputRecord, Stage};

use super::super::dead_letters::DeadLetter;
use super::record_batcher::RecordBatcher;
use super::state_ref::StateSlot;

/// Longest interval between two saved states while records are read.
const SAVE_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Stage, offset and saved state of a partition.
pub(super) struct OwnedPartition<S> {
    pub(super) stage: S,
    pub(super) batcher: RecordBatcher,
    /// Copies of what cannot be decoded or sent, which wait for room in the producer's queue. No
    /// state is saved before they are sent.
    pub(super) dead_letters: VecDeque<DeadLetter>,
    pub(super) partition: i32,
    /// Offset of the next record.
    pub(super) next: i64,
    /// Records that retention deleted before they were read.
    pub(super) expired: u64,
    /// Time of the last record or tick.
    pub(super) last_input: Instant,
    /// Slots of states that are obsolete once the next state is committed.
    pub(super) obsolete_slots: Vec<(StateSlot, u32)>,
    /// Keys of chunks found behind the restored state. They are obsolete once this member commits:
    /// until then they may be of a successor that this evicted member does not know of.
    pub(super) obsolete_keys: Vec<String>,
    writer: u64,
    count: u64,
    saved: Saved,
}

/// Last committed state.
struct Saved {
    at: Instant,
    next: i64,
    bytes: u64,
    /// Records read since.
    read: u64,
}

impl<S: Stage> OwnedPartition<S> {
    /// Creates a partition whose last state is that at `next`. No output record is longer than
    /// `bytes_max`.
    pub(super) fn new(
        stage: S,
        partition: i32,
        next: i64,
        writer: u64,
        bytes_max: usize,
        now: Instant,
    ) -> Self {
        let from =
            FragmentOrigin { stage: S::ID, partition: partition as u32, incarnation: stage.incarnation() };
        OwnedPartition {
            stage,
            batcher: RecordBatcher::new(from, bytes_max),
            dead_letters: VecDeque::new(),
            partition,
            next,
            expired: 0,
            last_input: now,
            obsolete_slots: Vec::new(),
            obsolete_keys: Vec::new(),
            writer,
            count: 0,
            saved: Saved { at: now, next, bytes: 0, read: 0 },
        }
    }

    /// Passes the record at `offset` to the stage.
    pub(super) fn apply(&mut self, offset: i64, entry: InputRecord<'_>, now: Instant) {
        self.expired += u64::try_from(offset - self.next).unwrap_or(0);
        self.next = offset + 1;
        self.last_input = now;
        self.saved.read += entry.bytes.len() as u64;
        self.stage.apply(entry, &mut self.batcher);
    }

    /// Returns the slot for the next state.
    pub(super) fn next_slot(&mut self) -> StateSlot {
        self.count += 1;
        StateSlot { writer: self.writer, count: self.count }
    }

    /// Marks the state at `next` as committed.
    pub(super) fn set_saved(&mut self, next: i64, bytes: u64, now: Instant) {
        self.saved = Saved { at: now, next, bytes, read: 0 };
    }

    /// Returns whether records were read since the last saved state.
    pub(super) fn has_unsaved(&self) -> bool {
        self.next != self.saved.next
    }

    /// Returns the time of the last saved state.
    pub(super) fn saved_at(&self) -> Instant {
        self.saved.at
    }

    /// Returns whether a save is due: states take no more bytes than the input, but a state is
    /// never older than a minute.
    pub(super) fn save_due(&self, every: Duration, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.saved.at);
        self.has_unsaved()
            && age >= every
            && (self.saved.read >= self.saved.bytes || age >= SAVE_INTERVAL_MAX)
    }
}
