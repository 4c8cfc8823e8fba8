//! The thread that reads the session.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use blkkin_tracer::StopSignal;
use blkkin_ust_bridge::live::follow::{Follower, Step, Target};
use blkkin_ust_bridge::live::reader::{Counts, Settings};
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::operations::{Books, Operations};
use blkkin_ust_bridge::session::keeper::Keeper;
use blkkin_ust_bridge::view::{Gap, View};
use blkkin_ust_bridge::weave::{Exit, Word};
use blkkin_wire::clock::MonotonicNs;

use super::weaving::Words;
use crate::clock;

/// While there is no stream, nothing was said up to so long ago: a program's first buffers are known to the relay some ms after
/// they are made, and before its events are sent; we are told when we ask, which on a machine that has too much to do is later.
const FIRST_HEARD_WITHIN: u64 = 1_000_000_000;
/// What a session that was ended still has must come within.
const REST_WITHIN: Duration = Duration::from_secs(5);
/// How long the streams of other CPUs are waited for: less than batches wait for words, and more than a consumer daemon on a machine
/// that has too much to do is behind.
const WAIT_FOR_STREAMS: Duration = Duration::from_millis(1_500);
/// Between two looks for rings that are stuck.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Remarks kept.
const TROUBLES_MAX: usize = 16;

/// What it did.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(super) books: Books,
    pub(super) counts: Counts,
    /// In words.
    pub(super) troubles: Vec<String>,
}

pub(super) struct Reading {
    keeper: Option<Keeper>,
    follower: Follower,
    mapper: Mapper,
    operations: Operations,
    words: SyncSender<Words>,
    exits: Receiver<Exit>,
    /// Threads that have ended, until all is known that they had said.
    ended: VecDeque<Exit>,
    stop: StopSignal,
    heard: Heard,
    until: MonotonicNs,
    looked: Instant,
}

impl Reading {
    pub(super) fn new(
        keeper: Keeper,
        mapping: Mapping,
        words: SyncSender<Words>,
        exits: Receiver<Exit>,
        stop: StopSignal,
    ) -> Reading {
        Reading {
            follower: follower(&keeper),
            keeper: Some(keeper),
            mapper: Mapper::new(mapping),
            operations: Operations::default(),
            words,
            exits,
            ended: VecDeque::new(),
            stop,
            heard: Heard::default(),
            until: MonotonicNs(0),
            looked: Instant::now(),
        }
    }

    /// Reads until it is told to stop, and then what is left.
    pub(super) fn run(mut self) -> Heard {
        let mut deadline = None;
        loop {
            let (step, words) = self.step();
            self.send(words);
            let (over, pause) = match step {
                Step::Read(pause) | Step::Away(_, pause) => (false, pause),
                Step::Over => (true, Duration::ZERO),
                Step::Gone => {
                    self.trouble("the session was destroyed by somebody else".to_owned());
                    (true, Duration::ZERO)
                }
                Step::Refused(error) => {
                    self.trouble(error.to_string());
                    (true, Duration::ZERO)
                }
            };
            if over || deadline.is_some_and(|deadline| Instant::now() > deadline) {
                break;
            }
            self.replace_what_is_stuck();
            if self.stop.wait(pause) && deadline.is_none() {
                deadline = Some(Instant::now() + REST_WITHIN);
                if let Some(Err(error)) = self.keeper.take().map(Keeper::end) {
                    self.trouble(error.to_string());
                }
            }
        }
        // What waited for its turn, where the session did not come to its end.
        let mut words = self.rest();
        if !self.stop.wait(Duration::ZERO) {
            // Tracing goes on without it: from now on nobody is known to work for anything.
            self.trouble("nothing more is heard of them".to_owned());
            self.operations.lost(self.until.0, u64::MAX, 0, &mut words);
        }
        self.operations.finish(clock::now().0, &mut words);
        self.until = MonotonicNs(u64::MAX);
        self.send(words);
        self.heard.books = *self.operations.books();
        self.heard.counts = self.follower.counts();
        self.heard
    }

    fn step(&mut self) -> (Step, Vec<Word>) {
        let mut words = Vec::new();
        let (mapper, operations) = (&mut self.mapper, &mut self.operations);
        let step = self.follower.step(&mut |view| hear(view, mapper, operations, &mut words));
        if let Some(gap) = self.follower.take_gap() {
            lost(&mut self.operations, gap, &mut words);
        }
        if let Step::Read(_) = step {
            let nobody_yet = clock::now().0.saturating_sub(FIRST_HEARD_WITHIN);
            let until = self.follower.known_until().map_or(nobody_yet, |ns| u64::try_from(ns).unwrap_or(0));
            self.until = self.until.max(MonotonicNs(until));
        }
        self.ended.extend(self.exits.try_iter());
        while let Some(Exit { thread, at, last }) = self.ended.pop_front_if(|exit| exit.at < self.until.0) {
            match last {
                true => self.operations.gone(thread.pid, at, &mut words),
                false => self.operations.ended(thread, at, &mut words),
            }
        }
        for trouble in self.follower.troubles() {
            self.trouble(format!("{}: {}", trouble.stream, trouble.what));
        }
        let misfits: Vec<_> = self.mapper.misfits().map(|misfit| misfit.to_string()).collect();
        misfits.into_iter().for_each(|misfit| self.trouble(misfit));
        (step, words)
    }

    fn send(&mut self, words: Vec<Word>) {
        // Who would hear it is gone only when this process breaks.
        let _ = self.words.send((words, self.until));
    }

    /// A ring that is stuck (see [`blkkin_ust_bridge::session::keeper`]) is replaced with its session.
    fn replace_what_is_stuck(&mut self) {
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = Instant::now();
        let Some(keeper) = &mut self.keeper else { return };
        let long = keeper.plan().silent_max();
        let stuck = self.follower.reader().silent(long).next().is_some();
        if !stuck {
            return;
        }
        let replaced = keeper.replace();
        let said = match &replaced {
            Ok(_) => "a ring was stuck, as its writer was killed: the session was replaced".to_owned(),
            Err(error) => format!("a ring is stuck, and its session cannot be replaced: {error}"),
        };
        let fresh = replaced.is_ok().then(|| follower(keeper));
        if let Some(fresh) = fresh {
            let mut words = self.rest();
            self.operations.lost(self.until.0, clock::now().0, 0, &mut words);
            self.follower = fresh;
            self.send(words);
        }
        self.trouble(said);
    }

    /// All that was read and waited for its turn.
    fn rest(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        let (mapper, operations) = (&mut self.mapper, &mut self.operations);
        self.follower.finish(&mut |view| hear(view, mapper, operations, &mut words));
        words
    }

    fn trouble(&mut self, what: String) {
        let troubles = &mut self.heard.troubles;
        if troubles.len() < TROUBLES_MAX && !troubles.contains(&what) {
            troubles.push(what);
        }
    }
}

fn follower(keeper: &Keeper) -> Follower {
    let target = Target {
        address: keeper.relay().live_address(),
        session: keeper.name().to_owned(),
        settings: Settings { wait_max: WAIT_FOR_STREAMS, ..Settings::default() },
    };
    Follower::new(target)
}

/// An event, behind what was found to be lost before it.
fn hear(view: &View<'_>, mapper: &mut Mapper, operations: &mut Operations, words: &mut Vec<Word>) {
    if let Some(gap) = view.gap {
        lost(operations, gap, words);
    }
    mapper.map(view, &mut |at, fact| operations.take(at, &fact, words));
}

fn lost(operations: &mut Operations, gap: Gap, words: &mut Vec<Word>) {
    let ns = |ns: i64| u64::try_from(ns).unwrap_or(0);
    operations.lost(ns(gap.from_ns), ns(gap.until_ns), gap.events, words);
}
