//! The thread that reads the session.
//!
//! *In*: the session's events, and threads that have ended. *Out*: words for the weaving, with until when all are known. *Invariant*:
//! whatever becomes of the session, tracing goes on. One that somebody has ended, or whose relay is away for [`AWAY_MAX`], is made
//! anew, and that is tried every [`RENEW_EVERY`] until it is done; meanwhile nobody is known to work for anything.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use blkkin_tracer::StopSignal;
use blkkin_ust_bridge::live::follow::{Follower, Step};
use blkkin_ust_bridge::live::reader::Counts;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::operations::{Books, Operations};
use blkkin_ust_bridge::view::{Gap, View};
use blkkin_ust_bridge::weave::{Exit, Word};
use blkkin_wire::clock::MonotonicNs;

use super::session::Session;
use super::shown::Shown;
use super::weaving::Words;
use crate::clock;

/// While there is no stream, nothing was said up to so long ago: a program's first buffers are known to the relay some ms after
/// they are made, and before its events are sent; we are told when we ask, which on a machine that has too much to do is later.
const FIRST_HEARD_WITHIN: u64 = 1_000_000_000;
/// What a session that was ended still has must come within.
const REST_WITHIN: Duration = Duration::from_secs(5);
/// A relay that is away for longer does not come back.
const AWAY_MAX: Duration = Duration::from_secs(10);
/// Between two attempts to make the session anew.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Between two looks while there is none.
const DEAF_PAUSE: Duration = Duration::from_millis(50);
/// A ring is stuck by the end of a process that was writing. That is known from the kernel's side by so much later at the most; where
/// no process ended then, its writer waits for a CPU, or is none of those that are followed: that is told by how long it takes.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
const WAITED_FOR: Duration = Duration::from_secs(10);
/// Between two looks for rings that are stuck.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Remarks kept.
const TROUBLES_MAX: usize = 16;

/// What it did.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(super) books: Books,
    pub(super) counts: Counts,
    /// How often the session was made anew.
    pub(super) renewed: u64,
    /// In words.
    pub(super) troubles: Vec<String>,
}

/// The ends of both ways to the thread that weaves.
pub(super) struct Ways {
    pub(super) words: SyncSender<Words>,
    pub(super) exits: Receiver<Exit>,
}

pub(super) struct Reading {
    session: Session,
    /// None while there is no session.
    follower: Option<Follower>,
    /// Since when its relay is away.
    away: Option<Instant>,
    /// When the session is made anew, while there is none.
    renew_at: Instant,
    mapper: Mapper,
    operations: Operations,
    ways: Ways,
    /// Threads that have ended, until all is known that they had said.
    ended: VecDeque<Exit>,
    /// When a process was last known to have ended.
    exited: Option<Instant>,
    stop: StopSignal,
    heard: Heard,
    shown: Shown,
    until: MonotonicNs,
    looked: Instant,
}

impl Reading {
    pub(super) fn new(
        session: Session,
        mapping: Mapping,
        ways: Ways,
        stop: StopSignal,
        shown: Shown,
    ) -> Reading {
        Reading {
            follower: session.follower(),
            session,
            away: None,
            renew_at: Instant::now(),
            mapper: Mapper::new(mapping),
            operations: Operations::default(),
            ways,
            ended: VecDeque::new(),
            exited: None,
            stop,
            heard: Heard::default(),
            shown,
            until: MonotonicNs(0),
            looked: Instant::now(),
        }
    }

    /// Reads until it is told to stop, and then what is left.
    pub(super) fn run(mut self) -> Heard {
        let mut deadline: Option<Instant> = None;
        loop {
            let pause = if self.follower.is_some() { self.read() } else { self.renew() };
            if deadline.is_some_and(|deadline| self.follower.is_none() || Instant::now() > deadline) {
                break;
            }
            self.replace_what_is_stuck();
            self.show();
            if self.stop.wait(pause) && deadline.is_none() {
                deadline = Some(Instant::now() + REST_WITHIN);
                if let Err(error) = self.session.end() {
                    self.trouble(error.to_string());
                }
            }
        }
        // What waited for its turn, where the session did not come to its end.
        let mut words = self.leave();
        self.operations.finish(clock::now().0, &mut words);
        self.until = MonotonicNs(u64::MAX);
        self.send(words);
        self.show();
        self.heard
    }

    /// A round; how long until the next.
    fn read(&mut self) -> Duration {
        let (step, words) = self.step();
        self.send(words);
        let why = match step {
            Step::Read(pause) => {
                self.away = None;
                return pause;
            }
            Step::Away(error, pause) => {
                if self.away.get_or_insert_with(Instant::now).elapsed() < AWAY_MAX {
                    return pause;
                }
                error.to_string()
            }
            // As it was asked to.
            Step::Over if self.stop.is_given() => {
                let words = self.leave();
                self.send(words);
                return Duration::ZERO;
            }
            Step::Over | Step::Gone => "the session was destroyed by somebody else".to_owned(),
            Step::Refused(error) => error.to_string(),
        };
        self.trouble(why);
        let mut words = self.leave();
        // What threads leave from now on is not heard.
        self.operations.lost(self.until.0, clock::now().0, 0, &mut words);
        self.send(words);
        self.renew_at = Instant::now();
        Duration::ZERO
    }

    /// Makes the session anew, when it is time to; how long until the next look.
    fn renew(&mut self) -> Duration {
        // Calls are not kept waiting for somebody who says nothing.
        self.until = self.until.max(clock::now());
        self.send(Vec::new());
        if Instant::now() < self.renew_at || self.stop.is_given() {
            return DEAF_PAUSE;
        }
        match self.session.renew() {
            Ok(()) => {
                self.follower = self.session.follower();
                self.heard.renewed += 1;
            }
            Err(error) => self.trouble(error.to_string()),
        }
        (self.renew_at, self.away) = (Instant::now() + RENEW_EVERY, None);
        Duration::ZERO
    }

    fn step(&mut self) -> (Step, Vec<Word>) {
        let mut words = Vec::new();
        let Some(follower) = &mut self.follower else { return (Step::Gone, words) };
        let (mapper, operations) = (&mut self.mapper, &mut self.operations);
        let step = follower.step(&mut |view| hear(view, mapper, operations, &mut words));
        if let Some(gap) = follower.take_gap() {
            lost(operations, gap, &mut words);
        }
        if let Step::Read(_) = step {
            let nobody_yet = clock::now().0.saturating_sub(FIRST_HEARD_WITHIN);
            let until = follower.known_until().map_or(nobody_yet, |ns| u64::try_from(ns).unwrap_or(0));
            self.until = self.until.max(MonotonicNs(until));
        }
        for exit in self.ways.exits.try_iter() {
            if exit.last {
                self.exited = Some(Instant::now());
            }
            self.ended.push_back(exit);
        }
        while let Some(Exit { thread, at, last }) = self.ended.pop_front_if(|exit| exit.at < self.until.0) {
            match last {
                true => self.operations.gone(thread.process(), at, &mut words),
                false => self.operations.ended(thread, at, &mut words),
            }
        }
        let troubles = self.follower.as_mut().map(Follower::troubles).unwrap_or_default();
        for trouble in troubles {
            self.trouble(format!("{}: {}", trouble.stream, trouble.what));
        }
        let misfits: Vec<_> = self.mapper.misfits().map(|misfit| misfit.to_string()).collect();
        misfits.into_iter().for_each(|misfit| self.trouble(misfit));
        (step, words)
    }

    fn send(&mut self, words: Vec<Word>) {
        // Who would hear it is gone only when this process breaks.
        let _ = self.ways.words.send((words, self.until));
    }

    /// A ring that is stuck (see [`blkkin_ust_bridge::session::keeper`]) is replaced with its session.
    fn replace_what_is_stuck(&mut self) {
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = Instant::now();
        let (Some(keeper), Some(follower)) = (self.session.keeper(), &self.follower) else { return };
        let long = stuck_after(self.exited.map(|exited| exited.elapsed()), keeper.plan().silent_max());
        if follower.reader().silent(long).next().is_none() {
            return;
        }
        let said = match keeper.replace() {
            Ok(_) => {
                let fresh = self.session.follower();
                let mut words = self.leave();
                self.operations.lost(self.until.0, clock::now().0, 0, &mut words);
                self.follower = fresh;
                self.send(words);
                "a ring was stuck, as its writer was killed: the session was replaced".to_owned()
            }
            Err(error) => format!("a ring is stuck, and its session cannot be replaced: {error}"),
        };
        self.trouble(said);
    }

    /// Lets go of what is followed: all that was read and waited for its turn.
    fn leave(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        let Some(mut follower) = self.follower.take() else { return words };
        let (mapper, operations) = (&mut self.mapper, &mut self.operations);
        follower.finish(&mut |view| hear(view, mapper, operations, &mut words));
        self.heard.counts = self.heard.counts.plus(follower.counts());
        words
    }

    fn show(&mut self) {
        self.heard.books = *self.operations.books();
        let now = self.follower.as_ref().map(Follower::counts).unwrap_or_default();
        self.shown.heard(self.heard.counts.plus(now), self.heard.renewed);
    }

    fn trouble(&mut self, what: String) {
        let troubles = &mut self.heard.troubles;
        if troubles.len() < TROUBLES_MAX && !troubles.contains(&what) {
            self.shown.say(&what);
            troubles.push(what);
        }
    }
}

/// How long a ring that says nothing is not stuck, where a process has ended so long ago: it has to have fallen silent then.
fn stuck_after(exited: Option<Duration>, least: Duration) -> Duration {
    let since = exited.map_or(WAITED_FOR, |exited| exited.saturating_sub(KNOWN_WITHIN));
    since.max(least).min(WAITED_FOR)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_stuck_when_it_fell_silent_as_a_process_ended_or_for_long() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        // A writer that waits for a CPU, and nobody has ended.
        assert_eq!(stuck_after(None, s(1)), s(10));
        // Somebody has, just now: it is known after the least time.
        assert_eq!(stuck_after(Some(ms(20)), s(1)), s(1));
        assert_eq!(stuck_after(Some(ms(1_900)), s(1)), s(1));
        // 5 s ago: who fell silent 2 s ago did not so by that.
        assert_eq!(stuck_after(Some(s(5)), s(1)), s(4));
        assert_eq!(stuck_after(Some(s(3_600)), s(1)), s(10));
    }
}
