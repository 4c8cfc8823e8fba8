//! Spans on their way between the aggregator's stages and to the exporters: by trace, numbered by who wrote them.
//!
//! *In*: spans that a stage has made. *Out*: the same to whoever reads the topic, each piece once.
//!
//! *Invariant*: piece `i` of a batch has the number `first + i` of its [`Origin`] and its output partition, for ever. A stage that
//! makes a piece again, after a restart, makes it of the same events, and gives it the same number and the same bytes: so a
//! reader drops what it has seen by the number alone, and a gap between two numbers is a loss that can be counted.
//!
//! *Rejected*: a hash of the content in place of the number (says nothing of what is missing, and two equal pieces may both
//! be meant), the record's offset (another after each replay).

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::TraceId;
use crate::meeting::Across;
use crate::span::Span;

/// A stage of the aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Makes spans of the events of one join domain; writes them by trace.
    Join,
    /// Puts a trace's spans together; writes those that are kept.
    Assemble,
    /// Brings the two ends of requests between nodes together; writes by the trace of who answered.
    Meet,
}

/// When a stage's state of one partition began: random. Numbers count anew with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// Which stage wrote it, out of which partition of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The stage.
    pub stage: Stage,
    /// The partition of the topic that it reads.
    pub partition: u32,
    /// Since when it counts.
    pub epoch: Epoch,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Join => "join",
            Stage::Assemble => "assemble",
            Stage::Meet => "meet",
        };
        write!(f, "{stage}/{}/{:016x}", self.partition, self.epoch.0)
    }
}

/// Whether this is all that was given out of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Part {
    /// It is, or it is the first.
    #[default]
    First,
    /// A trace of this id had been closed and given out before this came.
    Later,
}

/// By which rule a trace was kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sampled {
    /// The rule, in a person's words.
    pub rule: Cow<'static, str>,
    /// Of how many traces under this rule one is kept: each that is seen stands for so many.
    pub one_in: u32,
}

/// Some or all spans of one trace, from one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The trace.
    pub trace: TraceId,
    /// Its spans. One may say another trace of itself: then that is what it is shown in.
    pub spans: Vec<Span>,
    /// Whether others of the trace were given out before.
    pub part: Part,
    /// The root had ended and nothing was in flight.
    pub complete: bool,
    /// Why it was kept, where a rule decided; none where all are kept.
    pub sampled: Option<Sampled>,
    /// The application in whose trace it is has sampled that trace, as its thread said (trace flags of W3C trace context). Said
    /// between the stages: of what is kept, `sampled` says why.
    pub sampled_by_program: bool,
    /// What it has to do with other nodes.
    pub across: Across,
}

impl Piece {
    /// One without spans, which says what the trace has to do with other nodes.
    pub fn across(trace: TraceId, across: Across) -> Piece {
        let (part, complete, sampled) = (Part::First, false, None);
        Piece { trace, spans: Vec::new(), part, complete, sampled, sampled_by_program: false, across }
    }
}

/// A record of `blkkin.spans`, `blkkin.traces` or `blkkin.links`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceBatch {
    /// Who wrote it.
    pub from: Origin,
    /// The number of the first piece, of this origin and output partition. Sums wrap at 64 bits.
    pub first: u64,
    /// The pieces, in the order of their numbers.
    pub pieces: Vec<Piece>,
}

impl PieceBatch {
    /// A record that says nothing but that the log goes on, as [`EventBatch::tick`](crate::batch::EventBatch::tick) does for
    /// events: no pieces, of nobody.
    pub fn tick() -> PieceBatch {
        let from = Origin { stage: Stage::Meet, partition: u32::MAX, epoch: Epoch(0) };
        PieceBatch { from, first: 0, pieces: Vec::new() }
    }
}
