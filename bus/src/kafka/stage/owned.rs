//! One partition in the hands of this member.

use std::time::{Duration, Instant};

use blkkin_wire::piece::{Origin, Stage};

use super::note::Place;
use super::outbox::Outbox;
use super::{Entry, Machine};

/// A state is saved after so long at the latest, if anything was read.
const SAVE_WITHIN: Duration = Duration::from_secs(60);

/// A machine, where it stands, and what is saved of it.
pub(super) struct Owned<M> {
    pub(super) machine: M,
    pub(super) outbox: Outbox,
    pub(super) partition: i32,
    /// Offset of the next record.
    pub(super) next: i64,
    /// Records that were gone before they were read.
    pub(super) gone: u64,
    /// When something was last read, or a tick sent.
    pub(super) heard: Instant,
    /// Places whose chunks nobody will read once the next state is committed.
    pub(super) old: Vec<(Place, u32)>,
    writer: u64,
    count: u64,
    saved: Saved,
}

/// The last state that counts.
struct Saved {
    at: Instant,
    next: i64,
    bytes: u64,
    /// Read since.
    read: u64,
}

impl<M: Machine> Owned<M> {
    /// One whose last state is that at `next`. No record of its pieces is longer than `bytes_max`.
    pub(super) fn new(
        machine: M,
        stage: Stage,
        partition: i32,
        next: i64,
        writer: u64,
        bytes_max: usize,
    ) -> Self {
        let from = Origin { stage, partition: partition as u32, epoch: machine.epoch() };
        let now = Instant::now();
        Owned {
            machine,
            outbox: Outbox::new(from, bytes_max),
            partition,
            next,
            gone: 0,
            heard: now,
            old: Vec::new(),
            writer,
            count: 0,
            saved: Saved { at: now, next, bytes: 0, read: 0 },
        }
    }

    /// Gives the machine what lies at `offset`.
    pub(super) fn apply(&mut self, offset: i64, entry: Entry<'_>, now: Instant) {
        self.gone += u64::try_from(offset - self.next).unwrap_or(0);
        self.next = offset + 1;
        self.heard = now;
        self.saved.read += entry.bytes.len() as u64;
        self.machine.apply(entry, &mut self.outbox);
    }

    /// A place for the next state.
    pub(super) fn place(&mut self) -> Place {
        self.count += 1;
        Place { writer: self.writer, count: self.count }
    }

    /// The state at `next` counts from now on.
    pub(super) fn is_saved(&mut self, next: i64, bytes: u64) {
        self.saved = Saved { at: Instant::now(), next, bytes, read: 0 };
    }

    /// Whether anything was read since.
    pub(super) fn is_ahead(&self) -> bool {
        self.next != self.saved.next
    }

    /// When it was saved last.
    pub(super) fn saved_at(&self) -> Instant {
        self.saved.at
    }

    /// Whether it is time to save: no more is written for states than is read, but after a minute it is written anyway.
    pub(super) fn save_due(&self, every: Duration, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.saved.at);
        self.is_ahead() && age >= every && (self.saved.read >= self.saved.bytes || age >= SAVE_WITHIN)
    }
}
