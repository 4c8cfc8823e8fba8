//! A fleet in one process: the aggregator's real stages over logs in memory.
//!
//! ```text
//! load → events → JoinStage → spans → AssembleStage → traces → check
//!                    └──────→ links → LinkStage ┘
//! ```
//!
//! *In*: a number of nodes, partitions and seconds. *Out*: memory of the stages, size of their
//! states, time to take partitions over, and the spans that were lost or doubled. *Invariant*: the
//! content is a function of the size; only times are measured.
//!
//! A member's death is the worst one: halfway between two saves, with all of its output written.
//!
//! *Rejected*: real brokers and processes. They are tried with a few nodes (`blkkin/tests/`); 1,000
//! of them need a cluster.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "shared by a test and a benchmark, which use different parts"
)]

pub(crate) mod bounds;
mod load;
mod partition;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::assemble::{AssembleStage, AssembleStageConfig};
use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::link::{LinkStage, LinkStageConfig};
use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_wire::fragment::{FragmentOrigin, TraceFragment};
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::stage::{LogTime, Stage};
use blkkin_wire::v1;

use load::Load;
use partition::{Log, Owned, Written};

/// Seconds of the log's time between two saves.
const SAVE_EVERY: u64 = 5;
/// Log time of the first second, in ms.
const BEGIN: u64 = 1_700_000_000_000;

/// Size of a fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) nodes: u64,
    pub(crate) partitions: u32,
    pub(crate) seconds: u64,
    /// Calls of a node in a second, without those that it serves for another.
    pub(crate) calls: u64,
    /// Names of tasks, and of files, of a node.
    pub(crate) names: u64,
    /// Members that share the partitions. One of them is killed.
    pub(crate) members: u32,
}

/// Results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Spans that the nodes' events have.
    pub(crate) spans: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Spans in another trace than their client's.
    pub(crate) misplaced: u64,
    /// Fragments that were written twice and dropped by number.
    pub(crate) repeated: u64,
    /// Bytes of the stages of all partitions: join, link, assemble.
    pub(crate) memory: [u64; 3],
    /// Bytes of the states of all partitions.
    pub(crate) states: [u64; 3],
    /// Partitions that the killed member had.
    pub(crate) taken_over: u32,
    /// Time to restore the killed member's partitions, and to read again what it had read since.
    pub(crate) restored: Duration,
    pub(crate) caught_up: Duration,
    pub(crate) read_again: u64,
    /// Time of all stages, without the take-over.
    pub(crate) worked: Duration,
    pub(crate) events: u64,
}

struct Fleet {
    load: Load,
    now: LogTime,
    events: Vec<Log>,
    links: Vec<Log>,
    spans: Vec<Log>,
    joins: Vec<Owned<JoinStage>>,
    link_stages: Vec<Owned<LinkStage>>,
    assembles: Vec<Owned<AssembleStage>>,
    reader: Reader,
    outcome: Outcome,
}

/// Simulates a fleet.
pub(crate) fn run(size: Size) -> Outcome {
    let mut fleet = Fleet::new(size);
    for second in 0..=size.seconds {
        fleet.send(second);
        if second == size.seconds / 2 {
            fleet.kill_and_take_over();
        }
        fleet.work();
        // The last save is halfway behind when the member is killed.
        if (second + SAVE_EVERY / 2 + SAVE_EVERY).is_multiple_of(SAVE_EVERY) {
            fleet.save();
        }
    }
    fleet.measure();
    fleet.end();
    fleet.outcome
}

impl Fleet {
    fn new(size: Size) -> Fleet {
        let partitions = size.partitions;
        let logs = || (0..partitions).map(|_| Log::default()).collect();
        let rules = AssembleStageConfig::new(partitions, SamplingRules::default());
        Fleet {
            load: Load(size),
            now: LogTime(BEGIN),
            events: logs(),
            links: logs(),
            spans: logs(),
            joins: (0..partitions).map(|n| Owned::new(n, JoinStageConfig::new(partitions))).collect(),
            link_stages: (0..partitions).map(|n| Owned::new(n, LinkStageConfig::new(partitions))).collect(),
            assembles: (0..partitions).map(|n| Owned::new(n, rules.clone())).collect(),
            reader: Reader::new(Load(size).spans()),
            outcome: Outcome { spans: Load(size).spans(), ..Outcome::default() },
        }
    }

    fn send(&mut self, second: u64) {
        self.now = LogTime(BEGIN + second * 1_000);
        for node in 0..self.load.0.nodes {
            let batch = self.load.batch(node, second);
            self.outcome.events += batch.events.len() as u64;
            let partition = load::partition(node, self.load.0.partitions) as usize;
            self.events[partition].push(self.now, v1::encode(&batch));
        }
    }

    /// Reads everything that is unread, in all stages.
    fn work(&mut self) {
        let started = Instant::now();
        for partition in 0..self.load.0.partitions as usize {
            self.read_partition(partition, usize::MAX);
        }
        while self.read_links_and_spans() {}
        self.outcome.worked += started.elapsed();
    }

    fn read_partition(&mut self, partition: usize, max: usize) {
        let written = self.joins[partition].read(&self.events[partition], max);
        self.write(written, |fleet, side| if side { &mut fleet.links } else { &mut fleet.spans });
    }

    fn read_links_and_spans(&mut self) -> bool {
        let mut any = false;
        for partition in 0..self.load.0.partitions as usize {
            any |= self.read_link(partition) | self.read_span(partition);
        }
        any
    }

    fn read_link(&mut self, partition: usize) -> bool {
        let before = self.link_stages[partition].next;
        let written = self.link_stages[partition].read(&self.links[partition], usize::MAX);
        self.write(written, |fleet, _| &mut fleet.spans);
        self.link_stages[partition].next > before
    }

    fn read_span(&mut self, partition: usize) -> bool {
        let before = self.assembles[partition].next;
        let written = self.assembles[partition].read(&self.spans[partition], usize::MAX);
        let (traces, again): (Vec<Written>, Vec<Written>) = written.into_iter().partition(|(side, ..)| !side);
        self.write(again, |fleet, _| &mut fleet.spans);
        traces.iter().for_each(|(_, to, bytes)| self.reader.read(*to, bytes, &self.load));
        self.assembles[partition].next > before
    }

    fn write(&mut self, written: Vec<Written>, topic: fn(&mut Fleet, bool) -> &mut Vec<Log>) {
        let now = self.now;
        for (side, to, bytes) in written {
            topic(self, side)[to as usize].push(now, bytes);
        }
    }

    fn save(&mut self) {
        let join = self.joins.iter_mut().map(|owned| owned.save() as u64).sum();
        let link = self.link_stages.iter_mut().map(|owned| owned.save() as u64).sum();
        let assemble = self.assembles.iter_mut().map(|owned| owned.save() as u64).sum();
        self.outcome.states = [join, link, assemble];
        self.joins.iter().zip(&mut self.events).for_each(|(owned, log)| log.trim(owned.next));
        self.link_stages.iter().zip(&mut self.links).for_each(|(owned, log)| log.trim(owned.next));
        self.assembles.iter().zip(&mut self.spans).for_each(|(owned, log)| log.trim(owned.next));
    }

    /// Kills a member that has read half of the new records and written all output of them.
    fn kill_and_take_over(&mut self) {
        let of_member = (0..self.load.0.partitions).filter(|n| n % self.load.0.members == 0);
        let of_member: Vec<usize> = of_member.map(|n| n as usize).collect();
        let half = (self.load.0.nodes / u64::from(self.load.0.partitions) / 2).max(1) as usize;
        of_member.iter().for_each(|&partition| self.read_partition(partition, half));
        of_member.iter().for_each(|&partition| {
            self.read_link(partition);
            self.read_span(partition);
        });
        let started = Instant::now();
        let mut again = 0;
        for &partition in &of_member {
            again += self.joins[partition].take_over();
            again += self.link_stages[partition].take_over();
            again += self.assembles[partition].take_over();
        }
        self.outcome.restored = started.elapsed();
        let started = Instant::now();
        for &partition in &of_member {
            self.read_partition(partition, usize::MAX);
            self.read_link(partition);
            self.read_span(partition);
        }
        self.outcome.caught_up = started.elapsed();
        (self.outcome.taken_over, self.outcome.read_again) = (of_member.len() as u32, again);
    }

    /// Measures the memory of all stages: what is returned when they are dropped. Restored copies
    /// take their place.
    fn measure(&mut self) {
        self.outcome.memory =
            [memory_of(&mut self.joins), memory_of(&mut self.link_stages), memory_of(&mut self.assembles)];
    }

    /// Advances the log's time past all timeouts, and counts.
    fn end(&mut self) {
        for _ in 0..3 {
            self.now = LogTime(self.now.0 + 60_000);
            self.events.iter_mut().for_each(|log| log.push(self.now, JoinStage::tick()));
            self.links.iter_mut().for_each(|log| log.push(self.now, LinkStage::tick()));
            self.spans.iter_mut().for_each(|log| log.push(self.now, AssembleStage::tick()));
            self.work();
        }
        for owned in &self.joins {
            let stats = owned.stage.join_stats();
            assert!(stats.balances() && owned.stage.pending() == 0, "{stats:?}");
            assert!(owned.stage.overflows().iter().all(|(_, count)| *count == 0));
        }
        assert!(self.assembles.iter().all(|owned| owned.stage.stats().missed == 0));
        let reader = &self.reader;
        assert_eq!(reader.derived, self.outcome.spans / load::SPANS_OF_CALL);
        self.outcome.lost = self.outcome.spans - reader.found;
        (self.outcome.doubled, self.outcome.misplaced, self.outcome.repeated) =
            (reader.doubled, reader.misplaced, reader.repeated);
    }
}

fn memory_of<S: Stage>(all: &mut [Owned<S>]) -> u64 {
    for owned in all.iter_mut() {
        owned.save();
    }
    let before = in_use();
    // A stage without any state, in its place.
    all.iter_mut().for_each(|owned| owned.empty());
    let freed = before.saturating_sub(in_use());
    for owned in all.iter_mut() {
        owned.take_over();
    }
    freed
}

/// Returns the fragment of a server's trace: a call, its bio and its request.
fn server_fragment() -> TraceFragment {
    let load = Load(Size { nodes: 2, partitions: 1, seconds: 1, calls: 4, names: 1, members: 1 });
    let mut join = Owned::<JoinStage>::new(0, JoinStageConfig::new(1));
    let mut log = Log::default();
    log.push(LogTime(BEGIN), v1::encode(&load.batch(1, 0)));
    let written = join.read(&log, 1);
    let batches = written.iter().map(|(.., bytes)| v1::decode_fragments(bytes).unwrap());
    let mut fragments = batches.flat_map(|batch| batch.fragments);
    fragments.find(|fragment| fragment.remote_link == RemoteLink::PendingParent).expect("a server's trace")
}

/// Returns the bytes that the allocator has given out.
pub(crate) fn in_use() -> u64 {
    // SAFETY: no memory is passed; glibc has it since 2.33.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}

/// A reader of the traces: each number once, as an exporter.
struct Reader {
    next: HashMap<(FragmentOrigin, u32), u64>,
    /// A bit for each span.
    seen: Vec<u64>,
    found: u64,
    doubled: u64,
    misplaced: u64,
    /// Spans that no event has: that of the file system, one for each call.
    derived: u64,
    repeated: u64,
}

impl Reader {
    fn new(spans: u64) -> Reader {
        let seen = vec![0; spans.div_ceil(64) as usize];
        Reader { next: HashMap::new(), seen, found: 0, doubled: 0, misplaced: 0, derived: 0, repeated: 0 }
    }

    fn read(&mut self, partition: u32, bytes: &[u8], load: &Load) {
        let batch = v1::decode_fragments(bytes).unwrap();
        let next = self.next.entry((batch.origin, partition)).or_insert(0);
        assert!(batch.first <= *next, "number {} of {} is missing", *next, batch.origin);
        let known = (*next - batch.first).min(batch.fragments.len() as u64);
        *next += batch.fragments.len() as u64 - known;
        self.repeated += known;
        for span in batch.fragments.iter().skip(known as usize).flat_map(|fragment| &fragment.spans) {
            let Some((index, is_placed)) = load.check(span) else {
                self.derived += 1;
                continue;
            };
            let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
            let is_new = self.seen[word] & bit == 0;
            self.seen[word] |= bit;
            self.found += u64::from(is_new);
            self.doubled += u64::from(!is_new);
            self.misplaced += u64::from(!is_placed);
        }
    }
}
