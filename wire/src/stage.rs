//! Interface of a stage: a state machine over one partition of a log.
//!
//! *In*: the records of the partition, in order. *Out*: numbered [`TraceFragment`]s and dead
//! letters; and a snapshot of the whole state.
//!
//! *Invariant*: the same state and the same records give the same fragments with the same numbers,
//! and the same state. A stage does no I/O, reads no clock and draws no random number.
//!
//! The crate `aggregator` implements the stages, and the crate `bus` runs any [`Stage`] on Kafka.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::fragment::{Incarnation, StageId, TraceFragment};

/// Log time of a record: ms since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogTime(pub u64);

/// A record of the input partition.
#[derive(Clone, Copy, Debug)]
pub struct InputRecord<'a> {
    /// Log time, or none if the log has no times.
    pub at: Option<LogTime>,
    /// Value of the record.
    pub bytes: &'a [u8],
}

/// A state machine over one partition.
pub trait Stage: Sized {
    /// Id of the stage.
    const ID: StageId;
    /// Configuration of the stage.
    type Config: Clone;
    /// Reason why a state cannot be saved or restored.
    type Error: Display;

    /// Creates a stage that has read nothing. The caller draws the incarnation, and never uses one
    /// twice.
    fn new(incarnation: Incarnation, config: Self::Config) -> Self;
    /// Restores a snapshot. Under another configuration, or of another release, the stage takes the
    /// new `incarnation`.
    fn restore(bytes: &[u8], config: Self::Config, incarnation: Incarnation) -> Result<Self, Self::Error>;
    /// Applies the next record.
    fn apply(&mut self, record: InputRecord<'_>, out: &mut dyn StageOutput);
    /// Returns a snapshot.
    fn save(&mut self) -> Result<Vec<u8>, Self::Error>;
    /// Returns the incarnation under which fragments are numbered.
    fn incarnation(&self) -> Incarnation;
    /// Returns the number of inputs that wait for further records or for a timeout. While there are
    /// some and the partition is silent, the stage needs ticks.
    fn pending(&self) -> u64;
    /// Returns how often a full table made the stage give something up, by kind of table, since the
    /// state was created.
    fn overflows(&self) -> Vec<(&'static str, u64)>;
    /// Returns a tick: a record that only advances time.
    fn tick() -> Vec<u8>;
}

/// A receiver of a stage's output.
pub trait StageOutput {
    /// Receives a fragment with its number in this partition of the output.
    fn fragment(&mut self, partition: u32, number: u64, fragment: TraceFragment);
    /// Receives a fragment of the side output: RPC endpoints, and fragments for the stage's own
    /// input.
    fn side_output(&mut self, partition: u32, number: u64, fragment: TraceFragment);
    /// Receives the reason why the current record is unreadable.
    fn dead_letter(&mut self, why: String);
}
