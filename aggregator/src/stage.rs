//! The aggregator's stages, each partition of its input a state machine: state × record → state × outputs.
//!
//! ```text
//! blkkin.events → JoinStage → pieces by trace → blkkin.spans → AssembleStage → pieces that are kept → blkkin.traces
//! ```
//!
//! *In*: the records of one partition, in its order, each with the time that the log gave it. *Out*: numbered [`Piece`]s and
//! dead letters; the whole state as bytes, and back.
//! *Invariant*: the same state and the same records give the same pieces with the same numbers, and the same state. Nothing
//! here reads a clock or draws a number: time is the events' own, and for who has fallen silent that of the log ([`LogTime`]).
//!
//! # Why the state is kept, and not only an offset
//!
//! The first idea is to commit the lowest offset that an open trace stands on, and to read again from there. Two things
//! become untrue:
//!
//! - *A trace that was given out becomes another.* B begins at offset 2 and stays open until 10; A lies at 1 to 3 and was given
//!   out at 3. Who begins at 2 sees the second half of A only, and gives out a different A. Zipkin shows both.
//! - *Names are forgotten.* The name of a task, a file, a device is said once, maybe hours ago. Who begins at 2 gives the same
//!   trace other tags. Zipkin shows both.
//!
//! So the state itself is saved, as it was between two records, together with the offset of the second. Whoever goes on from
//! there is the same machine.
//!
//! # Why pieces are numbered
//!
//! What was written behind the last saved state is written again after a crash, and for some seconds a member that was
//! declared dead may write beside its heir. Both write what the state machine says. So each piece has the number that it is
//! of (stage, input partition, epoch) in its output partition: counters are part of the state. Whoever reads takes each
//! number once. How pieces are cut into records follows the clock (whoever waits, waits for milliseconds) and is no part of
//! it. A reader that meets number 7 after 5 knows that one is lost.
//!
//! An *epoch* begins where a state begins from nothing, or where the configuration changed: other rules would give
//! other pieces the numbers of those that somebody has read already. What a member that was killed had written behind its last
//! saved state then comes a second time, as new; after an orderly end nothing is behind it.
//!
//! # Who has fallen silent
//!
//! A trace is closed by the watermark of its own source. A source that sends nothing has none, and its open traces would
//! stay open for ever. It is finished when the partition's log has held nothing of it for
//! [`idle_after`](join::JoinStageConfig::idle_after): by the times that the log gave to its records, the greatest so far. So a
//! replay, today or next week, closes at the same record. Where the whole partition is silent there is no record, so
//! whoever owns it appends a *tick* ([`EventBatch::tick`](blkkin_wire::batch::EventBatch::tick)): the rule stays a function of
//! the log.
//!
//! *Rejected*: the owner's clock (another trace after each restart); the watermark of other nodes (their clocks are their
//! own).
//!
//! # Two nodes, one request
//!
//! ```text
//! JoinStage → halves by connection → blkkin.links → MeetStage → "this trace is shown in that one" → blkkin.spans
//!                                                      AssembleStage holds the one, and sends it on → blkkin.spans
//! ```
//!
//! The node that answers a request does not know in whose trace it works, so its trace has a provisional id, and
//! [`assemble`] holds it until it is known where it is shown, or its time is up, by the log's time. How two ends find each
//! other is [`meet`]'s matter. What is moved goes to the partition of the trace in which it is shown: that one may be
//! provisional itself.
//!
//! Where both ends are of one node, and one process sees all of it, [`home`] has both stages do the same in memory.

#[cfg(test)]
mod across_tests;
pub mod assemble;
mod held;
pub mod home;
mod idle;
pub mod join;
pub mod meet;
mod moving;
mod numbers;
mod pieces;
pub mod rules;
pub mod saved;
mod taken;
#[cfg(test)]
mod tests;

use blkkin_wire::fragment::TraceFragment;
use serde::{Deserialize, Serialize};

use crate::trace::Trace;
use meet::clocks::Apart;

/// What the log says of when a record was put into it: ms since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogTime(pub u64);

/// A record of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// When it was put there; none where the log does not say.
    pub at: Option<LogTime>,
    /// What is in it.
    pub bytes: &'a [u8],
}

/// Takes what a stage gives out.
pub trait Outlet {
    /// A piece, which has this number in this partition of the output.
    fn piece(&mut self, partition: u32, number: u64, piece: TraceFragment);
    /// A piece for the stage's second output: ends of requests, and what goes once more through the stage.
    fn aside(&mut self, partition: u32, number: u64, piece: TraceFragment);
    /// The record in hand cannot be read, for this reason.
    fn dead(&mut self, why: String);
    /// A trace that pieces are made of: for who watches. Nothing that is given out may depend on it.
    fn seen(&mut self, _trace: &Trace) {}
    /// What is known of two nodes' clocks: likewise.
    fn apart(&mut self, _clocks: &Apart) {}
}
