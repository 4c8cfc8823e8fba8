//! Interface between the runner of a stage and a cluster.
//!
//! *In* and *out*: the runner's calls. *Invariant*: the runner reaches a cluster, a clock and random
//! numbers only through a [`Cluster`]. So `model/` runs the same runner on a simulated cluster and
//! chooses what happens at each call.

use std::time::{Duration, Instant};

use rdkafka::message::OwnedMessage;

use super::super::KafkaError;
use super::super::settings::Group;
use super::stage_producer::StageProducer;
use super::state_ref::StateRef;
use super::state_store::{StateStore, StoredStates};

/// A cluster as one process reaches it.
pub(super) trait Cluster {
    type Member: GroupMember;
    type Output: StageProducer;

    /// Joins a consumer group.
    fn join(&self, group: &Group, topic: &str) -> Result<Self::Member, KafkaError>;
    /// Creates a producer.
    fn producer(&self) -> Result<Self::Output, KafkaError>;
    /// Reads the state that `state_ref` refers to, and lists obsolete chunks behind it. Fails if no
    /// record arrives for `timeout`: a long state may take longer.
    fn read_state(
        &self,
        store: &StateStore,
        state_ref: &StateRef,
        timeout: Duration,
    ) -> Result<StoredStates, KafkaError>;
    /// Returns the current time.
    fn now(&self) -> Instant;
    /// Sleeps.
    fn pause(&self, time: Duration);
    /// Draws a random number.
    fn random(&self) -> u64;
}

/// Result of one poll.
#[derive(Debug)]
pub(super) enum MemberEvent {
    Record(OwnedMessage),
    /// Partitions to confirm by [`GroupMember::assign`] with their start offsets.
    Assigned(Vec<i32>),
    /// Partitions to release by [`GroupMember::unassign`]; true if they are lost already.
    Revoked(Vec<i32>, bool),
    /// A reason to join again: the previous process of this instance name has not expired, or a commit has no reply.
    JoinAgain(KafkaError),
    /// Another process joined under this member's instance name, or a repeated join request of its
    /// own was answered.
    Fenced(KafkaError),
    Nothing,
}

/// Committed data of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// No commit.
    Nothing,
    /// Next offset, and the reference to its state.
    State(i64, StateRef),
    /// Next offset, committed by another kind of client.
    Foreign(i64),
}

/// Member of a consumer group. Dropping it leaves the group.
pub(super) trait GroupMember {
    /// Waits up to `timeout` for the next event.
    fn next(&self, timeout: Duration) -> Result<MemberEvent, KafkaError>;
    /// Confirms an assignment, with the offset of each partition.
    fn assign(&self, from: &[(i32, i64)]) -> Result<(), KafkaError>;
    /// Releases partitions.
    fn unassign(&self, partitions: &[i32]);
    /// Fetches the committed data of partitions.
    fn committed(&self, partitions: &[i32]) -> Result<Vec<(i32, Committed)>, KafkaError>;
    /// Fetches the first existing offset.
    fn earliest(&self, partition: i32) -> Result<i64, KafkaError>;
    /// Commits offsets with their state references; returns whether the group accepted them.
    fn commit(&self, commits: &[(i32, i64, StateRef)]) -> Result<bool, KafkaError>;
}
