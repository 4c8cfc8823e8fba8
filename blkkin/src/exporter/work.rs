//! One destination's work: receive, deliver, commit, again.
//!
//! *In*: records of `blkkin.traces`, as a member of the destination's group. *Out*: entries of its [`Book`]. *Invariant*: a
//! commit says that all that was received is at the destination or in `blkkin.dead`, because it is sent only when nothing is in
//! hand.
//!
//! Whatever fails between us and the cluster makes a member of a new: what was not committed is received again then, so nothing
//! hangs on what librdkafka was in the middle of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{
    DeadLetters, FENCED_AGAIN, KafkaError, Letter, Place, Received, Settings, TRACES, TraceConsumer,
};
use blkkin_wire::v1::Malformed;
use blkkin_zipkin_export::AfterPause;

use super::Route;
use super::book::Book;
use super::gathered::Gathered;
use super::ledger::{Ended, Hand, Tell};
use super::sink::{SPANS_MAX, Sink};
use super::stop::Stop;

/// What was received waits so long for more, at the most: it is seen by a person no earlier than it is looked for.
const GATHER: Duration = Duration::from_millis(50);
/// Between two looks at whether to end, when nothing comes.
const IDLE: Duration = Duration::from_millis(200);
/// Between two looks at whether a destination that was away is back, while there is nothing to send.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Before the group is joined again.
const REJOIN: Duration = Duration::from_secs(1);
/// For the last commit, whatever is left of the time to end.
const LAST_COMMIT: Duration = Duration::from_secs(3);

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    /// The time is over and something has no verdict: nothing is to be committed any more.
    End,
}

/// Works for one destination.
pub(super) struct Worker {
    settings: Settings,
    route: Route,
    sink: Sink,
    stop: Stop,
    tell: Tell,
    book: Arc<Book>,
    gathered: Gathered,
    /// Since when something is gathered.
    since: Option<Instant>,
    /// Spans of these of which it is known what became of them.
    settled: usize,
    /// What was told last of the cluster.
    told: String,
    /// When it was last shown out by somebody of its own name.
    fenced: Option<Instant>,
}

impl Worker {
    pub(super) fn new(
        settings: Settings,
        route: Route,
        sink: Sink,
        stop: Stop,
        tell: Tell,
        book: Arc<Book>,
    ) -> Worker {
        Worker {
            settings,
            route,
            sink,
            stop,
            tell,
            book,
            gathered: Gathered::default(),
            since: None,
            settled: 0,
            told: String::new(),
            fenced: None,
        }
    }

    /// Until told to end.
    pub(super) fn work(mut self) {
        while !self.stop.asked() && !self.book.tally().fenced {
            if let Err(error) = self.member() {
                self.cluster_failed(&error);
                let until = Instant::now() + REJOIN;
                while !self.stop.asked() && Instant::now() < until {
                    self.book.pulse.beat();
                    std::thread::sleep(IDLE.min(until.saturating_duration_since(Instant::now())));
                }
            }
            // What is in hand is not committed: it is received again.
            let in_hand = self.gathered.spans().len().saturating_sub(self.settled);
            self.book.tally().in_hand = in_hand as u64;
            self.forget();
        }
        if let Err(why) = self.sink.finish() {
            (self.tell)(why);
        }
    }

    /// As a member of the group, until told to end or until the membership is lost.
    fn member(&mut self) -> Result<(), KafkaError> {
        let dead = DeadLetters::new(&self.settings, &self.route.group.name)?;
        let mut consumer = TraceConsumer::join(&self.settings, &self.route.group)?;
        consumer.show(&self.book.lag.progress);
        let served = self.serve(&mut consumer, &dead);
        if served.is_err() && consumer.is_fenced() {
            let before = self.fenced.replace(Instant::now());
            self.book.tally().fenced = before.is_some_and(|before| before.elapsed() < FENCED_AGAIN);
        }
        served
    }

    fn serve(&mut self, consumer: &mut TraceConsumer, dead: &DeadLetters) -> Result<(), KafkaError> {
        let (mut flow, mut probed) = (Flow::On, None::<Instant>);
        while flow == Flow::On && !self.stop.asked() {
            self.book.pulse.beat();
            let again = |probed: Instant| !self.book.is_up() && probed.elapsed() >= PROBE_EVERY;
            if self.since.is_none() && probed.is_none_or(again) {
                probed = Some(Instant::now());
                let mut hand = hand(&self.gathered, consumer, dead, &self.stop, &self.book, &self.tell);
                self.sink.probe(&mut hand);
            }
            flow = self.receive(consumer, dead)?;
            let age = self.since.map_or(Duration::ZERO, |since| since.elapsed());
            let full = self.gathered.spans().len() >= SPANS_MAX || age >= GATHER;
            if flow == Flow::On && full {
                flow = self.deliver(consumer, dead)?;
            }
        }
        if flow == Flow::On && self.deliver(consumer, dead)? == Flow::On {
            let committed = consumer.commit_within(LAST_COMMIT)?;
            self.book.tally().uncommitted = !committed;
        }
        let left = consumer.left();
        self.book.tally().left = left;
        Ok(())
    }

    fn receive(&mut self, consumer: &mut TraceConsumer, dead: &DeadLetters) -> Result<Flow, KafkaError> {
        let patience = self.since.map_or(IDLE, |since| GATHER.saturating_sub(since.elapsed()));
        match consumer.next(patience)? {
            Received::Batch(batch, missing) => {
                let pieces = self.gathered.add(*batch);
                let mut tally = self.book.tally();
                tally.pieces += pieces;
                tally.missing += missing;
                drop(tally);
                self.since.get_or_insert_with(Instant::now);
            }
            Received::Again => {
                self.book.tally().again += 1;
                self.since.get_or_insert_with(Instant::now);
            }
            Received::Refused(why, bytes, place) => {
                self.since.get_or_insert_with(Instant::now);
                return self.bury(&why, bytes, place, consumer, dead);
            }
            Received::Rebalanced { revoked, .. } if !revoked.is_empty() => self.let_go(consumer)?,
            Received::Rebalanced { .. } | Received::Nothing => {}
        }
        self.say_unknown(consumer.take_unknown());
        Ok(Flow::On)
    }

    fn bury(
        &mut self,
        why: &Malformed,
        bytes: Vec<u8>,
        place: Place,
        consumer: &mut TraceConsumer,
        dead: &DeadLetters,
    ) -> Result<Flow, KafkaError> {
        let letter = Letter {
            headers: vec![
                ("blkkin.reason", why.to_string()),
                ("blkkin.topic", TRACES.to_owned()),
                ("blkkin.partition", place.partition.to_string()),
                ("blkkin.offset", place.offset.to_string()),
            ],
            payload: bytes,
        };
        let mut hand = hand(&self.gathered, consumer, dead, &self.stop, &self.book, &self.tell);
        let buried = hand.bury(&letter);
        let ended = hand.ended;
        if buried == AfterPause::GoOn {
            self.book.tally().unreadable += 1;
            let Place { partition, offset } = place;
            (self.tell)(format!(
                "a record of {TRACES} (partition {partition}, offset {offset}) could not be read: {why}; it is in blkkin.dead"
            ));
            return Ok(Flow::On);
        }
        self.broken_off(ended, consumer)
    }

    /// Delivers what is in hand, and commits it.
    fn deliver(&mut self, consumer: &mut TraceConsumer, dead: &DeadLetters) -> Result<Flow, KafkaError> {
        if self.since.is_none() {
            return Ok(Flow::On);
        }
        if !self.gathered.spans().is_empty() {
            let begun = Instant::now();
            let mut hand = hand(&self.gathered, consumer, dead, &self.stop, &self.book, &self.tell);
            let after = self.sink.send(self.gathered.spans(), &mut hand);
            let ended = hand.ended;
            self.settled = hand.settled;
            if after == AfterPause::GiveUp || ended.is_some() {
                return self.broken_off(ended, consumer);
            }
            self.book.tally().deliveries.note(begun.elapsed());
        }
        self.forget();
        consumer.commit_soon()?;
        Ok(Flow::On)
    }

    /// What is in hand has no verdict, so no commit may be sent for it.
    fn broken_off(&mut self, ended: Option<Ended>, consumer: &mut TraceConsumer) -> Result<Flow, KafkaError> {
        match ended {
            Some(Ended::Lost(error)) => Err(error),
            Some(Ended::Revoked) => self.let_go(consumer).map(|()| Flow::On),
            Some(Ended::Stopped) | None => Ok(Flow::End),
        }
    }

    /// Partitions went. What is in hand is of them and of others, in one list: what stayed is received again.
    fn let_go(&mut self, consumer: &mut TraceConsumer) -> Result<(), KafkaError> {
        self.forget();
        consumer.take_back()
    }

    fn forget(&mut self) {
        self.gathered.clear();
        self.since = None;
        self.settled = 0;
    }

    /// What was delivered of them long ago is delivered again.
    fn say_unknown(&self, partitions: usize) {
        if partitions > 0 {
            (self.tell)(format!(
                "{}: {partitions} partitions of {TRACES} are read from their first record on, as its group has committed nothing \
                 there: it is new, or had no exporter for so long that the cluster forgot it (offsets.retention.minutes)",
                self.book.name
            ));
        }
    }

    fn cluster_failed(&mut self, error: &KafkaError) {
        let said = error.to_string();
        if said != self.told {
            (self.tell)(format!("{said}; {}; joining again", error.remedy));
            self.told = said;
        }
    }
}

/// For one delivery.
fn hand<'a>(
    gathered: &'a Gathered,
    consumer: &'a mut TraceConsumer,
    dead: &'a DeadLetters,
    stop: &'a Stop,
    book: &'a Book,
    tell: &'a Tell,
) -> Hand<'a> {
    Hand { gathered, consumer, dead, stop, book, tell, settled: 0, ended: None }
}
