//! Rebalance callbacks of librdkafka.
//!
//! *In*: librdkafka's callbacks, which run inside a poll. *Out*: the changes in order. *Invariant*: a change stays recorded until the consumer takes it
//! after the poll.

use std::sync::{Arc, Mutex, MutexGuard};

use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};
use rdkafka::{ClientContext, TopicPartitionList};

/// State shared with librdkafka's callbacks.
#[derive(Clone, Debug, Default)]
pub(super) struct RebalanceListener(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    changes: Vec<Change>,
}

/// Assigned or revoked partitions.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Assigned(Vec<i32>),
    Revoked(Vec<i32>),
}

impl RebalanceListener {
    /// Takes the rebalances since the last call.
    pub(super) fn changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.lock().changes)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl ClientContext for RebalanceListener {}

impl ConsumerContext for RebalanceListener {
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
}
