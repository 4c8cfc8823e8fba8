//! A state machine over each partition of a topic, by a group whose members may die at any moment.
//!
//! ```text
//! input ─ Member ─ Machine (one a partition) ─ Outbox ─ records of numbered pieces ─► output
//!            │          └─ state, in chunks ─► blkkin.state
//!            └─ commit: offset + which chunks are the state at that offset
//! ```
//!
//! *In*: records of the partitions that the group gives this member. *Out*: what the machines say, and their states.
//! *Invariant*: what is committed is an offset *and* the state of the machine there, and everything that the machine had said
//! until then is acknowledged by all replicas that are in sync. So a crash repeats what was said, by the same numbers, and
//! loses nothing. Nothing is written under an epoch that is not committed.
//!
//! # A state becomes *the* state by the offset's commit
//!
//! A state is written to a place of its own, (writer, count), which nobody else writes to: a writer is drawn anew with each
//! partition that comes to a member. Then the offset is committed, and its metadata (`note.rs`) names place, length and checksum.
//! The group's coordinator refuses the commit of a member that it has declared dead, so such a member cannot change
//! what counts; and what it has written elsewhere nobody reads. After the commit the places before are emptied.
//!
//! - *Not one place for each partition*: a member that is slow, not dead, writes its chunks among those of its heir.
//! - *Not two, by turns*: a commit whose answer never came may have been made. Then either place may be the one.
//! - *Not the offset in the state*: two states that are both whole would both be the one. The commit is the one thing that
//!   the cluster itself keeps consistent.
//!
//! Chunks of a member that was killed before its commit lie behind those that count: whoever takes the partition over reads
//! from there to the end, and empties them.
//!
//! *Rejected*: transactions (two more round trips a commit, and readers that wait for them; the numbers give the same);
//! a database or a disk of the member's own (a partition may go anywhere); Kafka Streams' change log (a record for each change:
//! the state changes with every event).

mod member;
mod note;
mod outbox;
mod output;
mod owned;
mod runner;
mod state;

use blkkin_wire::piece::{Epoch, Stage};

pub use outbox::Outbox;
pub use runner::{Ended, StageConfig, StageRunner};

/// What lies in a partition.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// ms since the Unix epoch, as the log has it.
    pub at_ms: Option<u64>,
    /// What is in it.
    pub bytes: &'a [u8],
}

/// A deterministic machine: the same entries give the same pieces, with the same numbers.
pub trait Machine {
    /// Takes the next entry in.
    fn apply(&mut self, entry: Entry<'_>, out: &mut Outbox);
    /// The whole state, or why there is none.
    fn save(&mut self) -> Result<Vec<u8>, String>;
    /// Under which its pieces are numbered.
    fn epoch(&self) -> Epoch;
    /// Whether it waits for a time that comes by entries only.
    fn needs_ticks(&self) -> bool;
}

/// Makes machines.
pub trait Machines {
    /// What it makes.
    type Machine: Machine;
    /// Which stage they are.
    fn stage(&self) -> Stage;
    /// One that has seen nothing.
    fn begin(&self, epoch: Epoch) -> Self::Machine;
    /// The one that was saved; of another configuration it begins `epoch`. Or why these bytes are none.
    fn restore(&self, bytes: &[u8], epoch: Epoch) -> Result<Self::Machine, String>;
    /// An entry that says only that time goes on, if they can wait.
    fn tick(&self) -> Option<Vec<u8>>;
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Join => "join",
        Stage::Assemble => "assemble",
        Stage::Meet => "meet",
    }
}
