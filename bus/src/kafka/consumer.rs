//! Records out of a topic, as one member of a group.
//!
//! *Offsets* are committed by whoever says that it has done what was to be done ([`TopicConsumer::commit`]): what was
//! received and not done is received again, by the next member if need be.
//!
//! *Partitions come and go* all at once (range, the classic default) or one by one (the cooperative assignors, and whatever the
//! cluster assigns by KIP-848). One by one means that of what is in hand a part is somebody else's now and a part is not. Who has
//! them in one hand lets go of all of it and has the rest given again: [`TopicConsumer::take_back`].
//!
//! *Waiting* for whatever is to be done with it (a server that is away) is done in [`TopicConsumer::hold`]: a member that does
//! not ask for records for five minutes (`max.poll.interval.ms`) is taken for dead, so it asks, and gets none.

mod commit;

use std::collections::HashMap;
use std::marker::PhantomData;
use std::time::Duration;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::v1::Malformed;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use rdkafka::message::OwnedMessage;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::codec::{Codec, Events, Traces};
use super::lag::Progress;
use super::membership::{Change, Membership};
use super::seen::{Seen, Standing};
use super::settings::Group;
use super::{KafkaError, Settings};

/// For an answer of the cluster.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a topic had to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received<R = EventBatch> {
    /// A record of which something was not given out before, without what was; with how many before it are missing.
    Batch(Box<R>, u64),
    /// One that was: nothing to do.
    Again,
    /// A record that is none of this schema, of so many bytes: to be counted, and kept for who wants to look.
    Refused(Malformed, Vec<u8>, Place),
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

/// Where a record lies in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The partition.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
}

/// Where a partition stood when all that was received of it was done.
#[derive(Clone, Debug)]
struct Done {
    next: i64,
    seen: Seen,
}

/// Partitions that came, and that went.
type Rebalanced = (Vec<i32>, Vec<i32>);

/// A member of a group that reads [`EVENTS`](super::EVENTS).
pub type EventConsumer = TopicConsumer<Events>;
/// A member of a group that reads [`TRACES`](super::TRACES).
pub type TraceConsumer = TopicConsumer<Traces>;

/// A member of a group that reads a topic.
pub struct TopicConsumer<C> {
    consumer: BaseConsumer<Membership>,
    membership: Membership,
    /// Of each partition.
    seen: HashMap<i32, Seen>,
    /// Where the next record of each partition is that was not received yet.
    next: HashMap<i32, i64>,
    /// What was said to be done of those partitions of which more was received since.
    done: HashMap<i32, Done>,
    /// Asked for nothing, see [`TopicConsumer::hold`].
    held: bool,
    /// Partitions that came and of which the group had committed nothing, since this was asked last.
    unknown: usize,
    /// Commits that are answered by a callback.
    commits_sent: u64,
    /// What of it is done, for who looks.
    progress: Progress,
    settings: Settings,
    codec: PhantomData<C>,
}

impl<C: Codec> TopicConsumer<C> {
    /// Joins the group.
    pub fn join(settings: &Settings, group: &Group) -> Result<TopicConsumer<C>, KafkaError> {
        let fail = |error| KafkaError::of(settings, "join a group of", &error);
        let membership = Membership::default();
        let consumer: BaseConsumer<Membership> =
            settings.consumer(group).create_with_context(membership.clone()).map_err(fail)?;
        consumer.subscribe(&[C::TOPIC]).map_err(fail)?;
        Ok(TopicConsumer {
            consumer,
            membership,
            seen: HashMap::new(),
            next: HashMap::new(),
            done: HashMap::new(),
            held: false,
            unknown: 0,
            commits_sent: 0,
            progress: Progress::default(),
            settings: settings.clone(),
            codec: PhantomData,
        })
    }

    /// Shows there how far it is from now on, in place of whoever did before.
    pub fn show(&mut self, progress: &Progress) {
        progress.clear();
        self.progress = progress.clone();
    }

    /// Waits at most `timeout` for the next record.
    pub fn next(&mut self, timeout: Duration) -> Result<Received<C::Record>, KafkaError> {
        if std::mem::take(&mut self.held) {
            self.asked(|consumer, assigned| consumer.resume(assigned))?;
        }
        let polled = self.poll(timeout);
        if let Some((assigned, revoked)) = self.rebalanced()? {
            // A record of a partition that was just assigned may have come with it: it is read again from where it was.
            if let Some(Ok(message)) = polled {
                self.again(message.partition(), message.offset())?;
            }
            return Ok(Received::Rebalanced { assigned, revoked });
        }
        let message = match polled {
            None => return self.alive().map(|()| Received::Nothing),
            Some(Err(error)) => return self.passing(&error).map(|()| Received::Nothing),
            Some(Ok(message)) => message,
        };
        let place = Place { partition: message.partition(), offset: message.offset() };
        self.next.insert(place.partition, place.offset + 1);
        if !self.done.contains_key(&place.partition) {
            let seen = self.seen.get(&place.partition).cloned().unwrap_or_default();
            self.done.insert(place.partition, Done { next: place.offset, seen });
        }
        let bytes = message.payload().unwrap_or_default();
        let mut record = match C::decode(bytes) {
            Ok(record) => record,
            Err(malformed) => return Ok(Received::Refused(malformed, bytes.to_vec(), place)),
        };
        let seen = self.seen.entry(place.partition).or_default();
        Ok(match seen.meet(C::numbers(&record)) {
            Standing::New { again, missing } => {
                C::skip(&mut record, again);
                Received::Batch(Box::new(record), missing)
            }
            Standing::Again => Received::Again,
        })
    }

    /// Stays in the group for at most `timeout` and receives nothing; the partitions that were taken away meanwhile.
    pub fn hold(&mut self, timeout: Duration) -> Result<Vec<i32>, KafkaError> {
        if !std::mem::replace(&mut self.held, true) {
            self.asked(|consumer, assigned| consumer.pause(assigned))?;
        }
        let polled = self.poll(timeout);
        let revoked = match self.rebalanced()? {
            None => Vec::new(),
            Some((_, revoked)) => {
                self.asked(|consumer, assigned| consumer.pause(assigned))?;
                revoked
            }
        };
        match polled {
            // Of a partition that was just assigned: not received yet.
            Some(Ok(message)) => self.again(message.partition(), message.offset())?,
            Some(Err(error)) => self.passing(&error)?,
            None => self.alive()?,
        }
        Ok(revoked)
    }

    /// What was received and is not committed is received again, of the partitions that are still here.
    ///
    /// For who was told that partitions went, and lets go of all that it holds: what stayed nobody else would give again.
    pub fn take_back(&mut self) -> Result<(), KafkaError> {
        for (partition, Done { next, seen }) in std::mem::take(&mut self.done) {
            self.next.insert(partition, next);
            self.seen.insert(partition, seen);
            self.again(partition, next)?;
        }
        Ok(())
    }

    fn poll(&self, timeout: Duration) -> Option<KafkaResult<OwnedMessage>> {
        self.consumer.poll(timeout).map(|polled| polled.map(|message| message.detach()))
    }

    fn asked(
        &self,
        ask: impl FnOnce(&BaseConsumer<Membership>, &TopicPartitionList) -> KafkaResult<()>,
    ) -> Result<(), KafkaError> {
        let done = self.consumer.assignment().and_then(|assigned| match assigned.count() {
            0 => Ok(()),
            _ => ask(&self.consumer, &assigned),
        });
        done.map_err(|error| KafkaError::of(&self.settings, "wait in a group of", &error))
    }

    /// What the callbacks left: partitions that came and that went.
    fn rebalanced(&mut self) -> Result<Option<Rebalanced>, KafkaError> {
        let changes = self.membership.changes();
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
                        self.done.remove(partition);
                        self.progress.gave(*partition);
                    }
                    // It came and went between two looks.
                    assigned.retain(|partition| !partitions.contains(partition));
                    revoked.extend(partitions);
                }
            }
        }
        self.learn(&assigned)?;
        Ok(Some((assigned, revoked)))
    }

    /// What was given out of these partitions before they came to this member.
    fn learn(&mut self, partitions: &[i32]) -> Result<(), KafkaError> {
        if partitions.is_empty() {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        partitions.iter().for_each(|partition| {
            list.add_partition(C::TOPIC, *partition);
        });
        let committed = self.consumer.committed_offsets(list, PATIENCE);
        let committed =
            committed.map_err(|error| KafkaError::of(&self.settings, "ask for the offsets of", &error))?;
        for element in committed.elements() {
            let known = element.error();
            known.map_err(|error| KafkaError::of(&self.settings, "ask for the offsets of", &error))?;
            self.seen.insert(element.partition(), Seen::from_note(element.metadata()));
            self.done.remove(&element.partition());
            let next = if let Offset::Offset(next) = element.offset() { Some(next) } else { None };
            match next {
                Some(next) => drop(self.next.insert(element.partition(), next)),
                None => self.unknown += 1,
            }
            self.progress.stands(element.partition(), next);
        }
        Ok(())
    }

    /// Another member has taken this one's own name: it is out of the group for good. Who comes back under that name takes it from
    /// the other in turn.
    pub fn is_fenced(&self) -> bool {
        matches!(self.consumer.client().fatal_error(), Some((RDKafkaErrorCode::FencedInstanceId, _)))
    }

    /// Partitions that came since this was asked last, and are read from their first record on: the group had committed nothing
    /// of them. It is new, or the cluster has forgotten it: `offsets.retention.minutes`, 7 days without a member by default.
    pub fn take_unknown(&mut self) -> usize {
        std::mem::take(&mut self.unknown)
    }

    fn again(&self, partition: i32, offset: i64) -> Result<(), KafkaError> {
        let sought = self.consumer.seek(C::TOPIC, partition, Offset::Offset(offset), PATIENCE);
        sought.map_err(|error| KafkaError::of(&self.settings, "read again from", &error))
    }

    fn alive(&self) -> Result<(), KafkaError> {
        KafkaError::fatal(&self.settings, self.consumer.client()).map_or(Ok(()), Err)
    }

    fn passing(&self, error: &rdkafka::error::KafkaError) -> Result<(), KafkaError> {
        self.alive()?;
        KafkaError::lasting(&self.settings, error).map_or(Ok(()), Err)
    }
}
