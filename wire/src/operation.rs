//! What a daemon did, in its own words: the part of a request that it names itself.
//!
//! *In*: what instrumentation in a program says of its operations (`ust-bridge` reads it). *Out*: one event an operation, said when it
//! has ended, or when it is known that its end will not come. *Invariant*: its ids are the program's own, random and not minted
//! by a tracer; the trace that it names is the one that everything below it belongs to. Which system call was made for which
//! operation is not said here: the call's own event names what is above it.
//!
//! *Rejected*: an event for each begin, end and annotation. Who reads the topic would have to put them together again, and
//! hold what lacks an end; where they are read, all of them are at hand.

use serde::{Deserialize, Serialize};

use crate::clock::{DurationNs, MonotonicNs};
use crate::ids::{Pid, SpanId, Tid, TraceId};
use crate::span::SpanKind;

/// All: no sampling at the source.
pub const WHOLE: u32 = 1_000_000;

/// A daemon's operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationEvent {
    /// Its span.
    pub span: SpanId,
    /// The span that it is part of; none of one that begins a trace.
    pub parent: Option<SpanId>,
    /// That span is of another process or node: what was asked for there goes on here.
    pub continued: bool,
    /// Its trace.
    pub trace: TraceId,
    /// Whether it answers somebody, asks somebody, or neither.
    pub kind: SpanKind,
    /// What it is: `nbd read`.
    pub name: Box<str>,
    /// Who does it: `blkkin-nbd`.
    pub service: Box<str>,
    /// Begin.
    pub begin: MonotonicNs,
    /// End, or when it was last heard of.
    pub end: MonotonicNs,
    /// The process.
    pub pid: Pid,
    /// The thread in which it began.
    pub tid: Tid,
    /// What became of it.
    pub outcome: Outcome,
    /// Which part of the operations that begin a trace is kept at the source, in millionths: [`WHOLE`], or those that are
    /// seen stand for others.
    pub kept: u32,
    /// What was said of it, in the order in which it was said.
    pub notes: Vec<Note>,
}

impl OperationEvent {
    /// One from `begin` to `end` that ended well and is below nothing, of nobody: whoever makes one up (a test, a load) says what else it
    /// is. What is read of a daemon names every field.
    pub fn bare(span: SpanId, trace: TraceId, begin: MonotonicNs, end: MonotonicNs) -> Self {
        Self {
            span,
            parent: None,
            continued: false,
            trace,
            kind: SpanKind::Local,
            name: "".into(),
            service: "".into(),
            begin,
            end,
            pid: Pid(1),
            tid: Tid(1),
            outcome: Outcome::Done,
            kept: WHOLE,
            notes: Vec::new(),
        }
    }
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It ended well.
    Done,
    /// It ended with this errno, which is positive.
    Failed(u32),
    /// Its end never came: the process was killed, or the event was lost.
    Unfinished,
}

/// Something that was said of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at: MonotonicNs,
    /// Its name.
    pub key: Box<str>,
    /// What it says.
    pub value: NoteValue,
}

/// What a note says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoteValue {
    /// Only that it was the moment.
    Moment,
    /// Words.
    Text(Box<str>),
    /// A number.
    Number(i64),
}

impl OperationEvent {
    /// How long it took.
    pub fn took(&self) -> DurationNs {
        self.end.since(self.begin)
    }
}
