//! Stages of the aggregator. Each partition of a stage's input is a state machine: state × record →
//! state × outputs.
//!
//! ```text
//! blkkin.events → JoinStage → fragments by trace → blkkin.spans → AssembleStage → sampled fragments → blkkin.traces
//!                     │                                 ▲ ▲             │
//!                     │ RPC endpoints by connection     │ └─────────────┘ reparented fragments
//!                     └──────→ blkkin.links → LinkStage ┘ "this trace is a child of that one"
//! ```
//!
//! *In*: the records of one partition, in order, each with its log time. *Out*: numbered
//! [`TraceFragment`]s and dead letters; and a snapshot of the whole state. [`Stage`] is their
//! interface.
//!
//! *Invariant*: the same state and the same records give the same fragments with the same numbers,
//! and the same state. No stage reads a clock or draws a random number. Time is that of the events
//! and, for timeouts of inactive sources, that of the log ([`LogTime`]).
//!
//! [`Stage`]: blkkin_wire::stage::Stage
//! [`TraceFragment`]: blkkin_wire::fragment::TraceFragment
//! [`LogTime`]: blkkin_wire::stage::LogTime
//!
//! # Snapshots, not only offsets
//!
//! The obvious design commits the lowest offset of an open trace, and reads again from there. It
//! breaks in two ways:
//!
//! - *An emitted trace changes.* Trace B begins at offset 2 and stays open until 10. Trace A has
//!   offsets 1 to 3 and was emitted at 3. A member that starts at 2 sees the second half of A only,
//!   and emits a different A. Zipkin shows both.
//! - *Names are lost.* The name of a task, file or device is reported once, maybe hours ago. A
//!   member that starts at 2 emits the same trace with other tags. Zipkin shows both.
//!
//! So a stage saves its state between two records, together with the offset of the second. A member
//! that continues from there is the same machine.
//!
//! # Numbered fragments
//!
//! Output after the last snapshot is written again after a crash. For some seconds, a member that
//! was declared dead may also write next to its successor. Both write the output of the same state
//! machine. So each fragment has a number within (stage, input partition, incarnation) and output
//! partition; the counters are part of the state. A reader accepts each number once. The cut of
//! fragments into Kafka records follows the clock and is not part of the state. A reader that finds
//! number 7 after 5 knows that one is lost.
//!
//! A new *incarnation* begins with an empty state or with a changed configuration. Other rules
//! would give other fragments the numbers that a reader has accepted already. Output that a killed
//! member wrote after its last snapshot then arrives a second time, as new. After an orderly
//! shutdown there is none.
//!
//! # Inactive sources
//!
//! A trace is closed by the watermark of its own source. A source that sends nothing has no
//! watermark, and its open traces would stay open forever. They are closed when the partition's log
//! has had no record of the source for [`idle_after`](join::JoinStageConfig::idle_after), by the
//! greatest log time so far. So a replay, today or next week, closes them at the same record. A
//! silent partition has no records, so its owner appends a *tick*
//! ([`EventBatch::tick`](blkkin_wire::batch::EventBatch::tick)): the rule stays a function of the
//! log.
//!
//! *Rejected*: the owner's clock. Each restart would give other traces. *Rejected*: the watermark
//! of other nodes, whose clocks differ.
//!
//! # Two nodes, one operation
//!
//! The node that serves a request does not know its client's trace, so its trace has a provisional
//! id. [`assemble`] holds it until [`link`] has found the client's endpoint, or until a timeout by
//! the log's time. A reparented fragment goes to the partition of the client's trace, which may be
//! provisional itself.
//!
//! If both endpoints are on one node and one process sees both, [`local_link`] runs both stages in
//! memory.

pub mod join;

pub mod link;

pub mod assemble;

pub mod local_link;

mod fragments;
mod sequence;

mod agent_liveness;
mod dedup;
mod observer;
mod pending_traces;
mod reparent;
pub mod sampling;
mod source_timeout;

pub mod metrics;
pub mod snapshot;

#[cfg(test)]
mod disk_fragment_tests;
#[cfg(test)]
mod golden_states;
#[cfg(test)]
mod remote_link_tests;
#[cfg(test)]
mod tests;

pub use observer::Observer;
pub use source_timeout::NodeClaim;
