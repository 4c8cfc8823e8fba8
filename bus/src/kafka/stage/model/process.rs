//! A process of the model: the real runner in a coroutine, and its side of the simulated cluster.
//!
//! *In*: the [`Choice`] with which each call continues. *Out*: the [`Call`] at which the process is
//! suspended. *Invariant*: between two suspensions a process is a function of the replies that it
//! got, and all of them are in its history.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use blkkin_wire::stage::Stage;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use rdkafka::Timestamp;
use rdkafka::message::OwnedMessage;

use super::super::cluster::{Cluster, Committed, GroupMember, MemberEvent};
use super::super::runner::{Runner, RunnerConfig};
use super::super::stage_producer::{OutgoingRecord, StageProducer};
use super::super::state_ref::StateRef;
use super::super::state_store::{StateStore, StoredStates};
use super::world::{Client, Entry, Queued, Request, World, hash};
use crate::kafka::settings::Group;
use crate::kafka::{KafkaError, STATE};

/// Call of a process that depends on others, or has an effect that they see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Next,
    Committed,
    ReadState,
    Flush,
    Commit,
}

/// Choice of the search for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The only way without a fault.
    Go,
    /// Of a commit: applied, and the reply is lost. Of a flush: a timeout.
    LoseReply,
    /// Of a commit: still under way when the client gives up.
    Delay,
    /// Of a poll: an event.
    Fenced,
    Lost,
    Revoked(i32),
    Assigned(i32),
    Record(i32),
    /// A pause long enough for a save.
    Pause,
}

pub(super) type SharedWorld = Rc<RefCell<World>>;
pub(super) type Process = Coroutine<Choice, Call, Result<(), KafkaError>>;

/// Bytes of a process's stack.
const STACK: usize = 256 << 10;

thread_local! {
    /// Stacks of ended processes: a search starts some hundred thousand.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Ends a process. A suspended one unwinds.
pub(super) fn end(mut process: Process) {
    process.force_unwind();
    STACKS.with_borrow_mut(|stacks| stacks.push(process.into_stack()));
}

/// Starts the runner of a stage.
pub(super) fn spawn<S: Stage + 'static>(
    world: &SharedWorld,
    slot: usize,
    config: RunnerConfig,
    stage: S::Config,
) -> Process
where
    S::Config: 'static,
{
    let world = Rc::clone(world);
    let stack = STACKS.with_borrow_mut(Vec::pop).map_or_else(|| DefaultStack::new(STACK), Ok);
    Coroutine::with_stack(stack.expect("memory for a stack"), move |yielder, _| {
        let cluster = Simulated { yielder, world, slot };
        let runner = Runner::<S, _>::join(cluster, config, stage, 1)?;
        runner.run(|| false, |_| {}).map(drop)
    })
}

/// A process's connections to the simulated cluster.
struct Simulated<'y> {
    yielder: &'y Yielder<Choice, Call>,
    world: SharedWorld,
    slot: usize,
}

impl Simulated<'_> {
    fn suspend(&self, call: Call) -> Choice {
        let choice = self.yielder.suspend(call);
        self.world.borrow_mut().processes[self.slot].record(format!("{call:?} {choice:?}"));
        choice
    }

    fn connection(&self) -> Self {
        Simulated { yielder: self.yielder, world: Rc::clone(&self.world), slot: self.slot }
    }

    fn with_client<T>(&self, change: impl FnOnce(&mut Client) -> T) -> T {
        change(&mut self.world.borrow_mut().processes[self.slot].client)
    }

    fn enter_group(&self) {
        let mut world = self.world.borrow_mut();
        let process = &world.processes[self.slot];
        let (group, life, named) = (process.group, process.life, process.instance.is_some());
        if named {
            world.processes[self.slot].client = Client { joins: true, ..Client::default() };
            world.requests.push(Request::Join { slot: self.slot, life });
        } else {
            // KIP-394: the first request of a member without a name changes nothing.
            let member = world.groups[group].join(self.slot, life);
            world.processes[self.slot].client = Client { member: Some(member), ..Client::default() };
        }
    }

    fn error(&self, what: &str) -> KafkaError {
        KafkaError { what: what.to_owned(), why: String::new(), remedy: String::new() }
    }
}

impl<'y> Cluster for Simulated<'y> {
    type Member = Member<'y>;
    type Output = Simulated<'y>;

    fn join(&self, _: &Group, _: &str) -> Result<Member<'y>, KafkaError> {
        self.enter_group();
        Ok(Member(self.connection()))
    }

    fn producer(&self) -> Result<Self, KafkaError> {
        Ok(self.connection())
    }

    fn read_state(
        &self,
        store: &StateStore,
        state_ref: &StateRef,
        _: Duration,
    ) -> Result<StoredStates, KafkaError> {
        self.suspend(Call::ReadState);
        let mut world = self.world.borrow_mut();
        let found = read_state(&world, store, state_ref);
        world.processes[self.slot].record(format!("{found:?}"));
        if world.before.empties_at_once && found.state(state_ref).is_ok() {
            for key in &found.obsolete {
                let entry = Entry { key: Some(key.clone()), payload: None };
                let (topic, partition) = (STATE.to_owned(), store.state_partition());
                world.processes[self.slot].queue.push(Queued {
                    topic,
                    partition,
                    entry,
                    delivered_offset: None,
                });
            }
        }
        Ok(found)
    }

    fn now(&self) -> Instant {
        static BASE: OnceLock<Instant> = OnceLock::new();
        *BASE.get_or_init(Instant::now) + self.world.borrow().processes[self.slot].clock
    }

    fn pause(&self, _: Duration) {}

    fn random(&self) -> u64 {
        let process = &mut self.world.borrow_mut().processes[self.slot];
        process.draws += 1;
        hash(&(self.slot, process.life, process.draws))
    }
}

/// Reads a state from the simulated log.
pub(super) fn read_state(world: &World, store: &StateStore, state_ref: &StateRef) -> StoredStates {
    let mut found = StoredStates::new(store, state_ref);
    let log = world.log(STATE, store.state_partition());
    for entry in log.iter().skip(usize::try_from(state_ref.at).unwrap_or(0)) {
        found.add(entry.key.as_deref().unwrap_or_default(), entry.payload.as_deref());
    }
    found
}

/// Group membership of a process.
pub(super) struct Member<'y>(Simulated<'y>);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        // A killed process sends no request.
        if std::thread::panicking() {
            return;
        }
        let mut world = self.0.world.borrow_mut();
        let process = &mut world.processes[self.0.slot];
        let (group, client) = (process.group, std::mem::take(&mut process.client));
        // KIP-345: a member with a name does not leave.
        if process.instance.is_none()
            && let Some(member) = client.member
        {
            world.groups[group].remove(member);
        }
    }
}

impl GroupMember for Member<'_> {
    fn next(&self, _: Duration) -> Result<MemberEvent, KafkaError> {
        let choice = self.0.suspend(Call::Next);
        let mut world = self.0.world.borrow_mut();
        let pause = world.pause;
        let fenced_ends = world.before.fenced_ends;
        let process = &mut world.processes[self.0.slot];
        match choice {
            Choice::Record(_) => process.client.active = true,
            Choice::Pause => process.client.active = false,
            _ => {}
        }
        match choice {
            Choice::Fenced if fenced_ends => Err(self.0.error("fenced")),
            Choice::Fenced => Ok(MemberEvent::Fenced(self.0.error("fenced"))),
            Choice::Lost => Ok(MemberEvent::Revoked(process.client.assigned.keys().copied().collect(), true)),
            Choice::Revoked(partition) => Ok(MemberEvent::Revoked(vec![partition], false)),
            Choice::Assigned(partition) => {
                process.client.offered.insert(partition);
                process.client.fetched = None;
                let (group, member) = (process.group, process.client.member.unwrap_or_default());
                world.groups[group].owners.insert(partition, member);
                Ok(MemberEvent::Assigned(vec![partition]))
            }
            Choice::Record(partition) => Ok(MemberEvent::Record(record(&mut world, self.0.slot, partition))),
            _ => {
                process.clock += pause;
                Ok(MemberEvent::Nothing)
            }
        }
    }

    fn assign(&self, from: &[(i32, i64)]) -> Result<(), KafkaError> {
        self.0.with_client(|client| {
            client.offered.clear();
            client.assigned.extend(from.iter().copied());
        });
        Ok(())
    }

    fn unassign(&self, partitions: &[i32]) {
        let mut world = self.0.world.borrow_mut();
        let process = &mut world.processes[self.0.slot];
        process.client.assigned.retain(|partition, _| !partitions.contains(partition));
        let (group, member) = (process.group, process.client.member);
        let group = &mut world.groups[group];
        group.owners.retain(|partition, owner| Some(*owner) != member || !partitions.contains(partition));
        let evicted = member.is_some_and(|member| !group.members.contains_key(&member));
        // KIP-429: a member that has released partitions joins the next generation.
        group.generation += u32::from(!evicted);
        drop(world);
        if evicted {
            self.0.enter_group();
        }
    }

    fn committed(&self, partitions: &[i32]) -> Result<Vec<(i32, Committed)>, KafkaError> {
        self.0.suspend(Call::Committed);
        let mut world = self.0.world.borrow_mut();
        let process = &world.processes[self.0.slot];
        let group = &world.groups[process.group];
        let first = process.client.fetched.as_ref().filter(|_| world.before.commit_not_fetched_again);
        let of = |partition: &i32| match first.or(group.committed.get(partition)) {
            None => Committed::Nothing,
            Some((next, text)) => StateRef::parse(text)
                .map_or(Committed::Foreign(*next), |found| Committed::State(*next, found)),
        };
        let found: Vec<_> = partitions.iter().map(|partition| (*partition, of(partition))).collect();
        let fetched = partitions.first().and_then(|partition| group.committed.get(partition)).cloned();
        let process = &mut world.processes[self.0.slot];
        process.record(format!("{found:?}"));
        process.client.fetched = process.client.fetched.take().or(fetched);
        Ok(found)
    }

    fn earliest(&self, _: i32) -> Result<i64, KafkaError> {
        Ok(0)
    }

    fn commit(&self, commits: &[(i32, i64, StateRef)]) -> Result<bool, KafkaError> {
        let commits: Vec<_> =
            commits.iter().map(|(partition, next, found)| (*partition, *next, found.to_string())).collect();
        let choice = self.0.suspend(Call::Commit);
        let mut world = self.0.world.borrow_mut();
        let process = &mut world.processes[self.0.slot];
        let (group, Some(member)) = (process.group, process.client.member) else { return Ok(false) };
        let generation = world.groups[group].generation;
        if choice == Choice::Delay {
            world.requests.push(Request::Commit { group, member, generation, commits });
            world.processes[self.0.slot].client.active = true;
            return Ok(false);
        }
        let applied = world.groups[group].commit(member, generation, &commits);
        let accepted = applied && choice == Choice::Go;
        let process = &mut world.processes[self.0.slot];
        process.record(accepted);
        process.client.active |= !accepted;
        process.client.rejected |= !applied && choice == Choice::Go;
        Ok(accepted)
    }
}

fn record(world: &mut World, slot: usize, partition: i32) -> OwnedMessage {
    let process = &mut world.processes[slot];
    let next = process.client.assigned.get_mut(&partition).map(|next| std::mem::replace(next, *next + 1));
    let (offset, topic) = (next.unwrap_or_default(), process.topic.clone());
    let payload = world.log(&topic, partition)[offset as usize].payload.clone();
    world.processes[slot].record((offset, &payload));
    let at = Timestamp::CreateTime(1_000 + offset);
    OwnedMessage::new(payload, None, topic, at, partition, offset, None)
}

impl StageProducer for Simulated<'_> {
    fn send(&self, outgoing: &OutgoingRecord<'_>, _: Duration) -> Result<bool, KafkaError> {
        let queued = Queued {
            topic: outgoing.topic.to_owned(),
            partition: outgoing.partition.unwrap_or_default(),
            entry: Entry {
                key: outgoing.key.map(str::to_owned),
                payload: outgoing.payload.map(<[u8]>::to_vec),
            },
            delivered_offset: outgoing.delivered_offset.clone(),
        };
        self.world.borrow_mut().processes[self.slot].queue.push(queued);
        Ok(true)
    }

    fn record_bytes(&self) -> usize {
        1_000_000
    }

    fn flush(&self, _: Duration) -> Result<bool, KafkaError> {
        let flushed = self.suspend(Call::Flush) == Choice::Go;
        self.with_client(|client| client.active |= !flushed);
        Ok(flushed)
    }

    fn is_idle(&self) -> bool {
        self.world.borrow().processes[self.slot].queue.is_empty()
    }

    fn delivered(&self) -> u64 {
        0
    }

    fn failed(&self) -> Result<(), KafkaError> {
        Ok(())
    }
}
