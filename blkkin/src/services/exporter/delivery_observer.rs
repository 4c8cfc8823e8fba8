//! The exporter's reaction to each delivery verdict, and to waits.
//!
//! *In*: verdicts on the spans in flight. *Out*: counters, and records in `blkkin.dead`.
//! *Invariant*: a refused span is in `blkkin.dead` before the delivery continues. While the
//! delivery waits, it keeps the group membership ([`TraceConsumer::poll_paused`]). If partitions
//! are revoked meanwhile, the delivery aborts, because the spans in flight belong to them.

use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use blkkin_bus::kafka::{DeadLetter, DeadLetters, KafkaError, TraceConsumer};
use blkkin_zipkin_export::backoff::{Backoff, Jitter};
use blkkin_zipkin_export::{Attempt, DeliveryObserver, DeliveryResult, RetryDecision};

use super::deadline::StopDeadline;
use super::pending_spans::PendingSpans;
use super::status::{DestinationStatus, OutageChange, Peer};

/// Interval of checks for a stop request.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A callback that reports a status to the operator.
pub(super) type Notify = Box<dyn Fn(String) + Send>;

/// A batch of spans in delivery.
pub(super) struct InFlightBatch<'a> {
    pub(super) pending: &'a PendingSpans,
    pub(super) consumer: &'a mut TraceConsumer,
    pub(super) dead: &'a DeadLetters,
    pub(super) stop: &'a StopDeadline,
    pub(super) status: &'a DestinationStatus,
    pub(super) notify: &'a Notify,
    /// Spans with a verdict.
    pub(super) settled: usize,
    /// The reason why the delivery was aborted.
    pub(super) aborted: Option<DeliveryAbort>,
}

/// The reason for an aborted delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeliveryAbort {
    /// The shutdown deadline passed.
    Stopped,
    /// Partitions were revoked.
    Revoked,
    /// The group membership is lost.
    Lost(KafkaError),
}

impl InFlightBatch<'_> {
    /// Sends a dead letter, with retries.
    pub(super) fn send_to_dlq(&mut self, dead_letter: &DeadLetter) -> RetryDecision {
        let mut failures = 0;
        while !self.is_cancelled() {
            let sent = self.dead.send(dead_letter);
            self.status.heartbeat.beat();
            let why = sent.as_ref().err().map(ToString::to_string);
            let outage = self.status.outage(Peer::DeadLetterTopic, why);
            let Err(error) = sent else { return RetryDecision::Continue };
            if outage == OutageChange::Began {
                (self.notify)(format!("{error}; {}; retrying until the record is stored", error.remedy));
            }
            failures += 1;
            if self.pause(Backoff::default().delay(failures, Jitter::random())) == RetryDecision::GiveUp {
                break;
            }
        }
        self.end(DeliveryAbort::Stopped)
    }

    fn end(&mut self, why: DeliveryAbort) -> RetryDecision {
        self.aborted.get_or_insert(why);
        RetryDecision::GiveUp
    }
}

impl DeliveryObserver for InFlightBatch<'_> {
    fn settle(&mut self, range: Range<usize>, verdict: DeliveryResult) {
        match verdict {
            DeliveryResult::Sent => {
                let mut stats = self.status.stats();
                stats.delivered += range.len() as u64;
                stats.acknowledged_at = Some(SystemTime::now());
                self.settled += range.len();
            }
            DeliveryResult::Rejected(why) => {
                self.status.stats().rejected += range.len() as u64;
                for index in range {
                    let Some(dead_letter) = self.pending.dead_letter(index, &self.status.name, &why) else {
                        continue;
                    };
                    if self.send_to_dlq(&dead_letter) == RetryDecision::GiveUp {
                        return;
                    }
                    self.status.stats().dead_lettered += 1;
                    self.settled += 1;
                }
            }
        }
    }

    fn mark_rejected(&mut self, spans: u64, why: String) {
        let mut stats = self.status.stats();
        stats.delivered = stats.delivered.saturating_sub(spans);
        stats.not_taken += spans;
        drop(stats);
        if let Some(suppressed) = self.status.not_taken_lines.pass() {
            (self.notify)(format!(
                "{} did not accept {spans} spans, without naming them: {why}{suppressed}",
                self.status.name
            ));
        }
    }

    fn on_attempt(&mut self, attempt: Attempt) {
        self.status.heartbeat.beat();
        self.status.stats().attempted(attempt);
    }

    /// Logs the begin and the end of an outage, once each.
    fn on_outage(&mut self, why: Option<String>) {
        match (self.status.outage(Peer::Destination, why.clone()), why) {
            (OutageChange::Began, Some(why)) => {
                (self.notify)(format!("{why}; retrying until it answers, spans stay in the topic meanwhile"))
            }
            (OutageChange::Ended(after), _) => {
                (self.notify)(format!("{} answers again after {} s", self.status.name, after.as_secs()));
            }
            _ => {}
        }
    }

    fn retries_when_denied(&self) -> bool {
        true
    }

    fn is_cancelled(&self) -> bool {
        self.aborted.is_some() || self.stop.is_over()
    }

    fn pause(&mut self, delay: Duration) -> RetryDecision {
        let until = Instant::now() + delay;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.stop.is_over() {
                return self.end(DeliveryAbort::Stopped);
            }
            if left.is_zero() {
                return RetryDecision::Continue;
            }
            self.status.heartbeat.beat();
            match self.consumer.poll_paused(left.min(CHECK_INTERVAL)) {
                Ok(revoked) if revoked.is_empty() => {}
                Ok(_) => return self.end(DeliveryAbort::Revoked),
                Err(error) => return self.end(DeliveryAbort::Lost(error)),
            }
        }
    }
}
