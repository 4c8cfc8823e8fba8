//! Member of a stage's consumer group.
//!
//! *In*: the input topic. *Out*: records, and assignments and revocations of partitions.
//! *Invariant*: librdkafka gets its reply to a rebalance only after the stage has handled it, or
//! when the member is dropped.
//!
//! The assignor is cooperative, so remaining partitions continue during a rebalance. librdkafka
//! reports a change and waits for the reply. So a partition is released after its state was saved,
//! and assigned at the offset of its state. With KIP-848 (`group.protocol=consumer`) only the
//! cluster's part differs: it decides the assignment and the session timeout.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedMessage;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};

use super::super::commits::{Commits, OVERDUE};
use super::super::settings::Group;
use super::super::{KafkaError, Settings};
use super::cluster::{Committed, GroupMember, MemberEvent};
use super::state_ref::StateRef;

/// Timeout for a reply of the cluster.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a member polls while it waits for the reply to a commit.
const POLL_EACH: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default)]
struct Callbacks(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    changes: Mutex<Vec<(bool, Vec<i32>)>>,
    leaving: AtomicBool,
}

impl Callbacks {
    fn changes(&self) -> MutexGuard<'_, Vec<(bool, Vec<i32>)>> {
        self.0.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Callbacks {}

impl ConsumerContext for Callbacks {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, why: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let assigned = why == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.0.leaving.load(Relaxed) {
            return answer_at_leaving(consumer, assigned, list);
        }
        let partitions = list.elements().iter().map(|element| element.partition()).collect();
        self.changes().push((assigned, partitions));
    }
}

/// Answers a rebalance while the member leaves. librdkafka closes a consumer only after each is answered, and
/// refuses other answers than incremental ones in a cooperative group. Partitions that are accepted here are
/// revoked by the close, and nothing is read from them.
fn answer_at_leaving(consumer: &BaseConsumer<Callbacks>, assigned: bool, list: &TopicPartitionList) {
    // All states are saved; an error would mean only that no partition is assigned.
    let _ = match (assigned, consumer.rebalance_protocol()) {
        (true, RebalanceProtocol::Cooperative) => consumer.incremental_assign(list),
        _ => unassign(consumer, list),
    };
}

fn unassign(consumer: &BaseConsumer<Callbacks>, list: &TopicPartitionList) -> Result<(), Driver> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        _ => consumer.unassign(),
    }
}

/// Maximum time that a member takes to leave its group. Afterwards the cluster notices its end by the session
/// timeout, as if the process had been killed.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Group member.
pub(super) struct Member {
    consumer: ManuallyDrop<BaseConsumer<Callbacks>>,
    callbacks: Callbacks,
    /// Dropped before the consumer.
    commits: ManuallyDrop<RefCell<Commits>>,
    /// Records that arrived while a commit was awaited.
    early: RefCell<VecDeque<OwnedMessage>>,
    topic: String,
    settings: Settings,
}

impl Member {
    pub(super) fn join(settings: &Settings, group: &Group, topic: &str) -> Result<Member, KafkaError> {
        let fail = |error| KafkaError::of(settings, "join a group of", &error);
        let callbacks = Callbacks::default();
        let mut config = settings.consumer(group);
        if !settings.uses_kip_848() {
            config.set("partition.assignment.strategy", "cooperative-sticky");
        }
        config
            .set("fetch.wait.max.ms", "100")
            // Prefetch of all partitions together: a second of 500,000 events/s.
            .set("queued.max.messages.kbytes", "16384");
        let consumer: BaseConsumer<Callbacks> =
            config.create_with_context(callbacks.clone()).map_err(fail)?;
        consumer.subscribe(&[topic]).map_err(fail)?;
        let consumer = ManuallyDrop::new(consumer);
        let commits = ManuallyDrop::new(RefCell::new(Commits::new(consumer.client())));
        let early = RefCell::default();
        Ok(Member {
            consumer,
            callbacks,
            commits,
            early,
            topic: topic.to_owned(),
            settings: settings.clone(),
        })
    }

    fn change(&self) -> Option<MemberEvent> {
        let mut changes = self.callbacks.changes();
        if changes.is_empty() {
            return None;
        }
        let (assigned, partitions) = changes.remove(0);
        // They are read again from the offset of the partition's next assignment.
        self.early.borrow_mut().retain(|message| !partitions.contains(&message.partition()));
        Some(match assigned {
            true => MemberEvent::Assigned(partitions),
            false => MemberEvent::Revoked(partitions, self.consumer.assignment_lost()),
        })
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

    /// Waits up to [`REPLY_TIMEOUT`] for the replies to all commits. Returns whether the last one succeeded; none
    /// if a reply is still due. It polls meanwhile, so that a rebalance goes on.
    fn reply(&self) -> Option<bool> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut commits = self.commits.borrow_mut();
        loop {
            if let Some(reply) = commits.result() {
                return Some(reply.is_ok());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if commits.wait(left.min(POLL_EACH)) {
                continue;
            }
            // `next` sees an error too: a fatal one stays, others are temporary or come again.
            if let Some(Ok(message)) = self.consumer.poll(Duration::ZERO) {
                self.early.borrow_mut().push_back(message.detach());
            }
        }
    }
}

impl GroupMember for Member {
    fn next(&self, timeout: Duration) -> Result<MemberEvent, KafkaError> {
        if let Some(event) = self.change() {
            return Ok(event);
        }
        if self.commits.borrow().is_overdue() {
            return Ok(MemberEvent::JoinAgain(KafkaError {
                what: format!("a commit to {} has no reply", self.settings.brokers),
                why: format!("{} s are over, and a request takes at most 60", OVERDUE.as_secs()),
                remedy: "check that the group's coordinator runs; the member joins its group again"
                    .to_owned(),
            }));
        }
        if let Some(message) = self.early.borrow_mut().pop_front() {
            return Ok(MemberEvent::Record(message));
        }
        // librdkafka serves its own events each second; `timeout` is shorter.
        let polled = self.consumer.poll(timeout);
        if let Some(Ok(message)) = polled {
            return Ok(MemberEvent::Record(message.detach()));
        }
        if let Some(fatal) = KafkaError::fatal(&self.settings, self.consumer.client()) {
            return match self.consumer.client().fatal_error() {
                Some((Code::UnreleasedInstanceId, _)) => Ok(MemberEvent::JoinAgain(fatal)),
                Some((Code::FencedInstanceId, _)) => Ok(MemberEvent::Fenced(fatal)),
                _ => Err(fatal),
            };
        }
        let permanent =
            polled.and_then(Result::err).and_then(|error| KafkaError::permanent(&self.settings, &error));
        permanent.map_or(Ok(MemberEvent::Nothing), Err)
    }

    fn assign(&self, from: &[(i32, i64)]) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in from {
            let added = list.add_partition_offset(&self.topic, *partition, Offset::Offset(*offset));
            added.map_err(|error| self.fail("read from", &error))?;
        }
        let assigned = match self.consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => self.consumer.incremental_assign(&list),
            _ => self.consumer.assign(&list),
        };
        assigned.map_err(|error| self.fail("assign partitions of", &error))
    }

    fn unassign(&self, partitions: &[i32]) {
        // Fails only for partitions that are no longer assigned.
        let _ = unassign(&self.consumer, &self.list(partitions));
    }

    fn committed(&self, partitions: &[i32]) -> Result<Vec<(i32, Committed)>, KafkaError> {
        let found = self.consumer.committed_offsets(self.list(partitions), REPLY_TIMEOUT);
        let found = found.map_err(|error| self.fail("fetch offsets from", &error))?;
        let mut committed = Vec::new();
        for element in found.elements() {
            // A partition without an answer is not a partition without a commit.
            element.error().map_err(|error| self.fail("fetch offsets from", &error))?;
            let data = match (element.offset(), StateRef::parse(element.metadata())) {
                (Offset::Offset(at), Some(state_ref)) => Committed::State(at, state_ref),
                (Offset::Offset(at), None) => Committed::Foreign(at),
                _ => Committed::Nothing,
            };
            committed.push((element.partition(), data));
        }
        Ok(committed)
    }

    fn earliest(&self, partition: i32) -> Result<i64, KafkaError> {
        let marks = self.consumer.fetch_watermarks(&self.topic, partition, REPLY_TIMEOUT);
        marks.map(|(low, _)| low).map_err(|error| self.fail("fetch offsets from", &error))
    }

    fn commit(&self, commits: &[(i32, i64, StateRef)]) -> Result<bool, KafkaError> {
        let mut list = TopicPartitionList::new();
        for (partition, offset, state_ref) in commits {
            let mut element = list.add_partition(&self.topic, *partition);
            element.set_offset(Offset::Offset(*offset)).map_err(|error| self.fail("commit to", &error))?;
            element.set_metadata(state_ref.to_string());
        }
        // A later commit must not overtake an earlier one, whose state it makes obsolete.
        if self.reply().is_none() {
            return Ok(false);
        }
        if !self.commits.borrow_mut().send(self.consumer.client(), &list) {
            return Ok(false);
        }
        // Without success it was fenced, unreachable or rebalancing: not committed, or committed without a reply.
        // Both are safe, and the next event shows which.
        Ok(self.reply().unwrap_or(false))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // From here on the last rebalance is answered at once, since no poll follows.
        self.callbacks.0.leaving.store(true, Relaxed);
        let pending = std::mem::take(&mut *self.callbacks.changes());
        for (assigned, partitions) in pending {
            answer_at_leaving(&self.consumer, assigned, &self.list(&partitions));
        }
        // SAFETY: the fields are not used any more.
        let consumer = unsafe {
            ManuallyDrop::drop(&mut self.commits);
            ManuallyDrop::take(&mut self.consumer)
        };
        // The driver closes a consumer in a loop without limit, in which a service was once seen to stay after it
        // was stopped during a rebalance.
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            drop(consumer);
            // The receiver is gone after the limit.
            let _ = sender.send(());
        });
        let _ = receiver.recv_timeout(LEAVE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::*;

    const TOPIC: &str = "blkkin.events";

    /// A service that is stopped while its group assigns partitions ends all the same, though librdkafka
    /// waits without limit for the answer to an assignment.
    #[test]
    fn a_member_with_an_unanswered_assignment_ends() {
        assert_ends_after(|member| {
            let is_assigned =
                || member.callbacks.0.changes.lock().unwrap().iter().any(|(assigned, _)| *assigned);
            while !is_assigned() {
                assert!(member.consumer.poll(Duration::from_millis(100)).is_none());
            }
        });
    }

    /// The mock cluster assigns 3 s after the first member has joined.
    #[test]
    fn a_member_ends_when_an_assignment_arrives_meanwhile() {
        assert_ends_after(|_| std::thread::sleep(Duration::from_secs(5)));
    }

    /// A broker dies after a member joined: its commit is not accepted, and the member goes on.
    #[test]
    fn a_commit_without_a_reply_ends() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, 4, 1).unwrap();
        let settings = Settings::new(cluster.bootstrap_servers());
        let group = Group { name: "group".to_owned(), member: None };
        let member = Member::join(&settings, &group, TOPIC).unwrap();
        let partitions = loop {
            if let MemberEvent::Assigned(partitions) = member.next(Duration::from_millis(100)).unwrap() {
                break partitions;
            }
        };
        let from: Vec<_> = partitions.iter().map(|partition| (*partition, 0)).collect();
        member.assign(&from).unwrap();
        let state = StateRef::parse("blkkin1 00 1 0 1 1 00000001").unwrap();
        assert!(member.commit(&[(partitions[0], 1, state)]).unwrap(), "while the broker lives");
        cluster.broker_down(1).unwrap();
        let started = Instant::now();
        // The second one finds the first one without a reply.
        for _ in 0..2 {
            assert!(!member.commit(&[(partitions[0], 2, state)]).unwrap());
        }
        assert!(started.elapsed() < 3 * REPLY_TIMEOUT, "{:?}", started.elapsed());
        // The group goes on: the partitions are revoked, assigned again, and commits are accepted.
        cluster.broker_up(1).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < deadline, "the member does not join again");
            match member.next(Duration::from_millis(100)).unwrap() {
                MemberEvent::Revoked(partitions, _) => member.unassign(&partitions),
                MemberEvent::Assigned(partitions) => {
                    let from: Vec<_> = partitions.iter().map(|partition| (*partition, 0)).collect();
                    member.assign(&from).unwrap();
                    assert!(member.commit(&[(partitions[0], 3, state)]).unwrap());
                    return;
                }
                _ => {}
            }
        }
    }

    fn assert_ends_after(wait: impl Fn(&Member)) {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, 4, 1).unwrap();
        let settings = Settings::new(cluster.bootstrap_servers());
        let group = Group { name: "group".to_owned(), member: None };
        let member = Member::join(&settings, &group, TOPIC).unwrap();
        wait(&member);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            drop(member);
            sender.send(()).unwrap();
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(()), "the member does not leave");
    }
}
