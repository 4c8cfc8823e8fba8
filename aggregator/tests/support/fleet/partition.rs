//! A partition's log and the stage that owns it, with its saved state.
//!
//! *In*: records. *Out*: the stage's output, batched as its runner does. *Invariant*: a save has all
//! output before it in the logs; a kill loses what came after, and the successor writes it again.

use std::collections::{BTreeMap, VecDeque};

use blkkin_wire::fragment::{FragmentOrigin, TraceFragment};
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::v1::FragmentWriter;

/// Input records after which a stage's open output records are written.
const FLUSH_EVERY: usize = 8;

/// The retained records of a partition.
#[derive(Default)]
pub(crate) struct Log {
    first: u64,
    records: VecDeque<(LogTime, Vec<u8>)>,
}

impl Log {
    pub(crate) fn push(&mut self, at: LogTime, bytes: Vec<u8>) {
        self.records.push_back((at, bytes));
    }

    pub(crate) fn get(&self, offset: u64) -> Option<&(LogTime, Vec<u8>)> {
        self.records.get(usize::try_from(offset.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn trim(&mut self, until: u64) {
        while self.first < until && self.records.pop_front().is_some() {
            self.first += 1;
        }
    }
}

/// A record that a stage wrote: whether to its side output, the partition, and its bytes.
pub(crate) type Written = (bool, u32, Vec<u8>);

/// A stage with its partition.
pub(crate) struct Owned<S: Stage> {
    pub(crate) stage: S,
    config: S::Config,
    partition: u32,
    pub(crate) next: u64,
    pub(crate) saved: Option<(Vec<u8>, u64)>,
}

#[derive(Default)]
struct Batcher {
    origin: Option<FragmentOrigin>,
    open: BTreeMap<(bool, u32), FragmentWriter>,
}

impl Batcher {
    fn push(&mut self, target: (bool, u32), number: u64, fragment: &TraceFragment) {
        let Some(origin) = self.origin else { return };
        self.open.entry(target).or_insert_with(|| FragmentWriter::begin(origin, number)).push(fragment);
    }
}

impl StageOutput for Batcher {
    fn fragment(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.push((false, partition), number, &fragment);
    }
    fn side_output(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.push((true, partition), number, &fragment);
    }
    fn dead_letter(&mut self, why: String) {
        panic!("{why}");
    }
}

impl<S: Stage> Owned<S> {
    pub(crate) fn new(partition: u32, config: S::Config) -> Owned<S> {
        let stage = S::new(blkkin_wire::fragment::Incarnation(u64::from(partition) + 1), config.clone());
        let mut owned = Owned { stage, config, partition, next: 0, saved: None };
        owned.save();
        owned
    }

    /// Applies up to `max` unread records. Returns what it wrote.
    pub(crate) fn read(&mut self, log: &Log, max: usize) -> Vec<Written> {
        let origin =
            FragmentOrigin { stage: S::ID, partition: self.partition, incarnation: self.stage.incarnation() };
        let mut batcher = Batcher { origin: Some(origin), ..Batcher::default() };
        let mut written = Vec::new();
        for n in 1..=max {
            let Some((at, bytes)) = log.get(self.next) else { break };
            self.stage.apply(InputRecord { at: Some(*at), bytes }, &mut batcher);
            self.next += 1;
            if n % FLUSH_EVERY == 0 {
                written.extend(flush(&mut batcher));
            }
        }
        written.extend(flush(&mut batcher));
        written
    }

    /// Saves the state. Returns its bytes.
    pub(crate) fn save(&mut self) -> usize {
        let bytes = self.stage.save().unwrap_or_else(|why| panic!("{why}"));
        let length = bytes.len();
        self.saved = Some((bytes, self.next));
        length
    }

    /// Replaces the stage by one without any state, to see what it held.
    pub(crate) fn empty(&mut self) {
        self.stage = S::new(self.stage.incarnation(), self.config.clone());
    }

    /// Replaces a killed owner: restores the saved state. Returns the number of records to read
    /// again.
    pub(crate) fn take_over(&mut self) -> u64 {
        let (bytes, next) = self.saved.as_ref().expect("saved at the start");
        let unused = blkkin_wire::fragment::Incarnation(u64::MAX);
        self.stage = S::restore(bytes, self.config.clone(), unused).unwrap_or_else(|why| panic!("{why}"));
        assert_ne!(self.stage.incarnation(), unused, "the same configuration continues its numbers");
        std::mem::replace(&mut self.next, *next) - next
    }
}

fn flush(batcher: &mut Batcher) -> impl Iterator<Item = Written> + use<> {
    std::mem::take(&mut batcher.open).into_iter().map(|((side, to), record)| (side, to, record.end()))
}
