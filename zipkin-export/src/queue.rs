//! Bounded queue between producers of spans and the exporter's thread, with the counters of both.
//!
//! *In*: offered spans. *Out*: the same spans in the same order, in batches. *Invariant*: a span is
//! in exactly one state: waiting, in flight, sent, or dropped for one reason. The queue and the
//! [`ExportStats`] share one lock, so the counters always balance.
//!
//! The consumer settles the spans that it takes, individually or in ranges. Spans taken and not
//! settled are undeliverable when it takes more, or ends.
//!
//! The limit covers waiting and in-flight spans, so "no loss up to N spans" refers to one number.
//!
//! *Rejected*: a channel with separate counters. Between the two a span would be in neither or in
//! both, and the counters would balance only at rest.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blkkin_wire::span::Span;

use crate::delivery::{DeliveryObserver, DeliveryResult, RetryDecision};
use crate::stats::ExportStats;

/// Default limit of queued spans while Zipkin is unreachable: 0.4 to 1.4 s of a Zipkin server's
/// throughput (46–160 k spans/s), enough for a burst. A span with a dozen tags is about 1 KiB: 64
/// MiB in total.
pub const SPANS_MAX: usize = 65_536;

/// Policy for a span that finds the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Wait: for a destination that progresses or fails but is never unreachable, such as a file.
    Block,
    /// Drop and count it: for a destination that can be unreachable for hours.
    DropNewest,
}

/// Outcome of spans in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanOutcome {
    Sent,
    Rejected,
    Undeliverable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// No intake; remaining spans are sent.
    Draining,
    /// The drain deadline has passed.
    Abandoned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consumer {
    Running,
    Gone,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    /// Signalled at each state change: there is one consumer and, as a rule, one producer.
    changed: Condvar,
    spans_max: usize,
    when_full: WhenFull,
}

struct State {
    waiting: VecDeque<Span>,
    in_flight: usize,
    stats: ExportStats,
    phase: Phase,
    consumer: Consumer,
    outage: Option<String>,
    fault: Option<String>,
    /// Partial file in place of the requested one.
    partial_path: Option<PathBuf>,
}

impl Queue {
    pub(crate) fn new(spans_max: usize, when_full: WhenFull) -> Queue {
        let state = State {
            waiting: VecDeque::new(),
            in_flight: 0,
            stats: ExportStats::default(),
            phase: Phase::Open,
            consumer: Consumer::Running,
            outage: None,
            fault: None,
            partial_path: None,
        };
        Queue { state: Mutex::new(state), changed: Condvar::new(), spans_max, when_full }
    }

    /// Enqueues spans: accepts, drops, or waits, as [`WhenFull`] specifies.
    pub(crate) fn offer(&self, spans: Vec<Span>) {
        let mut spans = spans.into_iter();
        let mut state = self.lock();
        loop {
            state.admit(&mut spans, self.spans_max);
            self.changed.notify_all();
            if spans.len() == 0 {
                return;
            }
            match (state.is_open(), self.when_full) {
                (true, WhenFull::Block) => state = self.wait(state),
                (true, WhenFull::DropNewest) => return state.stats.drop_full(spans.len()),
                (false, _) => return state.stats.drop_after_end(spans.len()),
            }
        }
    }

    /// Takes up to `most` spans as soon as there is one; returns none when there will be none.
    pub(crate) fn take(&self, most: usize) -> Option<Vec<Span>> {
        let mut state = self.lock();
        state.drop_in_flight();
        while state.waiting.is_empty() {
            if state.phase != Phase::Open {
                return None;
            }
            state = self.wait(state);
        }
        state.in_flight = most.min(state.waiting.len());
        let taken = state.in_flight;
        Some(state.waiting.drain(..taken).collect())
    }

    /// Records the outcome of `spans` in-flight spans.
    pub(crate) fn settle(&self, settled: SpanOutcome, spans: usize) {
        let mut state = self.lock();
        let spans = spans.min(state.in_flight);
        state.in_flight -= spans;
        *state.stats.of(settled) += spans as u64;
        self.changed.notify_all();
    }

    /// Moves `spans` spans from sent to rejected.
    fn mark_rejected(&self, spans: u64) {
        let mut state = self.lock();
        let spans = spans.min(state.stats.sent);
        state.stats.sent -= spans;
        state.stats.dropped_rejected += spans;
    }

    /// Waits for `delay`, or until draining begins or ends.
    pub(crate) fn pause(&self, delay: Duration) -> RetryDecision {
        let state = self.lock();
        let before = state.phase;
        let same = |s: &mut State| s.phase == before && before != Phase::Abandoned;
        let result = self.changed.wait_timeout_while(state, delay, same);
        match result.unwrap_or_else(PoisonError::into_inner).0.phase {
            Phase::Abandoned => RetryDecision::GiveUp,
            Phase::Open | Phase::Draining => RetryDecision::Continue,
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().phase == Phase::Abandoned
    }

    pub(crate) fn count_retry(&self) {
        self.lock().stats.retries += 1;
    }

    /// Records that the destination is unreachable, or with `None` that it is back.
    pub(crate) fn set_outage(&self, outage: Option<String>) {
        self.lock().outage = outage;
    }

    /// Records a permanent loss.
    pub(crate) fn set_fault(&self, fault: String) {
        self.lock().fault = Some(fault);
    }

    /// Sets the partial file while the requested file is incomplete; none once it is complete.
    pub(crate) fn set_partial_path(&self, file: Option<PathBuf>) {
        self.lock().partial_path = file;
    }

    pub(crate) fn partial_path(&self) -> Option<PathBuf> {
        self.lock().partial_path.clone()
    }

    /// Records a permanent loss, unless its reason is already recorded.
    pub(crate) fn set_fault_if_none(&self, fault: impl FnOnce() -> String) {
        self.lock().fault.get_or_insert_with(fault);
    }

    /// Returns the current outage, or the last permanent loss.
    pub(crate) fn last_error(&self) -> Option<String> {
        let state = self.lock();
        state.outage.clone().or_else(|| state.fault.clone())
    }

    pub(crate) fn stats(&self) -> ExportStats {
        let state = self.lock();
        ExportStats { pending: (state.waiting.len() + state.in_flight) as u64, ..state.stats }
    }

    /// Stops the intake; the consumer sends the remaining spans.
    pub(crate) fn drain(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
        self.changed.notify_all();
    }

    /// Stops sending too: waiting spans are undeliverable.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.phase = Phase::Abandoned;
        state.drop_waiting();
        self.changed.notify_all();
    }

    /// Marks in-flight spans as undeliverable, whatever the consumer reports later.
    pub(crate) fn seal(&self) {
        self.lock().drop_in_flight();
    }

    /// Records the end of the consumer.
    pub(crate) fn consumer_gone(&self) {
        let mut state = self.lock();
        state.consumer = Consumer::Gone;
        state.drop_in_flight();
        state.drop_waiting();
        self.changed.notify_all();
    }

    /// Waits up to `most` until the consumer has ended or has to give up.
    pub(crate) fn wait_settled(&self, most: Duration) {
        let running = |s: &mut State| s.consumer == Consumer::Running && s.phase != Phase::Abandoned;
        drop(self.changed.wait_timeout_while(self.lock(), most, running));
    }

    /// Waits until the consumer has ended; returns false if it has not after `most`.
    pub(crate) fn wait_gone(&self, most: Duration) -> bool {
        let running = |s: &mut State| s.consumer == Consumer::Running;
        let result = self.changed.wait_timeout_while(self.lock(), most, running);
        result.unwrap_or_else(PoisonError::into_inner).0.consumer == Consumer::Gone
    }

    // Each change below completes before it can panic, so a poisoned lock guards a consistent
    // state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Observer of a delivery that records results of in-flight spans in the queue.
pub(crate) struct QueueObserver<'a>(pub(crate) &'a Queue);

impl DeliveryObserver for QueueObserver<'_> {
    fn settle(&mut self, range: Range<usize>, verdict: DeliveryResult) {
        match verdict {
            DeliveryResult::Sent => self.0.settle(SpanOutcome::Sent, range.len()),
            DeliveryResult::Rejected(why) => {
                self.0.set_fault(why);
                self.0.settle(SpanOutcome::Rejected, range.len());
            }
        }
    }

    fn mark_rejected(&mut self, spans: u64, why: String) {
        self.0.set_fault(why);
        self.0.mark_rejected(spans);
    }

    fn on_outage(&mut self, why: Option<String>) {
        self.0.set_outage(why);
    }

    fn retries_when_denied(&self) -> bool {
        // The user is present and reads the error at the end.
        false
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_abandoned()
    }

    fn pause(&mut self, delay: Duration) -> RetryDecision {
        if self.0.pause(delay) == RetryDecision::GiveUp {
            return RetryDecision::GiveUp;
        }
        self.0.count_retry();
        RetryDecision::Continue
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.consumer == Consumer::Running
    }

    fn admit(&mut self, spans: &mut std::vec::IntoIter<Span>, spans_max: usize) {
        if self.is_open() {
            let room = spans_max.saturating_sub(self.waiting.len() + self.in_flight).min(spans.len());
            self.waiting.extend(spans.take(room));
            self.stats.offered += room as u64;
        }
    }

    fn drop_in_flight(&mut self) {
        self.stats.dropped_undeliverable += std::mem::take(&mut self.in_flight) as u64;
    }

    fn drop_waiting(&mut self) {
        self.stats.dropped_undeliverable += self.waiting.len() as u64;
        self.waiting.clear();
    }
}

impl ExportStats {
    fn of(&mut self, settled: SpanOutcome) -> &mut u64 {
        match settled {
            SpanOutcome::Sent => &mut self.sent,
            SpanOutcome::Rejected => &mut self.dropped_rejected,
            SpanOutcome::Undeliverable => &mut self.dropped_undeliverable,
        }
    }

    fn drop_full(&mut self, spans: usize) {
        self.offered += spans as u64;
        self.dropped_queue_full += spans as u64;
    }

    fn drop_after_end(&mut self, spans: usize) {
        self.offered += spans as u64;
        self.dropped_undeliverable += spans as u64;
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
