//! What librdkafka's callbacks say about a member of a group, kept for the next look.

use std::sync::{Arc, Mutex, MutexGuard};

use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaResult;
use rdkafka::{ClientContext, TopicPartitionList};

/// Shared with librdkafka.
#[derive(Clone, Debug, Default)]
pub(super) struct Membership(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    changes: Vec<Change>,
    /// Answers to commits, and whether the last was a yes.
    commits: (u64, bool),
}

/// Partitions that came or went.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Assigned(Vec<i32>),
    Revoked(Vec<i32>),
}

impl Membership {
    /// What changed since this was asked last.
    pub(super) fn changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.lock().changes)
    }

    /// How many commits were answered, and whether the last was a yes.
    pub(super) fn commits(&self) -> (u64, bool) {
        self.lock().commits
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|held| held.into_inner())
    }
}

impl ClientContext for Membership {}

impl ConsumerContext for Membership {
    fn pre_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let partitions =
            |list: &TopicPartitionList| list.elements().iter().map(|element| element.partition()).collect();
        let change = match rebalance {
            Rebalance::Assign(list) => Change::Assigned(partitions(list)),
            Rebalance::Revoke(list) => Change::Revoked(partitions(list)),
            Rebalance::Error(_) => return,
        };
        self.lock().changes.push(change);
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        let mut state = self.lock();
        state.commits = (state.commits.0 + 1, result.is_ok());
    }
}
