//! The bounded queue between whoever makes spans and the exporter's thread, and the books of both.
//!
//! *In*: spans that are offered. *Out*: the same spans in the same order, some at a time. *Invariant*: a span is
//! in exactly one place: waiting, in the consumer's hand, sent, or dropped for one reason. The queue and the
//! [`ExportAccounts`] are under one lock, so that the books balance whenever they are read.
//!
//! What the consumer takes it settles, span by span or many at once; what it took and did not settle counts as
//! undeliverable when it comes for more, or is gone.
//!
//! The bound counts waiting spans and those in hand, so that "nothing is lost up to N" is said of one number.
//!
//! *Rejected*: a channel with counters beside it: between the two a span is in neither, or in both, and the
//! books balance only when nothing moves.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blkkin_wire::span::Span;

use crate::delivery::{AfterPause, Ledger, Verdict};
use crate::telemetry::ExportAccounts;

/// Spans that wait while Zipkin is away, unless configured otherwise: what a Zipkin server takes in 0.4 to
/// 1.4 s (46–160 k spans/s), so that a burst passes. A span with a dozen tags is about 1 KiB: 64 MiB in all.
pub const SPANS_MAX: usize = 65_536;

/// What to do with a span that finds the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Wait: for a destination that goes on or fails, but is not away, as a file.
    Block,
    /// Drop it and count it: for a destination that may be away for hours.
    DropNewest,
}

/// What became of spans in the consumer's hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Sent,
    Rejected,
    Undeliverable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more is taken in, the rest is sent.
    Draining,
    /// The time for draining is over.
    Abandoned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consumer {
    Running,
    Gone,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    /// Signalled whenever the state changes: there is one consumer and, as a rule, one producer.
    changed: Condvar,
    spans_max: usize,
    when_full: WhenFull,
}

struct State {
    waiting: VecDeque<Span>,
    in_hand: usize,
    accounts: ExportAccounts,
    phase: Phase,
    consumer: Consumer,
    outage: Option<String>,
    fault: Option<String>,
    /// The file that there is in place of the one asked for.
    left_at: Option<PathBuf>,
}

impl Queue {
    pub(crate) fn new(spans_max: usize, when_full: WhenFull) -> Queue {
        let state = State {
            waiting: VecDeque::new(),
            in_hand: 0,
            accounts: ExportAccounts::default(),
            phase: Phase::Open,
            consumer: Consumer::Running,
            outage: None,
            fault: None,
            left_at: None,
        };
        Queue { state: Mutex::new(state), changed: Condvar::new(), spans_max, when_full }
    }

    /// The producer's side: takes all, or drops, or waits, as [`WhenFull`] says.
    pub(crate) fn offer(&self, spans: Vec<Span>) {
        let mut spans = spans.into_iter();
        let mut state = self.lock();
        loop {
            state.admit(&mut spans, self.spans_max);
            self.changed.notify_all();
            if spans.len() == 0 {
                return;
            }
            match (state.takes_in(), self.when_full) {
                (true, WhenFull::Block) => state = self.wait(state),
                (true, WhenFull::DropNewest) => return state.accounts.drop_full(spans.len()),
                (false, _) => return state.accounts.drop_late(spans.len()),
            }
        }
    }

    /// The consumer's side: up to `most` spans, as soon as there is one; none when there will be none.
    pub(crate) fn take(&self, most: usize) -> Option<Vec<Span>> {
        let mut state = self.lock();
        state.drop_in_hand();
        while state.waiting.is_empty() {
            if state.phase != Phase::Open {
                return None;
            }
            state = self.wait(state);
        }
        state.in_hand = most.min(state.waiting.len());
        let taken = state.in_hand;
        Some(state.waiting.drain(..taken).collect())
    }

    /// Says what became of `spans` of those in hand.
    pub(crate) fn settle(&self, settled: Settled, spans: usize) {
        let mut state = self.lock();
        let spans = spans.min(state.in_hand);
        state.in_hand -= spans;
        *state.accounts.of(settled) += spans as u64;
        self.changed.notify_all();
    }

    /// Of what was settled as sent so much is rejected after all.
    fn recant(&self, spans: u64) {
        let mut state = self.lock();
        let spans = spans.min(state.accounts.sent);
        state.accounts.sent -= spans;
        state.accounts.dropped_rejected += spans;
    }

    /// Waits for `delay`, or until draining begins or is over.
    pub(crate) fn pause(&self, delay: Duration) -> AfterPause {
        let state = self.lock();
        let before = state.phase;
        let same = |s: &mut State| s.phase == before && before != Phase::Abandoned;
        let waited = self.changed.wait_timeout_while(state, delay, same);
        match waited.unwrap_or_else(PoisonError::into_inner).0.phase {
            Phase::Abandoned => AfterPause::GiveUp,
            Phase::Open | Phase::Draining => AfterPause::GoOn,
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().phase == Phase::Abandoned
    }

    pub(crate) fn count_retry(&self) {
        self.lock().accounts.retries += 1;
    }

    /// The destination is away, or is back.
    pub(crate) fn set_outage(&self, outage: Option<String>) {
        self.lock().outage = outage;
    }

    /// Something was lost for good.
    pub(crate) fn set_fault(&self, fault: String) {
        self.lock().fault = Some(fault);
    }

    /// Where spans are while the file that was asked for is not whole; none once it is.
    pub(crate) fn set_left_at(&self, file: Option<PathBuf>) {
        self.lock().left_at = file;
    }

    pub(crate) fn left_at(&self) -> Option<PathBuf> {
        self.lock().left_at.clone()
    }

    /// Something was lost for good, and perhaps it is said already why.
    pub(crate) fn set_fault_if_none(&self, fault: impl FnOnce() -> String) {
        self.lock().fault.get_or_insert_with(fault);
    }

    /// What is wrong now, or went wrong for good.
    pub(crate) fn trouble(&self) -> Option<String> {
        let state = self.lock();
        state.outage.clone().or_else(|| state.fault.clone())
    }

    pub(crate) fn accounts(&self) -> ExportAccounts {
        let state = self.lock();
        ExportAccounts { pending: (state.waiting.len() + state.in_hand) as u64, ..state.accounts }
    }

    /// No more intake; the consumer sends what is left.
    pub(crate) fn drain(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
        self.changed.notify_all();
    }

    /// No more sending either: what waits is undeliverable.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.phase = Phase::Abandoned;
        state.drop_waiting();
        self.changed.notify_all();
    }

    /// What the consumer still holds is undeliverable, whatever it may say later.
    pub(crate) fn seal(&self) {
        self.lock().drop_in_hand();
    }

    /// The consumer's last word.
    pub(crate) fn consumer_gone(&self) {
        let mut state = self.lock();
        state.consumer = Consumer::Gone;
        state.drop_in_hand();
        state.drop_waiting();
        self.changed.notify_all();
    }

    /// Waits until the consumer is gone or is told to give up, at most for `most`.
    pub(crate) fn wait_settled(&self, most: Duration) {
        let running = |s: &mut State| s.consumer == Consumer::Running && s.phase != Phase::Abandoned;
        drop(self.changed.wait_timeout_while(self.lock(), most, running));
    }

    /// Waits until the consumer is gone; false when it is not after `most`.
    pub(crate) fn wait_gone(&self, most: Duration) -> bool {
        let running = |s: &mut State| s.consumer == Consumer::Running;
        let waited = self.changed.wait_timeout_while(self.lock(), most, running);
        waited.unwrap_or_else(PoisonError::into_inner).0.consumer == Consumer::Gone
    }

    // Every change below is complete before anything in it can panic, so a poisoned lock guards a sound state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// The consumer's hand: what it says of its spans the queue books.
pub(crate) struct Hand<'a>(pub(crate) &'a Queue);

impl Ledger for Hand<'_> {
    fn settle(&mut self, range: Range<usize>, verdict: Verdict) {
        match verdict {
            Verdict::Sent => self.0.settle(Settled::Sent, range.len()),
            Verdict::Rejected(why) => {
                self.0.set_fault(why);
                self.0.settle(Settled::Rejected, range.len());
            }
        }
    }

    fn recant(&mut self, spans: u64, why: String) {
        self.0.set_fault(why);
        self.0.recant(spans);
    }

    fn outage(&mut self, why: Option<String>) {
        self.0.set_outage(why);
    }

    fn asks_again_when_denied(&self) -> bool {
        // The person is there, and reads it at the end.
        false
    }

    fn is_over(&self) -> bool {
        self.0.is_abandoned()
    }

    fn pause(&mut self, delay: Duration) -> AfterPause {
        if self.0.pause(delay) == AfterPause::GiveUp {
            return AfterPause::GiveUp;
        }
        self.0.count_retry();
        AfterPause::GoOn
    }
}

impl State {
    fn takes_in(&self) -> bool {
        self.phase == Phase::Open && self.consumer == Consumer::Running
    }

    fn admit(&mut self, spans: &mut std::vec::IntoIter<Span>, spans_max: usize) {
        if self.takes_in() {
            let room = spans_max.saturating_sub(self.waiting.len() + self.in_hand).min(spans.len());
            self.waiting.extend(spans.take(room));
            self.accounts.offered += room as u64;
        }
    }

    fn drop_in_hand(&mut self) {
        self.accounts.dropped_undeliverable += std::mem::take(&mut self.in_hand) as u64;
    }

    fn drop_waiting(&mut self) {
        self.accounts.dropped_undeliverable += self.waiting.len() as u64;
        self.waiting.clear();
    }
}

impl ExportAccounts {
    fn of(&mut self, settled: Settled) -> &mut u64 {
        match settled {
            Settled::Sent => &mut self.sent,
            Settled::Rejected => &mut self.dropped_rejected,
            Settled::Undeliverable => &mut self.dropped_undeliverable,
        }
    }

    fn drop_full(&mut self, spans: usize) {
        self.offered += spans as u64;
        self.dropped_queue_full += spans as u64;
    }

    fn drop_late(&mut self, spans: usize) {
        self.offered += spans as u64;
        self.dropped_undeliverable += spans as u64;
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
