//! Stage two: pieces by trace, each once, and of them those that are kept.
//!
//! *In*: records of `blkkin.spans`, of every partition of the first stage. *Out*: pieces for `blkkin.traces`, and what became
//! of everything ([`AssembleBooks`]).
//! *Invariant*: that of [`super`]; of one origin each number is taken once; received = kept + left out + nameless + moves + moved + misplaced + pending, and what was
//! received again and what never came are counted.
//!
//! A first piece passes at once, also an incomplete one: the first stage has waited for the rest. A later one is sent by
//! itself, by the decision that the first one got.
//!
//! # A trace that is shown in another
//!
//! A trace whose root answered another node is held until [`super::meet`] says where it is shown; then its pieces go, under that
//! trace's id, to where that trace is decided, and whatever comes of it later goes after them. So a request over three
//! nodes is moved twice. When nobody has said anything for [`AssembleStageConfig::await_for`], it is given out as it is, and stays
//! so: half of a trace here and half there would be two lies.
//!
//! # A trace that comes in parts
//!
//! What a daemon does for one of its operations (system calls, further operations) ends before that does, and comes as pieces of
//! their own. They are held until their root is there, since it says whether the trace is kept, and whether it is shown in another;
//! when it never comes they are given out by the draw, after the same time.
//!
//! *Limit*: pieces that were moved go with what is known of the trace by then. Where a rule keeps traces that failed, and the
//! asker's part comes after them, they are decided by the draw.

use std::hash::RandomState;

use blkkin_wire::fragment::{FragmentKind, Incarnation, Stage, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::{RemoteLink, Reparented};
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::held::Held;
use super::moving;
use super::numbers::Numbers;
use super::rules::{Kept, Rules};
use super::saved::{self, Unreadable};
use super::taken::{Known, Taken};
use super::{LogTime, Outlet, Record};
use crate::join::recent::Recent;

/// Traces remembered that a rule kept and the draw would not have: as many as may be open in the join.
const KEPT_MAX: usize = 65_536;
/// Traces remembered that are shown in another, that waited in vain, or whose root came: for what comes of them later.
const MOVED_MAX: usize = 65_536;

/// What the second stage may be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssembleStageConfig {
    /// Partitions of the output.
    pub partitions: u32,
    /// What is kept.
    pub rules: Rules,
    /// Partitions of its own input, to which goes what is moved.
    pub input: u32,
    /// How long a trace waits to hear where it is shown, in ms, by the log's time. It has ended by then and the asker's part of
    /// the request ends a network's way later, so what passes is what the agents and the stages between take: tenths of
    /// seconds, seconds where one of them was killed.
    pub await_for: u64,
}

impl AssembleStageConfig {
    /// With as many partitions everywhere, and the default of the rest.
    pub fn new(partitions: u32, rules: Rules) -> Self {
        AssembleStageConfig { partitions, rules, input: partitions, await_for: 10_000 }
    }
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
    /// Pieces whose trace id is all zero, which is none (W3C trace context): nobody shows them, their record is copied to where
    /// dead letters go.
    pub nameless: u64,
    /// Spans in those given out.
    pub spans: u64,
    /// Pieces that say where a trace is shown.
    pub moves: u64,
    /// Of these, those that came when the trace had been given out, or a second time.
    pub moves_late: u64,
    /// Pieces sent on to the trace in which they are shown.
    pub moved: u64,
    /// Traces that waited for somebody who asked, and of whom nothing was heard.
    pub unasked: u64,
    /// Pieces that had been moved too often, and were given out where they were.
    pub circles: u64,
    /// Pieces that belong to another topic: left out.
    pub misplaced: u64,
    /// Ticks.
    pub ticks: u64,
}

/// The state of one partition of spans.
#[derive(Debug, Serialize, Deserialize)]
pub struct AssembleStage {
    epoch: u64,
    numbers: Numbers,
    again: Numbers,
    taken: Taken,
    now: LogTime,
    held: Held,
    moved: Recent<TraceId, Reparented, RandomState>,
    unasked: Recent<TraceId, (), RandomState>,
    /// Roots that others waited for, or may.
    heads: Recent<TraceId, (), RandomState>,
    /// Kept by a rule, where the draw says otherwise or the first said something else.
    kept: Recent<TraceId, Kept, RandomState>,
    books: AssembleBooks,
    #[serde(skip, default = "no_config")]
    config: AssembleStageConfig,
}

impl AssembleStage {
    /// One that has read nothing.
    pub fn begin(epoch: Incarnation, config: AssembleStageConfig) -> Self {
        AssembleStage {
            epoch: epoch.0,
            numbers: Numbers::new(config.partitions),
            again: Numbers::new(config.input),
            taken: Taken::default(),
            now: LogTime::default(),
            held: Held::default(),
            moved: Recent::new(MOVED_MAX),
            unasked: Recent::new(MOVED_MAX),
            heads: Recent::new(MOVED_MAX),
            kept: Recent::new(KEPT_MAX),
            books: AssembleBooks::default(),
            config,
        }
    }

    /// Takes the next record in.
    pub fn apply(&mut self, record: Record<'_>, out: &mut dyn Outlet) {
        self.books.records += 1;
        self.advance(record.at.unwrap_or_default(), out);
        let batch = match v1::decode_fragments(record.bytes) {
            Ok(batch) => batch,
            Err(why) => {
                self.books.poison += 1;
                return out.dead(why.to_string());
            }
        };
        if batch.fragments.is_empty() {
            self.books.ticks += 1;
            return;
        }
        let Known { repeated, missed } = self.taken.take(&batch.origin, batch.first, batch.fragments.len());
        self.books.repeated += repeated as u64;
        self.books.missed += missed;
        let mut nameless = None;
        let numbers = (0..).map(|n| batch.first.wrapping_add(n));
        for (number, piece) in numbers.zip(batch.fragments).skip(repeated) {
            if !self.take(piece, out) {
                nameless.get_or_insert(number);
            }
        }
        if let Some(number) = nameless {
            out.dead(format!("the trace id of piece {number} is all zero, which is none"));
        }
    }

    /// It is so late by the log: what has waited for too long is given out.
    pub fn advance(&mut self, at: LogTime, out: &mut dyn Outlet) {
        self.now = self.now.max(at);
        while let Some(trace) = self.held.due(self.now, self.config.await_for) {
            self.books.unasked += 1;
            self.unasked.insert(trace, ());
            for piece in self.held.take(trace) {
                self.decide(piece, out);
            }
        }
    }

    /// Takes a piece in; not one of which the trace id is all zero, which is none.
    pub fn take(&mut self, piece: TraceFragment, out: &mut dyn Outlet) -> bool {
        self.books.received += 1;
        if piece.trace == TraceId(0) {
            self.books.nameless += 1;
            return false;
        }
        self.piece(piece, out);
        true
    }

    fn piece(&mut self, piece: TraceFragment, out: &mut dyn Outlet) {
        match &piece.remote_link {
            RemoteLink::Endpoint(_) => self.books.misplaced += 1,
            RemoteLink::Reparented(moved) => self.shown_in(piece.trace, moved, out),
            RemoteLink::None
            | RemoteLink::Root
            | RemoteLink::Child
            | RemoteLink::PendingParent
            | RemoteLink::Forwarded(_) => {
                self.part(piece, out);
            }
        }
    }

    /// Spans: they are decided here, or wait, or go on to another trace.
    fn part(&mut self, piece: TraceFragment, out: &mut dyn Outlet) {
        if let Some(moved) = self.moved.peek(&piece.trace).cloned() {
            return self.send_on(piece, &moved, out);
        }
        let trace = piece.trace;
        let waits = match piece.remote_link {
            RemoteLink::PendingParent => self.unasked.peek(&trace).is_none(),
            RemoteLink::Child => self.heads.peek(&trace).is_none() && self.unasked.peek(&trace).is_none(),
            RemoteLink::Root => {
                self.heads.insert(trace, ());
                // The root decides for all of them, so it comes first.
                self.decide(piece, out);
                return self.held.take(trace).into_iter().for_each(|piece| self.decide(piece, out));
            }
            _ => self.held.holds(trace),
        };
        if waits {
            return self.held.put(piece, self.now);
        }
        self.decide(piece, out);
    }

    fn shown_in(&mut self, trace: TraceId, moved: &Reparented, out: &mut dyn Outlet) {
        self.books.moves += 1;
        let late = self.unasked.peek(&trace).is_some() || self.moved.peek(&trace).is_some();
        if late || trace == moved.trace {
            self.books.moves_late += 1;
            return;
        }
        self.moved.insert(trace, moved.clone());
        for piece in self.held.take(trace) {
            self.send_on(piece, moved, out);
        }
    }

    fn send_on(&mut self, piece: TraceFragment, moved: &Reparented, out: &mut dyn Outlet) {
        match moving::shown(&piece, moved) {
            Some(shown) => {
                self.books.moved += 1;
                self.again.write_aside(shown, out);
            }
            None => {
                self.books.circles += 1;
                self.decide(piece, out);
            }
        }
    }

    fn decide(&mut self, piece: TraceFragment, out: &mut dyn Outlet) {
        let rules = &self.config.rules;
        let kept = match piece.kind {
            FragmentKind::First => rules.look(&piece),
            FragmentKind::Late => self.kept.peek(&piece.trace).copied().or_else(|| rules.later(&piece)),
        };
        let Some(kept) = kept else {
            self.books.left_out += 1;
            return;
        };
        if piece.kind == FragmentKind::First && rules.draw(piece.trace) != Some(kept) {
            self.kept.insert(piece.trace, kept);
        }
        self.books.kept += 1;
        self.books.spans += piece.spans.len() as u64;
        let (sampled, across) = (rules.say(kept), RemoteLink::None);
        self.numbers.write(
            TraceFragment { sampled, sampled_by_application: false, remote_link: across, ..piece },
            out,
        );
    }

    /// Pieces that wait. While there are some, and the partition is silent, it needs ticks.
    pub fn pending(&self) -> u64 {
        self.held.pieces()
    }

    /// The whole of it.
    pub fn save(&mut self) -> Result<Vec<u8>, Unreadable> {
        saved::write(Stage::Assemble, saved::fingerprint(&self.config), self)
            .map_err(|error| Unreadable::Damaged(error.to_string()))
    }

    /// The same again; under another configuration (or of another release) it begins `epoch`.
    pub fn restore(
        bytes: &[u8],
        config: AssembleStageConfig,
        epoch: Incarnation,
    ) -> Result<Self, Unreadable> {
        let saved::Read { state, fingerprint } = saved::read::<AssembleStage>(Stage::Assemble, bytes)?;
        let mut stage = state;
        if fingerprint != saved::fingerprint(&config) {
            stage.epoch = epoch.0;
            (stage.numbers, stage.again) = (Numbers::new(config.partitions), Numbers::new(config.input));
        }
        stage.moved.set_max(MOVED_MAX);
        stage.unasked.set_max(MOVED_MAX);
        stage.heads.set_max(MOVED_MAX);
        stage.kept.set_max(KEPT_MAX);
        stage.config = config;
        Ok(stage)
    }

    /// Under which its pieces are numbered.
    pub fn epoch(&self) -> Incarnation {
        Incarnation(self.epoch)
    }

    /// What became of pieces.
    pub fn books(&self) -> &AssembleBooks {
        &self.books
    }
}

/// A stage that was read back is given one before it is used.
fn no_config() -> AssembleStageConfig {
    AssembleStageConfig::new(1, Rules::default())
}
