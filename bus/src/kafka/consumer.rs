//! Consumer of one topic, as one member of a consumer group.
//!
//! *In*: records of the assigned partitions. *Out*: [`Received`] records, each new part once.
//!
//! *Offsets*: the caller commits after it has processed all received records
//! ([`TopicConsumer::commit`]). The group delivers uncommitted records again, to the next member if
//! necessary.
//!
//! *Rebalances* move all partitions at once (the classic range assignor) or one by one (cooperative
//! assignors and KIP-848). With one by one, a caller keeps some partitions of its in-flight records
//! and loses others. A caller that processes them together drops all of them and calls
//! [`TopicConsumer::refetch`] for those that it kept.
//!
//! *Waiting* for a destination happens in [`TopicConsumer::poll_paused`]. The group evicts a member
//! that does not poll for five minutes (`max.poll.interval.ms`), so the member polls with all
//! partitions paused.

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
use super::commits::Commits;
use super::dedup::{DuplicateDetector, DuplicateState};
use super::lag::Progress;
use super::rebalance::{Change, RebalanceListener};
use super::settings::Group;
use super::{KafkaError, Settings};

/// Timeout for a reply of the cluster.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of one poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received<R = EventBatch> {
    /// A record with at least one new part, without the parts already delivered, and the number of
    /// missing parts before it.
    Batch(Box<R>, u64),
    /// A record of which every part was delivered before.
    Duplicate,
    /// A record that does not decode, with its bytes for the dead-letter topic.
    Invalid(Malformed, Vec<u8>, RecordPosition),
    /// No record arrived within the timeout.
    Timeout,
    /// A rebalance: in-flight records of revoked partitions now belong to another member.
    Rebalanced {
        /// Partitions that this member gained.
        assigned: Vec<i32>,
        /// Partitions that this member lost.
        revoked: Vec<i32>,
    },
}

/// Position of a record in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPosition {
    /// The partition.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
}

/// Offset up to which a partition was processed when `commit` was called.
#[derive(Clone, Debug)]
struct ProcessedOffset {
    next: i64,
    sequences: DuplicateDetector,
}

/// Assigned and revoked partitions.
type Rebalanced = (Vec<i32>, Vec<i32>);

/// A member of a group that reads [`EVENTS`](super::EVENTS).
pub type EventConsumer = TopicConsumer<Events>;
/// A member of a group that reads [`TRACES`](super::TRACES).
pub type TraceConsumer = TopicConsumer<Traces>;

/// A member of a group that reads a topic.
pub struct TopicConsumer<C> {
    /// Before the consumer, so that it is dropped before it.
    commits: Commits,
    consumer: BaseConsumer<RebalanceListener>,
    listener: RebalanceListener,
    /// Sequence tracker of each partition.
    sequences: HashMap<i32, DuplicateDetector>,
    /// Offset of the next record to receive, by partition.
    next: HashMap<i32, i64>,
    /// Processed offsets of partitions that have received more records since.
    processed: HashMap<i32, ProcessedOffset>,
    /// True while [`TopicConsumer::poll_paused`] has paused the partitions.
    paused: bool,
    /// Assigned partitions without a committed offset since the last `take_unknown`.
    without_offset: usize,
    /// Progress that is shared with the lag reader.
    progress: Progress,
    settings: Settings,
    codec: PhantomData<C>,
}

impl<C: Codec> TopicConsumer<C> {
    /// Joins the group.
    pub fn join(settings: &Settings, group: &Group) -> Result<TopicConsumer<C>, KafkaError> {
        let fail = |error| KafkaError::of(settings, "join a group of", &error);
        let listener = RebalanceListener::default();
        let consumer: BaseConsumer<RebalanceListener> =
            settings.consumer(group).create_with_context(listener.clone()).map_err(fail)?;
        consumer.subscribe(&[C::TOPIC]).map_err(fail)?;
        let commits = Commits::new(consumer.client());
        Ok(TopicConsumer {
            consumer,
            listener,
            sequences: HashMap::new(),
            next: HashMap::new(),
            processed: HashMap::new(),
            paused: false,
            without_offset: 0,
            commits,
            progress: Progress::default(),
            settings: settings.clone(),
            codec: PhantomData,
        })
    }

    /// Writes this consumer's progress to `progress` from now on.
    pub fn publish_progress(&mut self, progress: &Progress) {
        progress.clear();
        self.progress = progress.clone();
    }

    /// Waits at most `timeout` for the next record.
    pub fn next(&mut self, timeout: Duration) -> Result<Received<C::Record>, KafkaError> {
        if std::mem::take(&mut self.paused) {
            self.with_assignment(|consumer, assigned| consumer.resume(assigned))?;
        }
        let polled = self.poll(timeout);
        if let Some((assigned, revoked)) = self.rebalanced()? {
            // A record of a newly assigned partition may have arrived with it: seek back to receive
            // it again.
            if let Some(Ok(message)) = polled {
                self.seek(message.partition(), message.offset())?;
            }
            return Ok(Received::Rebalanced { assigned, revoked });
        }
        let message = match polled {
            None => return self.check_fatal().map(|()| Received::Timeout),
            Some(Err(error)) => return self.ignore_transient(&error).map(|()| Received::Timeout),
            Some(Ok(message)) => message,
        };
        let position = RecordPosition { partition: message.partition(), offset: message.offset() };
        self.next.insert(position.partition, position.offset + 1);
        if !self.processed.contains_key(&position.partition) {
            let sequences = self.sequences.get(&position.partition).cloned().unwrap_or_default();
            self.processed.insert(position.partition, ProcessedOffset { next: position.offset, sequences });
        }
        let bytes = message.payload().unwrap_or_default();
        let mut record = match C::decode(bytes) {
            Ok(record) => record,
            Err(malformed) => return Ok(Received::Invalid(malformed, bytes.to_vec(), position)),
        };
        let sequences = self.sequences.entry(position.partition).or_default();
        Ok(match sequences.classify(C::numbers(&record)) {
            DuplicateState::New { duplicates, missing } => {
                C::skip(&mut record, duplicates);
                Received::Batch(Box::new(record), missing)
            }
            DuplicateState::Duplicate => Received::Duplicate,
        })
    }

    /// Stays in the group for up to `timeout` without receiving records, and returns the partitions
    /// revoked meanwhile.
    pub fn poll_paused(&mut self, timeout: Duration) -> Result<Vec<i32>, KafkaError> {
        if !std::mem::replace(&mut self.paused, true) {
            self.with_assignment(|consumer, assigned| consumer.pause(assigned))?;
        }
        let polled = self.poll(timeout);
        let revoked = match self.rebalanced()? {
            None => Vec::new(),
            Some((_, revoked)) => {
                self.with_assignment(|consumer, assigned| consumer.pause(assigned))?;
                revoked
            }
        };
        match polled {
            // Record of a newly assigned partition: not received yet.
            Some(Ok(message)) => self.seek(message.partition(), message.offset())?,
            Some(Err(error)) => self.ignore_transient(&error)?,
            None => self.check_fatal()?,
        }
        Ok(revoked)
    }

    /// Receives all uncommitted records of the remaining partitions again.
    ///
    /// For a caller that drops its in-flight records after a rebalance: no other member receives
    /// those of the partitions that stay.
    pub fn refetch(&mut self) -> Result<(), KafkaError> {
        for (partition, ProcessedOffset { next, sequences }) in std::mem::take(&mut self.processed) {
            self.next.insert(partition, next);
            self.sequences.insert(partition, sequences);
            self.seek(partition, next)?;
        }
        Ok(())
    }

    fn poll(&self, timeout: Duration) -> Option<KafkaResult<OwnedMessage>> {
        self.consumer.poll(timeout).map(|polled| polled.map(|message| message.detach()))
    }

    /// Calls `call` with the assigned partitions, if there are any.
    fn with_assignment(
        &self,
        call: impl FnOnce(&BaseConsumer<RebalanceListener>, &TopicPartitionList) -> KafkaResult<()>,
    ) -> Result<(), KafkaError> {
        let result = self.consumer.assignment().and_then(|assigned| match assigned.count() {
            0 => Ok(()),
            _ => call(&self.consumer, &assigned),
        });
        result.map_err(|error| KafkaError::of(&self.settings, "stay in a group of", &error))
    }

    /// Takes the assigned and revoked partitions that the callbacks have recorded.
    fn rebalanced(&mut self) -> Result<Option<Rebalanced>, KafkaError> {
        let changes = self.listener.changes();
        if changes.is_empty() {
            return Ok(None);
        }
        let (mut assigned, mut revoked) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                Change::Assigned(partitions) => assigned.extend(partitions),
                Change::Revoked(partitions) => {
                    for partition in &partitions {
                        self.sequences.remove(partition);
                        self.next.remove(partition);
                        self.processed.remove(partition);
                        self.progress.remove(*partition);
                    }
                    // Assigned and revoked between two polls.
                    assigned.retain(|partition| !partitions.contains(partition));
                    revoked.extend(partitions);
                }
            }
        }
        self.restore_sequences(&assigned)?;
        Ok(Some((assigned, revoked)))
    }

    /// Reads the sequences that earlier members delivered from the commit metadata of these
    /// partitions.
    fn restore_sequences(&mut self, partitions: &[i32]) -> Result<(), KafkaError> {
        if partitions.is_empty() {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        partitions.iter().for_each(|partition| {
            list.add_partition(C::TOPIC, *partition);
        });
        let committed = self.consumer.committed_offsets(list, REPLY_TIMEOUT);
        let committed =
            committed.map_err(|error| KafkaError::of(&self.settings, "fetch offsets from", &error))?;
        for element in committed.elements() {
            let error = element.error();
            error.map_err(|error| KafkaError::of(&self.settings, "fetch offsets from", &error))?;
            self.sequences.insert(element.partition(), DuplicateDetector::from_metadata(element.metadata()));
            self.processed.remove(&element.partition());
            let next = if let Offset::Offset(next) = element.offset() { Some(next) } else { None };
            match next {
                Some(next) => drop(self.next.insert(element.partition(), next)),
                None => self.without_offset += 1,
            }
            self.progress.set(element.partition(), next);
        }
        Ok(())
    }

    /// Returns whether another member has joined under this member's instance name. This member is
    /// then out of the group for good; rejoining under that name would fence the other one.
    pub fn is_fenced(&self) -> bool {
        matches!(self.consumer.client().fatal_error(), Some((RDKafkaErrorCode::FencedInstanceId, _)))
    }

    /// Takes the number of newly assigned partitions that are read from their first record because
    /// the group has no offset for them. Such a group is new, or the cluster has expired its
    /// offsets (`offsets.retention.minutes`, 7 days without a member by default).
    pub fn take_unknown(&mut self) -> usize {
        std::mem::take(&mut self.without_offset)
    }

    fn seek(&self, partition: i32, offset: i64) -> Result<(), KafkaError> {
        let result = self.consumer.seek(C::TOPIC, partition, Offset::Offset(offset), REPLY_TIMEOUT);
        result.map_err(|error| KafkaError::of(&self.settings, "seek in", &error))
    }

    fn check_fatal(&self) -> Result<(), KafkaError> {
        KafkaError::fatal(&self.settings, self.consumer.client()).map_or(Ok(()), Err)
    }

    fn ignore_transient(&self, error: &rdkafka::error::KafkaError) -> Result<(), KafkaError> {
        self.check_fatal()?;
        KafkaError::permanent(&self.settings, error).map_or(Ok(()), Err)
    }
}
