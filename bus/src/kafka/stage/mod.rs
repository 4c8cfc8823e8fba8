//! Runs a [`Stage`] over each partition of a topic, as a consumer group
//! whose members may fail at any moment.
//!
//! ```text
//! input ─ Member ─ Stage (one a partition) ─ RecordBatcher ─ numbered fragments ─► output
//!            │          └─ state, in chunks ─► blkkin.state
//!            └─ commit: offset + reference to the state at that offset
//! ```
//!
//! *In*: records of the assigned partitions. *Out*: the stages' output, and their states.
//! *Invariant*: a commit is an offset *and* the stage's state at that offset, and all output
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
//! reads from there to the end, and empties them after its first commit. Not before: a member that was
//! evicted while it read would empty the chunks of its successor.
//!
//! *Rejected*: transactions (two more round trips a commit, and readers that wait for them; the
//! numbers give the same guarantee); a database or local disk (a partition may move to any member);
//! Kafka Streams' changelog (a record for each change: the state changes with every event).

mod cluster;
mod kafka_cluster;
mod member;
#[cfg(test)]
mod model;
mod output;
mod overflows;
mod owned_partition;
mod record_batcher;
mod runner;
mod stage_producer;
mod state_ref;
mod state_store;

use blkkin_wire::fragment::StageId;
use blkkin_wire::stage::Stage;

pub use overflows::Overflows;
pub use runner::{RunnerConfig, StageOutcome};

use super::{KafkaError, Progress, STATE, Settings};
use kafka_cluster::Kafka;
use runner::Runner;

/// Running stage.
pub struct StageRunner<S: Stage>(Runner<S, Kafka>);

impl<S: Stage> StageRunner<S> {
    /// Joins the group. The topics exist.
    pub fn join(
        settings: &Settings,
        config: RunnerConfig,
        stage_config: S::Config,
    ) -> Result<Self, KafkaError> {
        let state_partitions = i32::try_from(settings.partitions(STATE)?).unwrap_or(i32::MAX);
        let cluster = Kafka(settings.clone());
        Ok(StageRunner(Runner::join(cluster, config, stage_config, state_partitions)?))
    }

    /// Writes the progress to `progress` from now on.
    pub fn with_progress(mut self, progress: &Progress) -> Self {
        self.0.set_progress(progress);
        self
    }

    /// Writes what full tables made the stages give up to `overflows` from now on.
    pub fn with_overflows(mut self, overflows: &Overflows) -> Self {
        self.0.set_overflows(overflows);
        self
    }

    /// Runs until `stop` returns true; `log` receives messages for the log.
    pub fn run(self, stop: impl Fn() -> bool, log: impl Fn(String)) -> Result<StageOutcome<S>, KafkaError> {
        self.0.run(stop, log)
    }
}

fn stage_name(stage: StageId) -> &'static str {
    match stage {
        StageId::Join => "join",
        StageId::Assemble => "assemble",
        StageId::Link => "link",
    }
}
