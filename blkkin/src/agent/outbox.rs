//! Records on their way from this process to the cluster.
//!
//! ```text
//!            ┌ spool: appended, stays until acknowledged ┐
//! take ──────┤                                           ├─ window: handed over, not answered ── the cluster
//!            └ straight on, where there is no spool      ┘
//! ```
//!
//! *In*: records in the order of their sequences. *Out*: the same to the producer, in that order: what an earlier start has left
//! in the spool first. *Invariant*: nothing overtakes, since whoever reads the topic drops what is older than what it has
//! seen. So a record goes straight on only if nothing waits in the spool; and what was in the spool leaves it when the cluster has
//! it, in its order.
//!
//! *With a spool* every record is put down before it is sent, also while the cluster is there. So a kill loses none that came
//! this far, and what it did lose is known exactly. That costs a write of some KiB every 75 ms into files that are
//! removed before they reach the disk, and a read only after the cluster was away.
//!
//! *Refused* for now (rights, a cluster that says no): what has a spool goes back there, from the first that was refused on, and is
//! sent again every [`RETRY_EVERY_REFUSED`]; some of it may have arrived, and is dropped by its sequence where it is read. What has none
//! is lost and counted, and so is what will never be taken, as it is longer than the topic takes.
//!
//! *Bounds*: [`WINDOW_BYTES`] in the producer, the rest in the spool. When that is full, [`Outbox::take`] waits; then the bus
//! is full, then the rings, and what has no room there is counted. A disk that does not take the spool any more is said once and
//! counted; until it does again records wait their turn as if there were none.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Answer, Deliveries, EVENTS, EventProducer, KafkaError, Record, Ticket};
use blkkin_bus::recording::Position;
use blkkin_bus::spool::{Refused, Spool};
use blkkin_tracer::Ledger;
use blkkin_wire::ids::NodeId;
use blkkin_wire::killed::Tally;
use blkkin_wire::v1::{self, Peeked};

use super::books::Books;
use super::inherited::Inherited;
use crate::output::say;
use crate::service::Trouble;

/// Handed over and not answered, where there is a spool for the rest: what a round trip of 0.1 s lets through is 80 MB/s.
const WINDOW_BYTES: usize = 8 << 20;
/// Between two looks at whether there is room.
const LOOK: Duration = Duration::from_millis(5);
/// Between two notes of how far all is acknowledged: what was acknowledged since is sent again after a kill.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Between two attempts to use a disk that failed.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Between two attempts to have written what may not be.
const RETRY_EVERY_REFUSED: Duration = Duration::from_secs(5);
/// Without an answer for so long the cluster is away: that is told, and at the end what has a spool is not waited for.
const AWAY_AFTER: Duration = Duration::from_secs(2);

/// What became of what was taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) deliveries: Deliveries,
    /// Events that were sent, have no answer, and are nowhere else.
    pub(super) unanswered: u64,
    /// Batches that stay for the next start, and where.
    pub(super) spooled: Option<(u64, PathBuf)>,
    /// Why the cluster refused what it refused.
    pub(super) refused: Option<KafkaError>,
}

struct Handed {
    ticket: Ticket,
    bytes: usize,
    events: u64,
    tally: Tally,
    /// Where it is in the spool.
    behind: Option<Position>,
    answer: Option<Answer>,
}

/// Everything between the gatherer and the cluster.
pub(super) struct Outbox<'a> {
    producer: EventProducer,
    node: NodeId,
    /// The key of this node's records.
    domain: NodeId,
    spool: Option<Spool>,
    /// Read from the spool; the producer had no room for it.
    pending: Option<(Vec<u8>, Position)>,
    window: VecDeque<Handed>,
    window_bytes: usize,
    tickets: u64,
    ledger: Option<Arc<Ledger>>,
    kept: Tally,
    sent: Tally,
    answered: Tally,
    inherited: Option<Inherited>,
    /// The disk's trouble: when to try again.
    trouble: Option<Instant>,
    noted: Instant,
    heard: Instant,
    /// What the cluster refused records with, as it was said last.
    refused: Option<KafkaError>,
    /// It refuses what it may take later: until when it is left alone.
    refuses: Option<Instant>,
    /// Something waits, and nothing has arrived meanwhile.
    away: Option<Trouble>,
    /// That was said.
    said_away: bool,
    books: &'a Books,
}

impl<'a> Outbox<'a> {
    pub(super) fn new(
        producer: EventProducer,
        (node, domain): (NodeId, NodeId),
        spool: Option<Spool>,
        ledger: Option<Arc<Ledger>>,
        inherited: Inherited,
        books: &'a Books,
    ) -> Outbox<'a> {
        let now = Instant::now();
        Outbox {
            producer,
            node,
            domain,
            spool,
            pending: None,
            window: VecDeque::new(),
            window_bytes: 0,
            tickets: 0,
            ledger,
            kept: Tally::default(),
            sent: Tally::default(),
            answered: Tally::default(),
            inherited: Some(inherited),
            trouble: None,
            noted: now,
            heard: now,
            refused: None,
            refuses: None,
            away: None,
            said_away: false,
            books,
        }
    }

    /// Takes a record, and waits while there is no room. False where `stop` said so meanwhile.
    pub(super) fn take(&mut self, record: &Record, stop: impl Fn() -> bool) -> Result<bool, KafkaError> {
        let peeked = v1::peek(&record.bytes).ok();
        loop {
            self.pump()?;
            if self.put(&record.bytes, record.events, peeked.as_ref())? {
                return Ok(true);
            }
            // To wait for the cluster is what is meant to happen while it is away.
            self.books.pulse.beat();
            self.waits();
            self.tell();
            if stop() {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
            self.producer.waited(LOOK);
        }
    }

    /// Hears what became of what was sent, and sends what waits.
    pub(super) fn pump(&mut self) -> Result<(), KafkaError> {
        self.hear()?;
        while let Some((bytes, behind)) = self.next_spooled() {
            let peeked = v1::peek(&bytes).ok();
            let events = peeked.map_or(0, |peeked| peeked.events);
            if !self.hand_over(&bytes, events, peeked.as_ref(), Some(behind))? {
                // Unless it is read again.
                self.pending = self.refuses.is_none().then_some((bytes, behind));
                break;
            }
        }
        if !self.window.is_empty() || self.pending.is_some() || self.refuses.is_some() {
            self.waits();
        }
        if self.noted.elapsed() >= NOTE_EVERY {
            self.noted = Instant::now();
            let noted = self.spool.as_mut().map(Spool::note);
            self.disk(noted.unwrap_or(Ok(())));
        }
        Ok(())
    }

    /// What there is to see of it.
    pub(super) fn tell(&mut self) {
        if let Some(error) = self.producer.refused().filter(|error| self.refused.as_ref() != Some(error)) {
            // It may refuse whoever writes before it has refused a record.
            let then = match &self.spool {
                Some(_) => "what it refuses waits in the spool",
                None => "events that it refuses are lost",
            };
            say(&format!("{error}; {}; {then}", error.remedy));
            self.refused = Some(error);
        }
        self.books.sent(self.producer.deliveries());
        if let Some(away) = &mut self.away
            && away.lasts() >= AWAY_AFTER
        {
            let hindrance = self.producer.hindrance();
            away.why = hindrance.map_or_else(|| "it does not answer".to_owned(), |error| error.to_string());
            self.books.away(Some(away.clone()));
            // What hinders a search is said by who searches.
            if !self.said_away && !self.books.is_searching() {
                self.said_away = true;
                let then = match (&self.spool, self.producer.is_refused()) {
                    (Some(_), _) => "what comes waits in the spool",
                    (None, true) => "what it refuses is lost",
                    (None, false) => "what comes waits in memory",
                };
                say(&format!("{EVENTS} is away: {}; {then}", away.why));
            }
        }
        if let Some(spool) = &self.spool {
            self.books.spooled(spool.counts());
        }
    }

    /// Waits for the cluster to have all, `patience` at the most.
    pub(super) fn finish(mut self, patience: Duration) -> Result<Outcome, KafkaError> {
        let begun = Instant::now();
        self.heard = begun;
        loop {
            self.pump()?;
            let all_is_out = self.pending.is_none() && self.spool.as_ref().is_none_or(Spool::all_read);
            if all_is_out && self.window.is_empty() {
                break;
            }
            let can_stay = self.window.iter().all(|handed| handed.behind.is_some());
            let is_away = self.heard.elapsed() >= AWAY_AFTER;
            if begun.elapsed() >= patience || can_stay && is_away {
                break;
            }
            self.books.pulse.beat();
            std::thread::sleep(LOOK);
        }
        self.tell();
        let unanswered = self.window.iter().filter(|handed| handed.behind.is_none());
        let unanswered = unanswered.map(|handed| handed.events).sum();
        let synced = self.spool.as_mut().map(Spool::sync);
        self.disk(synced.unwrap_or(Ok(())));
        let spooled = self.spool.as_ref().map(|spool| (spool.counts().batches, spool.folder().to_owned()));
        let deliveries = self.producer.deliveries();
        let spooled = spooled.filter(|(batches, _)| *batches > 0);
        Ok(Outcome { deliveries, unanswered, spooled, refused: self.producer.refused() })
    }

    /// Tries to put a new record where it belongs.
    fn put(&mut self, bytes: &[u8], events: u64, peeked: Option<&Peeked>) -> Result<bool, KafkaError> {
        let Some(spool) = &mut self.spool else { return self.hand_over(bytes, events, peeked, None) };
        let nothing_waits = spool.all_read() && self.pending.is_none();
        if self.trouble.is_some_and(|again| Instant::now() < again) {
            return Ok(nothing_waits && self.hand_over(bytes, events, peeked, None)?);
        }
        let kept = peeked.map_or(self.kept, |peeked| self.kept.plus(&peeked.tally));
        if let (Some(ledger), Some(peeked)) = (&self.ledger, peeked) {
            ledger.prepare(peeked.sequence, &kept);
        }
        match spool.append(bytes) {
            Ok(behind) => {
                self.kept = kept;
                if let (Some(ledger), Some(_)) = (&self.ledger, peeked) {
                    ledger.stands();
                }
                self.disk_works();
                self.is_safe();
                // It need not be read again if it can go on at once.
                if nothing_waits
                    && self.has_room()
                    && self.hand_over(bytes, events, peeked, Some(behind))?
                    && let Some(spool) = &mut self.spool
                {
                    spool.skip_to(behind);
                }
                Ok(true)
            }
            Err(Refused::Full) => Ok(false),
            Err(Refused::Failed(error)) => {
                self.disk(Err(error));
                Ok(nothing_waits && self.hand_over(bytes, events, peeked, None)?)
            }
        }
    }

    fn has_room(&self) -> bool {
        self.spool.is_none() || self.window_bytes < WINDOW_BYTES && self.refuses.is_none()
    }

    /// All that is not acknowledged waits in the spool again.
    fn take_back(&mut self) -> Result<(), KafkaError> {
        let Some(spool) = &mut self.spool else { return Ok(()) };
        spool.rewind();
        self.refuses = Some(Instant::now() + RETRY_EVERY_REFUSED);
        self.tell();
        self.pending = None;
        self.window.clear();
        self.window_bytes = 0;
        self.producer.renew()
    }

    /// False where the producer has no room.
    fn hand_over(
        &mut self,
        bytes: &[u8],
        events: u64,
        peeked: Option<&Peeked>,
        behind: Option<Position>,
    ) -> Result<bool, KafkaError> {
        if !self.has_room() {
            return Ok(false);
        }
        if self.spool.is_some() && self.producer.is_out_of_use() {
            return self.take_back().map(|()| false);
        }
        let ticket = Ticket(self.tickets);
        let tally = peeked.map_or_else(Tally::default, |peeked| peeked.tally);
        if behind.is_none() {
            self.sent = self.sent.plus(&tally);
            self.enter();
        }
        // What an earlier start has left may be another machine's: its disk in ours.
        let node = peeked.map_or(self.node, |peeked| peeked.source.node);
        let domain = if node == self.node { self.domain } else { node };
        if !self.producer.offer(domain, bytes, events, ticket)? {
            if behind.is_none() {
                self.sent = self.sent.minus(&tally);
                self.enter();
            }
            return Ok(false);
        }
        self.tickets += 1;
        self.window_bytes += bytes.len();
        self.window.push_back(Handed { ticket, bytes: bytes.len(), events, tally, behind, answer: None });
        Ok(true)
    }

    fn next_spooled(&mut self) -> Option<(Vec<u8>, Position)> {
        if !self.has_room() {
            return None;
        }
        if self.pending.is_some() {
            return self.pending.take();
        }
        match self.spool.as_mut()?.read() {
            Ok(next) => next,
            Err(error) => {
                self.disk(Err(error));
                None
            }
        }
    }

    /// Takes out of the window what is answered, from its front.
    fn hear(&mut self) -> Result<(), KafkaError> {
        if self.refuses.is_some_and(|until| Instant::now() >= until) {
            self.refuses = None;
        }
        let answers = self.producer.answers();
        let Some(Handed { ticket: Ticket(first), .. }) = self.window.front() else { return Ok(()) };
        let first = *first;
        for (Ticket(ticket), answer) in answers {
            self.heard = Instant::now();
            // One that was taken back is none of the window's any more.
            let place = ticket.checked_sub(first).map(|place| place as usize);
            if let Some(handed) = place.and_then(|place| self.window.get_mut(place)) {
                handed.answer = Some(answer);
            }
        }
        let mut acknowledged = Ok(());
        while let Some(Handed { bytes, events, tally, behind, answer: Some(answer), .. }) =
            self.window.front()
        {
            let (answer, events, tally, behind) = (*answer, *events, *tally, *behind);
            if behind.is_some() && answer == Answer::Returned {
                self.disk(acknowledged);
                return self.take_back();
            }
            self.window_bytes -= bytes;
            self.window.pop_front();
            let arrived = answer == Answer::Arrived;
            if arrived {
                self.is_there();
            } else {
                self.producer.lost(events);
            }
            match behind {
                Some(behind) => {
                    if let Some(spool) = &mut self.spool {
                        acknowledged = acknowledged.and(spool.acknowledge(behind));
                    }
                    continue;
                }
                None if arrived => self.answered = self.answered.plus(&tally),
                // It was refused for good: nobody need doubt it.
                None => self.sent = self.sent.minus(&tally),
            }
            self.enter();
            if arrived {
                self.is_safe();
            }
        }
        self.disk(acknowledged);
        Ok(())
    }

    fn is_there(&mut self) {
        let away = self.away.take();
        self.books.away(None);
        if let (Some(away), true) = (away, std::mem::take(&mut self.said_away)) {
            say(&format!("{EVENTS} is there again after {} s", away.lasts().as_secs()));
        }
    }

    fn waits(&mut self) {
        self.away.get_or_insert_with(|| Trouble::new(String::new()));
    }

    fn enter(&self) {
        if let Some(ledger) = &self.ledger {
            ledger.sent(&self.sent);
            ledger.answered(&self.answered);
        }
    }

    /// A record of ours, the first of which tells of those who were killed, is where it stays.
    fn is_safe(&mut self) {
        if let Some(inherited) = self.inherited.take() {
            inherited.forget();
        }
    }

    fn disk(&mut self, result: std::io::Result<()>) {
        let (Err(error), Some(spool)) = (result, &self.spool) else { return };
        self.books.spool_failed();
        if self.trouble.replace(Instant::now() + RETRY_EVERY).is_none() {
            say(&format!(
                "the spool in {} does not work: {error}; going on without it, and trying again",
                spool.folder().display()
            ));
        }
    }

    /// A batch was put down.
    fn disk_works(&mut self) {
        if let (Some(_), Some(spool)) = (self.trouble.take(), &self.spool) {
            say(&format!("the spool in {} works again", spool.folder().display()));
        }
    }
}
