//! The simulated cluster: logs, group coordinators, and requests under way.
//!
//! *In*: requests of processes. *Out*: replies. *Invariant*: what a client sees here can happen on a
//! Kafka cluster of several brokers.
//!
//! | rule | source |
//! |---|---|
//! | a producer's records arrive once each and in order, a killed one's last request maybe later | KIP-98, `max.in.flight.requests.per.connection=1` |
//! | a partition is assigned after its owner has released it, or was evicted | KIP-429 |
//! | a commit needs a member of the group in its current generation | `ClassicGroup.validateOffsetCommit` |
//! | a commit is not checked against the assignment, and an offset may go back | the same |
//! | fetches of records and committed offsets are open to evicted members | `Fetch`, `OffsetFetch` without a member |
//! | a join under a known instance name replaces the member, which is fenced | KIP-345 |
//! | a request can overtake one on an older connection | one processor thread of a broker a connection |
//! | an evicted member learns it from a heartbeat, at any later time | KIP-62 |
//!
//! Not modelled: replication (`acks=all` records do not vanish), compaction (it removes only what a
//! tombstone has replaced), KIP-848, retention, and a full queue.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::super::stage_producer::DeliveredOffset;
use super::super::state_ref::StateRef;

/// Record of a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) key: Option<String>,
    pub(super) payload: Option<Vec<u8>>,
}

/// Faults that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// Kills of processes.
    pub(super) kills: u8,
    /// Evictions of members that live: a pause longer than the session timeout.
    pub(super) evictions: u8,
    /// Commits that are applied and whose reply is lost.
    pub(super) lost_replies: u8,
    /// Commits that arrive later than the client waits.
    pub(super) late_commits: u8,
    /// Flushes that time out.
    pub(super) flushes: u8,
    /// Records that a previous stage writes twice.
    pub(super) duplicates: u8,
}

/// Mends taken back: each field is a fault as it was before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// A member that was fenced ended.
    pub(super) fenced_ends: bool,
    /// Chunks behind a state that was read were emptied at once.
    pub(super) empties_at_once: bool,
    /// A state that could not be read ended the process, also that of an evicted member.
    pub(super) commit_not_fetched_again: bool,
}

/// Record in a producer's queue.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) entry: Entry,
    pub(super) delivered_offset: Option<DeliveredOffset>,
}

/// Group membership as a client knows it.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Client {
    pub(super) member: Option<u32>,
    /// Next offset of each confirmed partition.
    pub(super) assigned: BTreeMap<i32, i64>,
    /// Partitions offered and not confirmed yet.
    pub(super) offered: BTreeSet<i32>,
    /// True after a reply that it is no member.
    pub(super) rejected: bool,
    /// True while its join request is under way.
    pub(super) joins: bool,
    /// Committed data of the partition that was offered last, as first fetched.
    pub(super) fetched: Option<(i64, String)>,
    /// True if a pause can matter: a record was read or a save has failed since the last one.
    pub(super) active: bool,
}

/// Process of a scenario.
#[derive(Debug, Default)]
pub(super) struct ProcessState {
    pub(super) group: usize,
    pub(super) instance: Option<String>,
    pub(super) topic: String,
    pub(super) client: Client,
    pub(super) queue: Vec<Queued>,
    /// Number of starts.
    pub(super) life: u32,
    /// Random numbers drawn in this life.
    pub(super) draws: u32,
    pub(super) clock: Duration,
    /// Hash of all replies in this life: the process is a function of them.
    pub(super) history: u64,
}

impl ProcessState {
    pub(super) fn record(&mut self, reply: impl Hash) {
        self.history = hash(&(self.history, reply));
    }
}

/// Record of a previous stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fed {
    pub(super) topic: &'static str,
    pub(super) partition: i32,
    pub(super) payload: Vec<u8>,
    /// Times it was written.
    pub(super) written: u8,
}

/// Request that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    /// Join under an instance name.
    Join { slot: usize, life: u32 },
    /// Commit for which the client does not wait any more.
    Commit { group: usize, member: u32, generation: u32, commits: Vec<(i32, i64, String)> },
    /// Last record of a killed producer.
    Produce { topic: String, partition: i32, entry: Entry },
}

/// Group coordinator.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Group {
    /// Partitions of the input.
    pub(super) partitions: i32,
    pub(super) generation: u32,
    /// Slot and life of each member.
    pub(super) members: BTreeMap<u32, (usize, u32)>,
    pub(super) fenced: BTreeSet<u32>,
    pub(super) owners: BTreeMap<i32, u32>,
    pub(super) committed: BTreeMap<i32, (i64, String)>,
    pub(super) joined: u32,
}

impl Group {
    pub(super) fn join(&mut self, slot: usize, life: u32) -> u32 {
        self.joined += 1;
        self.generation += 1;
        self.members.insert(self.joined, (slot, life));
        self.joined
    }

    /// Replaces the member of the same instance name, which is fenced.
    pub(super) fn replace(&mut self, old: u32, slot: usize, life: u32) -> u32 {
        self.joined += 1;
        self.members.remove(&old);
        self.fenced.insert(old);
        self.members.insert(self.joined, (slot, life));
        self.owners.values_mut().filter(|owner| **owner == old).for_each(|owner| *owner = self.joined);
        self.joined
    }

    pub(super) fn remove(&mut self, member: u32) {
        if self.members.remove(&member).is_some() {
            self.generation += 1;
            self.owners.retain(|_, owner| *owner != member);
        }
    }

    /// Returns the member that shall own a partition. The newest one comes first, so that a partition
    /// moves whenever a process joins.
    pub(super) fn target(&self, partition: i32) -> Option<u32> {
        let newest_first: Vec<u32> = self.members.keys().rev().copied().collect();
        newest_first.get(partition as usize % newest_first.len().max(1)).copied()
    }

    /// Applies a commit if the coordinator accepts it.
    pub(super) fn commit(&mut self, member: u32, generation: u32, commits: &[(i32, i64, String)]) -> bool {
        let accepted = self.members.contains_key(&member) && self.generation == generation;
        if accepted {
            self.committed.extend(commits.iter().map(|(p, next, text)| (*p, (*next, text.clone()))));
        }
        accepted
    }
}

/// State of everything but the processes' own memory.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) logs: BTreeMap<(String, i32), Vec<Entry>>,
    pub(super) groups: Vec<Group>,
    pub(super) processes: Vec<ProcessState>,
    pub(super) requests: Vec<Request>,
    pub(super) faults: Faults,
    pub(super) before: Before,
    /// Processes that may be killed.
    pub(super) killable: Vec<usize>,
    /// Records that are not written yet, by topic and partition.
    pub(super) feed: Vec<Fed>,
    /// Only the order of records, saves, writes and kills is chosen; everything else happens as soon
    /// as it can. For groups of one process each.
    pub(super) coarse: bool,
    /// Length of a pause of a poll without records.
    pub(super) pause: Duration,
    /// Error with which a process has ended.
    pub(super) ended: Option<String>,
}

impl World {
    pub(super) fn log(&self, topic: &str, partition: i32) -> &[Entry] {
        self.logs.get(&(topic.to_owned(), partition)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Appends a record and returns its offset.
    pub(super) fn append(&mut self, topic: &str, partition: i32, entry: Entry) -> i64 {
        let log = self.logs.entry((topic.to_owned(), partition)).or_default();
        log.push(entry);
        log.len() as i64 - 1
    }

    /// Delivers the first record of a producer's queue.
    pub(super) fn deliver(&mut self, slot: usize) {
        let Queued { topic, partition, entry, delivered_offset } = self.processes[slot].queue.remove(0);
        let offset = self.append(&topic, partition, entry);
        if let Some(delivered_offset) = delivered_offset {
            delivered_offset.store(offset, std::sync::atomic::Ordering::Relaxed);
            // The process reads it.
            self.processes[slot].record(offset);
        }
    }

    /// Writes a record of a previous stage.
    pub(super) fn feed(&mut self, n: usize) {
        self.feed[n].written += 1;
        let Fed { topic, partition, payload, .. } = self.feed[n].clone();
        self.append(topic, partition, Entry { key: None, payload: Some(payload) });
    }

    /// Lets a request arrive that was under way.
    pub(super) fn arrive(&mut self, n: usize) {
        match self.requests.remove(n) {
            Request::Join { slot, life } => self.join_by_name(slot, life),
            Request::Commit { group, member, generation, commits } => {
                self.groups[group].commit(member, generation, &commits);
            }
            Request::Produce { topic, partition, entry } => {
                self.append(&topic, partition, entry);
            }
        }
    }

    fn join_by_name(&mut self, slot: usize, life: u32) {
        let group = &mut self.groups[self.processes[slot].group];
        let name = &self.processes[slot].instance;
        let same = |(other, _): &(usize, u32)| self.processes[*other].instance == *name;
        let old = group.members.iter().find(|(_, of)| same(of)).map(|(member, _)| *member);
        let member = match old {
            Some(old) => group.replace(old, slot, life),
            None => group.join(slot, life),
        };
        let process = &mut self.processes[slot];
        if process.life == life && process.client.joins {
            process.client = Client { member: Some(member), ..Client::default() };
        }
    }

    pub(super) fn member_is_live(&self, (slot, life): (usize, u32), member: u32) -> bool {
        let process = &self.processes[slot];
        process.life == life && process.client.member == Some(member)
    }

    /// Returns a rule of the committed states that is broken.
    pub(super) fn unreadable_state(
        &self,
        found: impl Fn(usize, i32, &StateRef) -> Result<(), String>,
    ) -> Option<String> {
        for (n, group) in self.groups.iter().enumerate() {
            for (partition, (next, text)) in &group.committed {
                let Some(state_ref) = StateRef::parse(text) else { continue };
                if let Err(why) = found(n, *partition, &state_ref) {
                    return Some(format!(
                        "the committed state of partition {partition} at offset {next} cannot be read: {why}"
                    ));
                }
            }
        }
        None
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let processes: Vec<_> = self.processes.iter().map(process_hash).collect();
        let mut requests: Vec<_> = self.requests.iter().map(hash).collect();
        requests.sort_unstable();
        hash(&(&self.logs, &self.groups, processes, requests, self.faults, &self.ended, &self.feed))
    }
}

fn process_hash(process: &ProcessState) -> u64 {
    let queue: Vec<_> =
        process.queue.iter().map(|queued| (&queued.topic, queued.partition, &queued.entry)).collect();
    hash(&(&process.client, queue, process.life, process.draws, process.history))
}

pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
