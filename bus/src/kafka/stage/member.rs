//! A member of a group: records, and partitions that come and go.
//!
//! Partitions come one by one (cooperative): what stays goes on meanwhile. librdkafka tells of a change and waits for our word,
//! so that a partition is given up only when its state is saved, and taken only where its state says. By the protocol of KIP-848
//! (`group.protocol=consumer`) it is the same, only that the cluster decides who gets what and when a member is missed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedMessage;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::super::settings::Group;
use super::super::{KafkaError, Settings};
use super::note::Note;

/// For an answer of the cluster.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    Record(OwnedMessage),
    /// These are ours once [`Member::take`] says where to begin.
    Offered(Vec<i32>),
    /// These are to be given back by [`Member::give`]; whether they are somebody else's already.
    Wanted(Vec<i32>, bool),
    /// The cluster has not missed the one yet who had this member's name before: it lets us in once it has.
    NotYet(KafkaError),
    /// Somebody has come under this member's name; or it was its own request, answered when it had asked again.
    Fenced(KafkaError),
    Nothing,
}

#[derive(Clone, Debug, Default)]
struct Callbacks(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    changes: Mutex<Vec<(bool, Vec<i32>)>>,
    leaving: AtomicBool,
}

impl ClientContext for Callbacks {}

impl ConsumerContext for Callbacks {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, why: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let assigned = why == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.0.leaving.load(Relaxed) {
            // Everything is saved. A refusal would only say that there is nothing to give back.
            let _ = if assigned { Ok(()) } else { unassign(consumer, list) };
            return;
        }
        let partitions = list.elements().iter().map(|element| element.partition()).collect();
        self.0.changes.lock().unwrap_or_else(PoisonError::into_inner).push((assigned, partitions));
    }
}

fn unassign(consumer: &BaseConsumer<Callbacks>, list: &TopicPartitionList) -> Result<(), Driver> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        _ => consumer.unassign(),
    }
}

/// A member.
pub(super) struct Member {
    consumer: BaseConsumer<Callbacks>,
    callbacks: Callbacks,
    topic: String,
    settings: Settings,
}

/// What the group knows of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// Nothing.
    Nothing,
    /// Where to go on, and with which state.
    State(i64, Note),
    /// Where to go on, and somebody else wrote that.
    Foreign(i64),
}

impl Member {
    pub(super) fn join(settings: &Settings, group: &Group, topic: &str) -> Result<Member, KafkaError> {
        let fail = |error| KafkaError::of(settings, "join a group of", &error);
        let callbacks = Callbacks::default();
        let mut config = settings.consumer(group);
        if !settings.cluster_assigns() {
            config.set("partition.assignment.strategy", "cooperative-sticky");
        }
        config
            .set("fetch.wait.max.ms", "100")
            // Fetched ahead, of all partitions together: a second of 500,000 events/s.
            .set("queued.max.messages.kbytes", "16384");
        let consumer: BaseConsumer<Callbacks> =
            config.create_with_context(callbacks.clone()).map_err(fail)?;
        consumer.subscribe(&[topic]).map_err(fail)?;
        Ok(Member { consumer, callbacks, topic: topic.to_owned(), settings: settings.clone() })
    }

    /// Waits at most `timeout`.
    pub(super) fn next(&self, timeout: Duration) -> Result<Event, KafkaError> {
        if let Some(event) = self.change() {
            return Ok(event);
        }
        // librdkafka serves its own events at least each second; ours is sooner.
        let polled = self.consumer.poll(timeout);
        if let Some(Ok(message)) = polled {
            return Ok(Event::Record(message.detach()));
        }
        if let Some(fatal) = KafkaError::fatal(&self.settings, self.consumer.client()) {
            return match self.consumer.client().fatal_error() {
                Some((Code::UnreleasedInstanceId, _)) => Ok(Event::NotYet(fatal)),
                Some((Code::FencedInstanceId, _)) => Ok(Event::Fenced(fatal)),
                _ => Err(fatal),
            };
        }
        let lasting =
            polled.and_then(Result::err).and_then(|error| KafkaError::lasting(&self.settings, &error));
        lasting.map_or(Ok(Event::Nothing), Err)
    }

    fn change(&self) -> Option<Event> {
        let mut changes = self.callbacks.0.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.is_empty() {
            return None;
        }
        let (assigned, partitions) = changes.remove(0);
        Some(match assigned {
            true => Event::Offered(partitions),
            false => Event::Wanted(partitions, self.consumer.assignment_lost()),
        })
    }

    /// Takes partitions, each from its offset on.
    pub(super) fn take(&self, from: &[(i32, i64)]) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in from {
            let added = list.add_partition_offset(&self.topic, *partition, Offset::Offset(*offset));
            added.map_err(|error| self.fail("read from", &error))?;
        }
        let taken = match self.consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => self.consumer.incremental_assign(&list),
            _ => self.consumer.assign(&list),
        };
        taken.map_err(|error| self.fail("take partitions of", &error))
    }

    /// Gives partitions back.
    pub(super) fn give(&self, partitions: &[i32]) {
        // Refused only where they are not ours any more.
        let _ = unassign(&self.consumer, &self.list(partitions));
    }

    /// What the group knows of partitions.
    pub(super) fn committed(&self, partitions: &[i32]) -> Result<Vec<(i32, Committed)>, KafkaError> {
        let found = self.consumer.committed_offsets(self.list(partitions), PATIENCE);
        let found = found.map_err(|error| self.fail("ask for the offsets of", &error))?;
        let mut committed = Vec::new();
        for element in found.elements() {
            // One that nobody answered for is not one that nobody has read.
            element.error().map_err(|error| self.fail("ask for the offsets of", &error))?;
            let known = match (element.offset(), Note::read(element.metadata())) {
                (Offset::Offset(at), Some(note)) => Committed::State(at, note),
                (Offset::Offset(at), None) => Committed::Foreign(at),
                _ => Committed::Nothing,
            };
            committed.push((element.partition(), known));
        }
        Ok(committed)
    }

    /// The first offset that there is.
    pub(super) fn earliest(&self, partition: i32) -> Result<i64, KafkaError> {
        let marks = self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE);
        marks.map(|(low, _)| low).map_err(|error| self.fail("ask for the offsets of", &error))
    }

    /// Commits offsets with their notes; whether the group took them.
    pub(super) fn commit(&self, commits: &[(i32, i64, Note)]) -> Result<bool, KafkaError> {
        let mut list = TopicPartitionList::new();
        for (partition, offset, note) in commits {
            let mut element = list.add_partition(&self.topic, *partition);
            element.set_offset(Offset::Offset(*offset)).map_err(|error| self.fail("commit to", &error))?;
            element.set_metadata(note.to_string());
        }
        match self.consumer.commit(&list, CommitMode::Sync) {
            Ok(()) => Ok(true),
            // Fenced, away, or in the middle of a change: nothing is committed, or it is and the answer was lost. Either is
            // sound; what comes next says which.
            Err(_) => Ok(false),
        }
    }

    fn list(&self, partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        partitions.iter().for_each(|partition| {
            list.add_partition(&self.topic, *partition);
        });
        list
    }

    fn fail(&self, verb: &str, error: &Driver) -> KafkaError {
        KafkaError::of(&self.settings, verb, error)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // From here on librdkafka's last change is answered at once: there is nobody else to do so.
        self.callbacks.0.leaving.store(true, Relaxed);
        let held =
            std::mem::take(&mut *self.callbacks.0.changes.lock().unwrap_or_else(PoisonError::into_inner));
        for (assigned, partitions) in held {
            let list = self.list(&partitions);
            // As above.
            let _ = if assigned { self.consumer.unassign() } else { unassign(&self.consumer, &list) };
        }
    }
}
