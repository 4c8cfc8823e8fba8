//! What the kernel saw and what its daemons said, put together: each call below the operation that it was made for.
//!
//! *In*: a tracer's batches, in their order; what came of facts ([`Word`]s), in order of time, and until when all of them are known.
//! *Out*: the same batches, some ms later, in which calls name the operation that their thread worked for, and with them the
//! operations that had ended by then.
//!
//! *Invariant*: of the kernel's events none is lost, doubled or changed but for that name; and a call names an operation only where all
//! that its thread had said by its return is known. One clock is both streams' (CLOCK_MONOTONIC), so their times are one order. See
//! [`crate::operations`] for why this is enough and what a loss does.
//!
//! A batch waits until facts are known up to its watermark: a live timer's length, and the network's. When that takes longer than
//! [`HOLD_MAX`] it goes on without, and its calls that return after what is known name nothing ([`WeaveBooks::calls_unjudged`]).
//!
//! *Whose number.* A daemon in a container says the numbers of its own pid namespace, which are others' outside of it. The kernel's side
//! says of each task both what it is called there and in which namespace, so the two meet by (namespace, process, thread), and by no
//! number alone. Operations are given out under the numbers of the machine, as calls are.
//! *Rejected*: to translate by /proc/PID/status (NSpid): who has ended is not there any more, and its number may be another's by then.
//!
//! *Two words about one call.* A thread that publishes what it works for is believed about its call: the kernel's side has read that at the
//! call itself. What it says in events tells besides whether this is an operation of this node, which the call is then a part of.
//! Where the two differ the published one counts, and that they do is counted ([`WeaveBooks::calls_contradicted`]).
//!
//! *Rejected*: to leave it to the aggregator. It would have to hold every call of every node until that node's daemons were heard;
//! here both streams are at hand, and what leaves the node is said once.

mod called;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::SpanStatus;
use blkkin_wire::event::{ContextSource, LayerEvent, SyscallEvent, TaskChange, TraceContext};
use blkkin_wire::ids::{SpanId, TaskId, TraceId};

use crate::operations::{Above, Process, Thread, Told};
use called::{Called, Outer};

/// How long a batch waits to be put together with facts. ns. A live timer is some ms; beyond this something is wrong there.
pub const HOLD_MAX: u64 = 2_000_000_000;
/// Events of batches that wait; beyond it the first of these goes. Some 40 MiB.
const HELD_MAX: usize = 262_144;
/// Tasks whose numbers are known. The tracer says when one ends.
const TASKS_MAX: usize = 262_144;

/// Operations that are remembered as such: the last so many that began, or that threads were said to work for, and up to as many before.
const OPERATIONS_MAX: usize = 65_536;

/// Something that came of facts.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly all are events: a box would only add an allocation")]
pub enum Word {
    /// An operation of this process, or an end of a request. Process and thread of the operation are its own numbers for itself.
    Event(Process, LayerEvent),
    /// An operation of this node began then.
    Began(MonotonicNs, TraceId, SpanId),
    /// From then on the thread works for this.
    Works(MonotonicNs, Thread, Option<Above>),
    /// From then on it is not known what anybody works for.
    Nobody(MonotonicNs),
}

impl Word {
    fn at(&self) -> MonotonicNs {
        match self {
            Word::Event(_, event) => event.time(),
            Word::Began(at, ..) | Word::Works(at, ..) | Word::Nobody(at) => *at,
        }
    }
}

/// Takes them in the order in which they are told.
impl Told for Vec<Word> {
    fn event(&mut self, process: Process, event: LayerEvent) {
        self.push(Word::Event(process, event));
    }
    fn began(&mut self, at: MonotonicNs, trace: TraceId, span: SpanId) {
        self.push(Word::Began(at, trace, span));
    }
    fn works(&mut self, at: MonotonicNs, thread: Thread, above: Option<Above>) {
        self.push(Word::Works(at, thread, above));
    }
    fn nobody(&mut self, at: MonotonicNs) {
        self.push(Word::Nobody(at));
    }
}

/// A thread that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Which.
    pub thread: Thread,
    /// When.
    pub at: u64,
    /// It was the last of its process that is known.
    pub last: bool,
}

/// What became of calls and batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeaveBooks {
    /// Calls of threads that worked for an operation.
    pub calls_linked: u64,
    /// Of them those that are exact: the thread published the operation.
    pub calls_exact: u64,
    /// Calls of threads that published one thing and said another in events: what was published counts.
    pub calls_contradicted: u64,
    /// Calls of which nobody knows it, as facts were late.
    pub calls_unjudged: u64,
    /// Of what was said of threads, what came when all until then was taken to be known: calls were judged without it.
    pub words_late: u64,
    /// Batches that went on before facts were known up to their end.
    pub batches_unwaited: u64,
    /// Operations given out.
    pub operations: u64,
    /// Of them without an end.
    pub operations_unfinished: u64,
    /// Of them those of another pid namespace that the kernel's side has no name for: they have no process here, and nothing is below them.
    pub operations_elsewhere: u64,
    /// Of them behind the watermark of an earlier batch that had gone on unwaited. Each is whole by itself, so only its place in
    /// the order is lost.
    pub operations_late: u64,
    /// Operations left out, as their process is none of those that are followed.
    pub operations_of_others: u64,
}

/// The state of one node.
#[derive(Debug, Default)]
pub struct Weave {
    words: VecDeque<Word>,
    /// Facts are known until then.
    known: MonotonicNs,
    threads: HashMap<Thread, Above>,
    /// Of late, and before that.
    operations: [HashMap<SpanId, TraceId>; 2],
    /// With when each was forked, where that was seen.
    tasks: HashMap<TaskId, (Called, MonotonicNs)>,
    /// Tasks of each process.
    processes: HashMap<Process, u32>,
    outer: Outer,
    /// Only of processes that the tracer has named, which are these; none where everybody is followed. Their operations are given
    /// out after their end, too.
    named: Option<HashSet<Process>>,
    exits: Vec<Exit>,
    /// With when each came, by the caller's clock.
    held: VecDeque<(EventBatch, u64)>,
    held_events: usize,
    /// Of batches that are gone, events beyond their watermark: what is earlier may come in the next.
    early: Vec<LayerEvent>,
    /// The watermark of the last batch given out.
    given: MonotonicNs,
    /// The last batch without its events.
    last: Option<EventBatch>,
    books: WeaveBooks,
}

impl Weave {
    /// Of processes that the tracer names: LTTng's sessions are of a user, and others' daemons speak in them as well.
    pub fn of_followed() -> Weave {
        Weave { named: Some(HashSet::new()), ..Weave::default() }
    }

    /// Takes in what came of facts; all of them are known until `until`.
    pub fn hear(&mut self, words: impl IntoIterator<Item = Word>, until: MonotonicNs) {
        let known = self.known;
        let words = words.into_iter().inspect(|word| {
            let works = matches!(word, Word::Works(..));
            self.books.words_late += u64::from(works && word.at() < known);
        });
        self.words.extend(words);
        self.known = self.known.max(until);
    }

    /// Takes in the tracer's next batch, which came at `now`, in ns of any clock.
    pub fn take(&mut self, batch: EventBatch, now: u64) {
        self.held_events += batch.events.len();
        self.held.push_back((batch, now));
    }

    /// Gives out the next batch whose facts are known, or that has waited long enough at `now`.
    pub fn next(&mut self, now: u64) -> Option<EventBatch> {
        let (batch, came) = self.held.front()?;
        let known = batch.watermark <= self.known;
        let over = now.saturating_sub(*came) > HOLD_MAX || self.held_events > HELD_MAX;
        if !known && !over {
            return None;
        }
        self.books.batches_unwaited += u64::from(!known);
        let (batch, _) = self.held.pop_front()?;
        self.held_events -= batch.events.len();
        let until = batch.watermark;
        Some(self.weave(batch, until))
    }

    /// Nothing more will come, of neither: gives out what is held, and one batch more if there is more to say.
    pub fn finish(&mut self) -> Vec<EventBatch> {
        let mut all = Vec::new();
        self.known = MonotonicNs(u64::MAX);
        while let Some((batch, _)) = self.held.pop_front() {
            let until = batch.watermark;
            all.push(self.weave(batch, until));
        }
        if (!self.words.is_empty() || !self.early.is_empty())
            && let Some(last) = self.last.take()
        {
            let more = EventBatch { sequence: last.sequence + 1, crashed_runs: Vec::new(), ..last };
            all.push(self.weave(more, MonotonicNs(u64::MAX)));
        }
        all
    }

    /// Threads that have ended since it was last asked.
    pub fn take_exits(&mut self) -> impl Iterator<Item = Exit> + '_ {
        self.exits.drain(..)
    }

    /// What became of calls and batches.
    pub fn books(&self) -> &WeaveBooks {
        &self.books
    }

    fn weave(&mut self, mut batch: EventBatch, until: MonotonicNs) -> EventBatch {
        let mut events = std::mem::take(&mut self.early);
        events.append(&mut batch.events);
        self.last = Some(EventBatch { events: Vec::new(), ..batch.clone() });
        // In order already, but for those beyond the last watermark.
        events.sort_by_key(LayerEvent::time);
        let within = events.partition_point(|event| event.time() <= until);
        self.early = events.split_off(within);
        batch.events.reserve(events.len());
        for mut event in events {
            self.until(event.time(), &mut batch.events);
            match &mut event {
                LayerEvent::Task(task) => {
                    let called = Called::of(task);
                    if let Some(named) = &mut self.named
                        && named.len() < TASKS_MAX
                    {
                        named.insert(called.own().process());
                    }
                    if task.change == TaskChange::Exited {
                        self.ended(task.task.id, task.time);
                    } else if let Some((known, _)) = self.tasks.get_mut(&task.task.id) {
                        *known = called;
                    } else if self.tasks.len() < TASKS_MAX {
                        let forked = task.change == TaskChange::Forked;
                        let born = if forked { task.time } else { MonotonicNs(0) };
                        self.tasks.insert(task.task.id, (called, born));
                        *self.processes.entry(called.own().process()).or_default() += 1;
                    }
                    let born = self.tasks.get(&task.task.id).map(|(_, born)| *born);
                    self.outer.learn(task, born);
                }
                LayerEvent::Syscall(call) => self.link(call),
                _ => {}
            }
            batch.events.push(event);
        }
        self.until(until, &mut batch.events);
        self.given = until;
        batch
    }

    fn is_others(&self, process: Process) -> bool {
        self.named.as_ref().is_some_and(|named| !named.contains(&process))
    }

    fn ended(&mut self, task: TaskId, at: MonotonicNs) {
        let Some((called, _)) = self.tasks.remove(&task) else { return };
        for name in called.names() {
            self.threads.remove(&name);
        }
        let thread = called.own();
        let left = self.processes.get_mut(&thread.process());
        let last = left.is_none_or(|left| {
            *left -= 1;
            *left == 0
        });
        if last {
            self.processes.remove(&thread.process());
        }
        self.exits.push(Exit { thread, at: at.0, last });
    }

    /// Believes all words until then.
    fn until(&mut self, time: MonotonicNs, events: &mut Vec<LayerEvent>) {
        while let Some(word) = self.words.pop_front_if(|word| word.at() <= time) {
            match word {
                Word::Event(process, event) if self.is_others(process) => {
                    self.books.operations_of_others += u64::from(matches!(event, LayerEvent::DaemonSpan(_)));
                }
                Word::Event(process, mut event) => {
                    if let LayerEvent::DaemonSpan(operation) = &mut event {
                        let known = self.outer.name(operation, process);
                        self.books.operations_elsewhere += u64::from(!known);
                    }
                    let operation = matches!(event, LayerEvent::DaemonSpan(_));
                    self.books.operations_unfinished += u64::from(is_unfinished(&event));
                    self.books.operations += u64::from(operation);
                    self.books.operations_late += u64::from(operation && event.time() < self.given);
                    events.push(event);
                }
                Word::Began(_, trace, span) => self.remember(trace, span),
                Word::Works(_, thread, Some(above)) => {
                    self.threads.insert(thread, above);
                    // Once more: it may have begun long ago.
                    self.remember(above.trace, above.span);
                }
                Word::Works(_, thread, None) => drop(self.threads.remove(&thread)),
                Word::Nobody(_) => self.threads.clear(),
            }
        }
    }

    fn remember(&mut self, trace: TraceId, span: SpanId) {
        if self.operations[0].len() >= OPERATIONS_MAX {
            self.operations[1] = std::mem::take(&mut self.operations[0]);
        }
        self.operations[0].insert(span, trace);
    }

    fn link(&mut self, call: &mut SyscallEvent) {
        let said = if call.exit > self.known { None } else { self.said(call.task.id) };
        if let Some(published) = &mut call.context {
            let same = |above: Above| (above.trace, above.span) == (published.trace, published.span);
            self.books.calls_contradicted += u64::from(said.is_some_and(|above| !same(above)));
            if self.operations.iter().any(|known| known.get(&published.span) == Some(&published.trace)) {
                published.source = ContextSource::Both;
                self.books.calls_linked += 1;
                self.books.calls_exact += 1;
            }
            return;
        }
        if call.exit > self.known {
            self.books.calls_unjudged += 1;
            return;
        }
        call.context = said.map(|above| {
            self.books.calls_linked += 1;
            TraceContext { trace: above.trace, span: above.span, flags: 0, source: ContextSource::DaemonSpan }
                .into()
        });
    }

    /// What a task's thread has said last that it works for.
    fn said(&self, task: TaskId) -> Option<Above> {
        if self.threads.is_empty() {
            return None;
        }
        let (called, born) = self.tasks.get(&task)?;
        let above = called.names().find_map(|name| self.threads.get(&name));
        above.filter(|above| above.since >= *born).copied()
    }
}

fn is_unfinished(event: &LayerEvent) -> bool {
    matches!(event, LayerEvent::DaemonSpan(operation) if operation.status == SpanStatus::Unfinished)
}
