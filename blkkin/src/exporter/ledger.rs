//! What an exporter does about each verdict, and while it waits.
//!
//! *In*: verdicts on the spans in hand. *Out*: counts, letters to `blkkin.dead`. *Invariant*: a span that is refused is in
//! `blkkin.dead` before the delivery goes on. While anything is waited for the group's membership is kept
//! ([`TraceConsumer::hold`]); when partitions are taken away meanwhile the delivery ends, as what is in hand is theirs.

use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use blkkin_bus::kafka::{DeadLetters, KafkaError, Letter, TraceConsumer};
use blkkin_zipkin_export::backoff::{Backoff, Jitter};
use blkkin_zipkin_export::{AfterPause, Attempt, Ledger, Verdict};

use super::book::{Book, Outage, Who};
use super::gathered::Gathered;
use super::stop::Stop;

/// Between two looks at whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Hears what a person should know.
pub(super) type Tell = Box<dyn Fn(String) + Send>;

/// A delivery under way.
pub(super) struct Hand<'a> {
    pub(super) gathered: &'a Gathered,
    pub(super) consumer: &'a mut TraceConsumer,
    pub(super) dead: &'a DeadLetters,
    pub(super) stop: &'a Stop,
    pub(super) book: &'a Book,
    pub(super) tell: &'a Tell,
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
            let sent = self.dead.send(letter);
            self.book.pulse.beat();
            let why = sent.as_ref().err().map(ToString::to_string);
            let outage = self.book.outage(Who::Letters, why);
            let Err(error) = sent else { return AfterPause::GoOn };
            if outage == Outage::Begins {
                (self.tell)(format!("{error}; {}; going on until it can be kept", error.remedy));
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
                let mut tally = self.book.tally();
                tally.delivered += range.len() as u64;
                tally.acknowledged_at = Some(SystemTime::now());
                self.settled += range.len();
            }
            Verdict::Rejected(why) => {
                self.book.tally().rejected += range.len() as u64;
                for place in range {
                    let Some(letter) = self.gathered.letter(place, &self.book.name, &why) else { continue };
                    if self.bury(&letter) == AfterPause::GiveUp {
                        return;
                    }
                    self.book.tally().refused += 1;
                    self.settled += 1;
                }
            }
        }
    }

    fn recant(&mut self, spans: u64, why: String) {
        let mut tally = self.book.tally();
        tally.delivered = tally.delivered.saturating_sub(spans);
        tally.not_taken += spans;
        (self.tell)(format!("{} did not take {spans} spans, it does not say which: {why}", self.book.name));
    }

    fn attempted(&mut self, attempt: Attempt) {
        self.book.pulse.beat();
        self.book.tally().attempted(attempt);
    }

    /// It is away, or is back: each is told once.
    fn outage(&mut self, why: Option<String>) {
        match (self.book.outage(Who::Destination, why.clone()), why) {
            (Outage::Begins, Some(why)) => (self.tell)(format!(
                "{why}; going on until it answers, what comes meanwhile stays in the topic"
            )),
            (Outage::Ends(after), _) => {
                (self.tell)(format!("{} answers again after {} s", self.book.name, after.as_secs()));
            }
            _ => {}
        }
    }

    fn asks_again_when_denied(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.ended.is_some() || self.stop.is_over()
    }

    fn pause(&mut self, delay: Duration) -> AfterPause {
        let until = Instant::now() + delay;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.stop.is_over() {
                return self.end(Ended::Stopped);
            }
            if left.is_zero() {
                return AfterPause::GoOn;
            }
            self.book.pulse.beat();
            match self.consumer.hold(left.min(LOOK_EVERY)) {
                Ok(revoked) if revoked.is_empty() => {}
                Ok(_) => return self.end(Ended::Revoked),
                Err(error) => return self.end(Ended::Lost(error)),
            }
        }
    }
}
