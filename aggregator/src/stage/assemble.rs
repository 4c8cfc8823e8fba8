//! Stage two: pieces by trace, each once, and of them those that are kept.
//!
//! *In*: records of `blkkin.spans`, of every partition of the first stage. *Out*: pieces for `blkkin.traces`, and what became
//! of everything ([`AssembleBooks`]).
//! *Invariant*: that of [`super`]; of one origin each number is taken once; received = kept + left out, and what was
//! received again and what never came are counted.
//!
//! A first piece passes at once, also an incomplete one: the first stage has waited for the rest. A later one is sent by
//! itself, by the decision that the first one got.

use std::collections::BTreeMap;
use std::hash::RandomState;

use blkkin_wire::ids::TraceId;
use blkkin_wire::piece::{Epoch, Origin, Part, Piece, Stage};
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::numbers::Numbers;
use super::rules::{Kept, Rules};
use super::saved::{self, Unreadable};
use super::{Outlet, Record};
use crate::join::recent::Recent;

/// Origins remembered: a partition of the first stage is one, and one more after each change of its configuration. Beyond it
/// the one heard of longest ago is forgotten.
const ORIGINS_MAX: usize = 4_096;
/// Traces remembered that a rule kept and the draw would not have: as many as may be open in the join.
const KEPT_MAX: usize = 65_536;

/// What the second stage may be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssembleStageConfig {
    /// Partitions of the output.
    pub partitions: u32,
    /// What is kept.
    pub rules: Rules,
}

/// What became of pieces, since the state began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssembleBooks {
    /// Records read, poison among them.
    pub records: u64,
    /// Records that could not be read: copied to where dead letters go.
    pub poison: u64,
    /// Pieces taken, each number once.
    pub received: u64,
    /// Pieces that had been taken before.
    pub repeated: u64,
    /// Pieces that never came, by the gaps in their numbers.
    pub missed: u64,
    /// Pieces given out.
    pub kept: u64,
    /// Pieces that no rule keeps.
    pub left_out: u64,
    /// Spans in those given out.
    pub spans: u64,
}

/// The state of one partition of spans.
#[derive(Debug, Serialize, Deserialize)]
pub struct AssembleStage {
    epoch: u64,
    numbers: Numbers,
    seen: BTreeMap<(u8, u32, u64), Seen>,
    /// Kept by a rule, where the draw says otherwise or the first said something else.
    kept: Recent<TraceId, Kept, RandomState>,
    books: AssembleBooks,
    #[serde(skip, default = "no_config")]
    config: AssembleStageConfig,
}

#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    next: u64,
    /// Records counted when it was last heard of.
    heard: u64,
}

impl AssembleStage {
    /// One that has read nothing.
    pub fn begin(epoch: Epoch, config: AssembleStageConfig) -> Self {
        AssembleStage {
            epoch: epoch.0,
            numbers: Numbers::new(config.partitions),
            seen: BTreeMap::new(),
            kept: Recent::new(KEPT_MAX),
            books: AssembleBooks::default(),
            config,
        }
    }

    /// Takes the next record in.
    pub fn apply(&mut self, record: Record<'_>, out: &mut dyn Outlet) {
        self.books.records += 1;
        let batch = match v1::decode_pieces(record.bytes) {
            Ok(batch) => batch,
            Err(why) => {
                self.books.poison += 1;
                return out.dead(why.to_string());
            }
        };
        let new = self.take(&batch.from, batch.first, batch.pieces.len());
        for piece in batch.pieces.into_iter().skip(new) {
            self.books.received += 1;
            self.piece(piece, out);
        }
    }

    /// How many of a record's pieces were taken before; those behind them are new.
    fn take(&mut self, from: &Origin, first: u64, pieces: usize) -> usize {
        let key = (saved::stage_byte(from.stage), from.partition, from.epoch.0);
        if !self.seen.contains_key(&key) {
            self.make_room();
        }
        let end = first.wrapping_add(pieces as u64);
        let seen = self.seen.entry(key).or_insert(Seen { next: first, heard: 0 });
        seen.heard = self.books.records;
        let before = seen.next.saturating_sub(first).min(pieces as u64);
        self.books.repeated += before;
        self.books.missed += first.saturating_sub(seen.next);
        seen.next = seen.next.max(end);
        before as usize
    }

    fn make_room(&mut self) {
        if self.seen.len() >= ORIGINS_MAX
            && let Some(key) = self.seen.iter().min_by_key(|(_, seen)| seen.heard).map(|(key, _)| *key)
        {
            self.seen.remove(&key);
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut dyn Outlet) {
        let rules = &self.config.rules;
        let kept = match piece.part {
            Part::First => rules.look(&piece),
            Part::Later => self.kept.peek(&piece.trace).copied().or_else(|| rules.draw(piece.trace)),
        };
        let Some(kept) = kept else {
            self.books.left_out += 1;
            return;
        };
        if piece.part == Part::First && rules.draw(piece.trace) != Some(kept) {
            self.kept.insert(piece.trace, kept);
        }
        self.books.kept += 1;
        self.books.spans += piece.spans.len() as u64;
        self.numbers.write(Piece { sampled: rules.say(kept), ..piece }, out);
    }

    /// The whole of it.
    pub fn save(&mut self) -> Result<Vec<u8>, Unreadable> {
        saved::write(Stage::Assemble, saved::fingerprint(&self.config), self)
            .map_err(|error| Unreadable::Damaged(error.to_string()))
    }

    /// The same again; under another configuration (or of another release) it begins `epoch`.
    pub fn restore(bytes: &[u8], config: AssembleStageConfig, epoch: Epoch) -> Result<Self, Unreadable> {
        let saved::Read { state, fingerprint } = saved::read::<AssembleStage>(Stage::Assemble, bytes)?;
        let mut stage = state;
        if fingerprint != saved::fingerprint(&config) {
            (stage.epoch, stage.numbers) = (epoch.0, Numbers::new(config.partitions));
        }
        stage.kept.set_max(KEPT_MAX);
        stage.config = config;
        Ok(stage)
    }

    /// Under which its pieces are numbered.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    /// What became of pieces.
    pub fn books(&self) -> &AssembleBooks {
        &self.books
    }
}

/// A stage that was read back is given one before it is used.
fn no_config() -> AssembleStageConfig {
    AssembleStageConfig { partitions: 1, rules: Rules::default() }
}
