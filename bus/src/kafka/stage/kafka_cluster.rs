//! The cluster, clock and random numbers of a running stage.
//!
//! *In* and *out*: those of [`Cluster`]. *Invariant*: none of its calls is simulated.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::super::settings::Group;
use super::super::{KafkaError, Settings};
use super::cluster::Cluster;
use super::member::Member;
use super::output::Output;
use super::state_ref::StateRef;
use super::state_store::{StateStore, StoredStates};

/// A Kafka cluster through librdkafka, the system's clock and random numbers.
pub(super) struct Kafka(pub(super) Settings);

impl Cluster for Kafka {
    type Member = Member;
    type Output = Output;

    fn join(&self, group: &Group, topic: &str) -> Result<Member, KafkaError> {
        Member::join(&self.0, group, topic)
    }

    fn producer(&self) -> Result<Output, KafkaError> {
        Output::new(&self.0)
    }

    fn read_state(
        &self,
        store: &StateStore,
        state_ref: &StateRef,
        timeout: Duration,
    ) -> Result<StoredStates, KafkaError> {
        store.read(state_ref, &self.0, timeout)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self) -> u64 {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        // The version and variant bits are constant; where they are in one half, the other half is
        // random.
        high ^ low.rotate_left(32)
    }
}
