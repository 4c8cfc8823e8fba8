//! What an exporter does about each verdict, and while it waits.
//!
//! *In*: verdicts on the spans in hand. *Out*: counts, letters to `blkkin.dead`. *Invariant*: a span that is refused is in
//! `blkkin.dead` before the delivery goes on. While anything is waited for the group's membership is kept
//! ([`TraceConsumer::hold`]); when partitions are taken away meanwhile the delivery ends, as what is in hand is theirs.

use std::ops::Range;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{DeadLetters, KafkaError, Letter, TraceConsumer};
use blkkin_zipkin_export::backoff::{Backoff, Jitter};
use blkkin_zipkin_export::{AfterPause, Ledger, Verdict};

use super::gathered::Gathered;
use super::stop::Stop;
use super::tally::Tally;

/// Between two looks at whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Who hears of a destination that is away.
pub(super) struct Watch {
    /// The destination, as people know it.
    pub(super) name: String,
    pub(super) tell: Box<dyn Fn(String) + Send>,
    since: Option<Instant>,
}

impl Watch {
    pub(super) fn new(name: String, tell: Box<dyn Fn(String) + Send>) -> Watch {
        Watch { name, tell, since: None }
    }

    /// It is away, or is back: each is told once.
    fn outage(&mut self, why: Option<String>) {
        match (why, self.since) {
            (Some(why), None) => {
                self.since = Some(Instant::now());
                (self.tell)(format!(
                    "{why}; going on until it answers, what comes meanwhile stays in the topic"
                ));
            }
            (None, Some(since)) => {
                self.since = None;
                (self.tell)(format!("{} answers again after {} s", self.name, since.elapsed().as_secs()));
            }
            _ => {}
        }
    }
}

/// A delivery under way.
pub(super) struct Hand<'a> {
    pub(super) gathered: &'a Gathered,
    pub(super) consumer: &'a mut TraceConsumer,
    pub(super) dead: &'a DeadLetters,
    pub(super) stop: &'a Stop,
    pub(super) tally: &'a mut Tally,
    pub(super) watch: &'a mut Watch,
    /// Spans of which it is known what became of them.
    pub(super) settled: usize,
    /// Why it ended before its time.
    pub(super) ended: Option<Ended>,
}

/// Why a delivery ended before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The time for it is over.
    Stopped,
    /// What is in hand is somebody else's now.
    Revoked,
    /// The membership is lost.
    Lost(KafkaError),
}

impl Hand<'_> {
    /// Sends a letter, as often as it takes.
    pub(super) fn bury(&mut self, letter: &Letter) -> AfterPause {
        let mut failures = 0;
        while !self.is_over() {
            let Err(error) = self.dead.send(letter) else { return AfterPause::GoOn };
            if failures == 0 {
                (self.watch.tell)(format!("{error}; {}; going on until it can be kept", error.remedy));
            }
            failures += 1;
            if self.pause(Backoff::default().delay(failures, Jitter::random())) == AfterPause::GiveUp {
                break;
            }
        }
        self.end(Ended::Stopped)
    }

    fn end(&mut self, why: Ended) -> AfterPause {
        self.ended.get_or_insert(why);
        AfterPause::GiveUp
    }
}

impl Ledger for Hand<'_> {
    fn settle(&mut self, range: Range<usize>, verdict: Verdict) {
        match verdict {
            Verdict::Sent => {
                self.tally.delivered += range.len() as u64;
                self.settled += range.len();
            }
            Verdict::Rejected(why) => {
                for place in range {
                    let Some(letter) = self.gathered.letter(place, &self.watch.name, &why) else { continue };
                    if self.bury(&letter) == AfterPause::GiveUp {
                        return;
                    }
                    self.tally.refused += 1;
                    self.settled += 1;
                }
            }
        }
    }

    fn recant(&mut self, spans: u64, why: String) {
        self.tally.delivered = self.tally.delivered.saturating_sub(spans);
        self.tally.not_taken += spans;
        (self.watch.tell)(format!(
            "{} did not take {spans} spans, it does not say which: {why}",
            self.watch.name
        ));
    }

    fn outage(&mut self, why: Option<String>) {
        self.watch.outage(why);
    }

    fn asks_again_when_denied(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.ended.is_some() || self.stop.is_over()
    }

    fn pause(&mut self, delay: Duration) -> AfterPause {
        self.tally.repeated += 1;
        let until = Instant::now() + delay;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.stop.is_over() {
                return self.end(Ended::Stopped);
            }
            if left.is_zero() {
                return AfterPause::GoOn;
            }
            match self.consumer.hold(left.min(LOOK_EVERY)) {
                Ok(revoked) if revoked.is_empty() => {}
                Ok(_) => return self.end(Ended::Revoked),
                Err(error) => return self.end(Ended::Lost(error)),
            }
        }
    }
}
