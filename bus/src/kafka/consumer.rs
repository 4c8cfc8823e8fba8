//! Batches out of a topic, as one member of a group.
//!
//! *Offsets* are committed by whoever says that it has done what was to be done ([`EventConsumer::commit`]): what was
//! received and not done is received again, by the next member if need be.

use std::collections::HashMap;
use std::time::Duration;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::v1::{self, Malformed};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};
use std::sync::{Arc, Mutex};

use super::seen::{Seen, Standing};
use super::settings::Group;
use super::{EVENTS, KafkaError, Settings};

/// For an answer of the cluster.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a topic had to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A batch that was not given out before, with how many before it are missing.
    Batch(Box<EventBatch>, u64),
    /// One that was: nothing to do.
    Again,
    /// A record that is none of this schema, of so many bytes: to be counted, and kept for who wants to look.
    Refused(Malformed, Vec<u8>),
    /// Nothing came in the time given.
    Nothing,
    /// Partitions came or went: what is held of those that went is somebody else's now.
    Rebalanced {
        /// That this member has from now on and had not.
        assigned: Vec<i32>,
        /// That it had.
        revoked: Vec<i32>,
    },
}

/// What the callbacks of librdkafka leave for the next look.
#[derive(Clone, Debug, Default)]
struct Changes(Arc<Mutex<Vec<Change>>>);

#[derive(Clone, Debug)]
enum Change {
    Assigned(Vec<i32>),
    Revoked(Vec<i32>),
}

impl ClientContext for Changes {}

impl ConsumerContext for Changes {
    fn pre_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let partitions =
            |list: &TopicPartitionList| list.elements().iter().map(|element| element.partition()).collect();
        let change = match rebalance {
            Rebalance::Assign(list) => Change::Assigned(partitions(list)),
            Rebalance::Revoke(list) => Change::Revoked(partitions(list)),
            Rebalance::Error(_) => return,
        };
        self.0.lock().unwrap_or_else(|held| held.into_inner()).push(change);
    }
}

/// A member of a group that reads [`EVENTS`].
pub struct EventConsumer {
    consumer: BaseConsumer<Changes>,
    changes: Changes,
    /// Of each partition.
    seen: HashMap<i32, Seen>,
    /// Where the next record of each partition is that was not received yet.
    next: HashMap<i32, i64>,
    settings: Settings,
}

impl EventConsumer {
    /// Joins the group.
    pub fn join(settings: &Settings, group: &Group) -> Result<EventConsumer, KafkaError> {
        let fail = |error| KafkaError::of(settings, "join a group of", &error);
        let changes = Changes::default();
        let consumer: BaseConsumer<Changes> =
            settings.consumer(group).create_with_context(changes.clone()).map_err(fail)?;
        consumer.subscribe(&[EVENTS]).map_err(fail)?;
        Ok(EventConsumer {
            consumer,
            changes,
            seen: HashMap::new(),
            next: HashMap::new(),
            settings: settings.clone(),
        })
    }

    /// Waits at most `timeout` for the next record.
    pub fn next(&mut self, timeout: Duration) -> Result<Received, KafkaError> {
        let polled = self.consumer.poll(timeout).map(|polled| polled.map(|message| message.detach()));
        if let Some(rebalanced) = self.rebalanced()? {
            // A record of a partition that was just assigned may have come with it: it is read again from where it was.
            if let Some(Ok(message)) = polled {
                self.again(message.partition(), message.offset())?;
            }
            return Ok(rebalanced);
        }
        let message = match polled {
            None => return Ok(Received::Nothing),
            Some(Err(error)) => return self.passing(&error),
            Some(Ok(message)) => message,
        };
        self.next.insert(message.partition(), message.offset() + 1);
        let bytes = message.payload().unwrap_or_default();
        let batch = match v1::decode(bytes) {
            Ok(decoded) => decoded.batch,
            Err(malformed) => return Ok(Received::Refused(malformed, bytes.to_vec())),
        };
        let seen = self.seen.entry(message.partition()).or_default();
        Ok(match seen.meet(batch.source, batch.sequence) {
            Standing::Next => Received::Batch(Box::new(batch), 0),
            Standing::After(missing) => Received::Batch(Box::new(batch), missing),
            Standing::Again => Received::Again,
        })
    }

    /// All that was received is done: the group begins behind it from now on.
    pub fn commit(&self) -> Result<(), KafkaError> {
        if self.next.is_empty() {
            return Ok(());
        }
        let fail = |error| KafkaError::of(&self.settings, "commit to", &error);
        let mut list = TopicPartitionList::new();
        for (partition, offset) in &self.next {
            let mut element = list.add_partition(EVENTS, *partition);
            element.set_offset(Offset::Offset(*offset)).map_err(fail)?;
            element.set_metadata(self.seen.get(partition).map(Seen::note).unwrap_or_default());
        }
        self.consumer.commit(&list, CommitMode::Sync).map_err(fail)
    }

    /// What the callbacks left.
    fn rebalanced(&mut self) -> Result<Option<Received>, KafkaError> {
        let changes = std::mem::take(&mut *self.changes.0.lock().unwrap_or_else(|held| held.into_inner()));
        if changes.is_empty() {
            return Ok(None);
        }
        let (mut assigned, mut revoked) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                Change::Assigned(partitions) => assigned.extend(partitions),
                Change::Revoked(partitions) => {
                    for partition in &partitions {
                        self.seen.remove(partition);
                        self.next.remove(partition);
                    }
                    revoked.extend(partitions);
                }
            }
        }
        self.learn(&assigned)?;
        Ok(Some(Received::Rebalanced { assigned, revoked }))
    }

    /// What was given out of these partitions before they came to this member.
    fn learn(&mut self, partitions: &[i32]) -> Result<(), KafkaError> {
        if partitions.is_empty() {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        partitions.iter().for_each(|partition| {
            list.add_partition(EVENTS, *partition);
        });
        let committed = self.consumer.committed_offsets(list, PATIENCE);
        let committed =
            committed.map_err(|error| KafkaError::of(&self.settings, "ask for the offsets of", &error))?;
        for element in committed.elements() {
            self.seen.insert(element.partition(), Seen::from_note(element.metadata()));
        }
        Ok(())
    }

    fn again(&self, partition: i32, offset: i64) -> Result<(), KafkaError> {
        let sought = self.consumer.seek(EVENTS, partition, Offset::Offset(offset), PATIENCE);
        sought.map_err(|error| KafkaError::of(&self.settings, "read again from", &error))
    }

    /// librdkafka goes on by itself after nearly everything: a broker that is away comes back.
    fn passing(&self, error: &rdkafka::error::KafkaError) -> Result<Received, KafkaError> {
        use rdkafka::error::RDKafkaErrorCode as Code;
        match error.rdkafka_error_code() {
            Some(
                Code::Authentication
                | Code::SaslAuthenticationFailed
                | Code::SSL
                | Code::Fatal
                | Code::TopicAuthorizationFailed
                | Code::GroupAuthorizationFailed,
            ) => Err(KafkaError::of(&self.settings, "read from", error)),
            _ => Ok(Received::Nothing),
        }
    }
}
