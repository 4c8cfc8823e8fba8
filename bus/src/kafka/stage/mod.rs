//! Runs a stage processor over each partition of a topic, as a consumer group whose members may
//! fail at any moment.
//!
//! ```text
//! input ─ Member ─ StageProcessor (one a partition) ─ RecordBatcher ─ numbered fragments ─► output
//!            │          └─ state, in chunks ─► blkkin.state
//!            └─ commit: offset + reference to the state at that offset
//! ```
//!
//! *In*: records of the assigned partitions. *Out*: the processors' output, and their states.
//! *Invariant*: a commit is an offset *and* the processor's state at that offset, and all output
//! before it is acknowledged by all in-sync replicas. A crash therefore repeats output under the
//! same numbers and loses none. No output has an incarnation that is not committed.
//!
//! # The commit selects the state
//!
//! A state is written to its own slot, (writer, count), that no other member writes to: each
//! assignment of a partition draws a new writer. Then the offset is committed, and its metadata
//! (`state_ref.rs`) names the slot, length and checksum. The group coordinator rejects commits of
//! evicted members, so such a member cannot change the valid state, and no reader looks at its
//! slots. After the commit the older slots are emptied.
//!
//! - *Not one slot for each partition*: a slow, evicted member would overwrite chunks of its
//!   successor.
//! - *Not two alternating slots*: a commit without a reply may have succeeded, so either slot may
//!   be valid.
//! - *Not the offset inside the state*: two complete states would both look valid. The commit is
//!   the one thing that the cluster keeps consistent.
//!
//! Chunks of a member that was killed before its commit are behind the valid ones. The next owner
//! reads from there to the end, and empties them.
//!
//! *Rejected*: transactions (two more round trips a commit, and readers that wait for them; the
//! numbers give the same guarantee); a database or local disk (a partition may move to any member);
//! Kafka Streams' changelog (a record for each change: the state changes with every event).

mod member;
mod output;
mod owned_partition;
mod record_batcher;
mod runner;
mod state_ref;
mod state_store;

use blkkin_wire::fragment::{Incarnation, StageId};

pub use record_batcher::RecordBatcher;
pub use runner::{StageConfig, StageOutcome, StageRunner};

/// A record of the input partition.
#[derive(Clone, Copy, Debug)]
pub struct InputRecord<'a> {
    /// Timestamp of the record, in ms since the Unix epoch.
    pub at_ms: Option<u64>,
    /// Payload.
    pub bytes: &'a [u8],
}

/// Deterministic processor: the same records give the same fragments with the same numbers.
pub trait StageProcessor {
    /// Processes the next record.
    fn apply(&mut self, entry: InputRecord<'_>, out: &mut RecordBatcher);
    /// Serialises the whole state, or returns why it cannot.
    fn save(&mut self) -> Result<Vec<u8>, String>;
    /// Returns the incarnation under which its fragments are numbered.
    fn epoch(&self) -> Incarnation;
    /// Returns whether the processor waits for a time that only records advance.
    fn needs_ticks(&self) -> bool;
}

/// Creates processors.
pub trait StageProcessorFactory {
    /// Type of processor.
    type Processor: StageProcessor;
    /// Returns the stage that the processors run.
    fn stage(&self) -> StageId;
    /// Creates a processor with an empty state.
    fn create(&self, epoch: Incarnation) -> Self::Processor;
    /// Restores a saved processor. If it was saved under another configuration it takes `epoch` as
    /// its new incarnation. Fails if the bytes are no state.
    fn restore(&self, bytes: &[u8], epoch: Incarnation) -> Result<Self::Processor, String>;
    /// Returns a tick, a record that only advances time; none if the processors never wait.
    fn tick(&self) -> Option<Vec<u8>>;
}

fn stage_name(stage: StageId) -> &'static str {
    match stage {
        StageId::Join => "join",
        StageId::Assemble => "assemble",
        StageId::Link => "meet",
    }
}
