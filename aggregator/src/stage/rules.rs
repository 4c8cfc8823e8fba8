//! Which traces are kept.
//!
//! *In*: the first piece of a trace, or a later one. *Out*: whether it is kept, and by which rule.
//! *Invariant*: a trace is kept or not, as a whole. The draw is by the trace's id, so everybody draws alike; what a rule that
//! looks at the trace has decided is remembered by [`super::assemble`].
//!
//! A trace that failed or was slow, or that an application samples of which it is a part, is kept whatever the draw says, and says
//! so: it stands for itself alone. One that was drawn stands for as many as were drawn from. An application's trace that it does
//! *not* sample is drawn as ours are: where it is drawn, the calls are there and the spans above them are not.

use std::borrow::Cow;

use blkkin_wire::clock::DurationNs;
use blkkin_wire::fragment::{Sampled, TraceFragment};
use blkkin_wire::ids::TraceId;
use serde::{Deserialize, Serialize};

/// Rules. By default all is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// One trace in so many is kept; 1 keeps all, and 0 is 1.
    pub one_in: u32,
    /// Those in which anything failed.
    pub errors: bool,
    /// Those whose root took longer.
    pub slower_than: Option<DurationNs>,
    /// Those that the application samples in whose trace they are.
    pub by_program: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { one_in: 1, errors: false, slower_than: None, by_program: false }
    }
}

/// Why a trace is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// Everything is.
    All,
    /// It was drawn.
    Drawn,
    /// Something in it failed.
    Failed,
    /// Its root took long.
    Slow,
    /// The application samples it.
    ByProgram,
}

impl Rules {
    /// By the id alone.
    pub fn draw(&self, trace: TraceId) -> Option<Kept> {
        match self.one_in {
            0 | 1 => Some(Kept::All),
            n => (trace.sampling_hash() < u64::MAX / u64::from(n)).then_some(Kept::Drawn),
        }
    }

    /// By what is in the first piece.
    pub fn look(&self, piece: &TraceFragment) -> Option<Kept> {
        let failed = || piece.spans.iter().any(|span| span.error.is_some());
        let took = || piece.spans.first().map(|root| root.duration);
        match self.draw(piece.trace) {
            Some(Kept::All) => Some(Kept::All),
            _ if self.errors && failed() => Some(Kept::Failed),
            _ if self.slower_than.is_some_and(|than| took() > Some(than)) => Some(Kept::Slow),
            _ => self.later(piece),
        }
    }

    /// By what is known of a trace whose first piece is another.
    pub fn later(&self, piece: &TraceFragment) -> Option<Kept> {
        match self.draw(piece.trace) {
            Some(Kept::All) => Some(Kept::All),
            _ if self.by_program && piece.sampled_by_application => Some(Kept::ByProgram),
            drawn => drawn,
        }
    }

    /// As it stands in the trace.
    pub fn say(&self, kept: Kept) -> Option<Sampled> {
        let (rule, one_in) = match (kept, self.slower_than) {
            (Kept::All, _) => return None,
            (Kept::Drawn, _) => (Cow::Borrowed("drawn by its id"), self.one_in),
            (Kept::Failed, _) => (Cow::Borrowed("failed"), 1),
            (Kept::Slow, Some(DurationNs(ns))) => (Cow::Owned(format!("slower than {} µs", ns / 1_000)), 1),
            (Kept::Slow, None) => (Cow::Borrowed("slow"), 1),
            (Kept::ByProgram, _) => (Cow::Borrowed("sampled by the program"), 1),
        };
        Some(Sampled { rule, one_in })
    }
}
