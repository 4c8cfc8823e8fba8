//! Between nodes: the two ends of a request, brought together.
//!
//! *In*: records of `blkkin.links`: halves, those of one connection in one partition. *Out*: where the trace of who answered is
//! shown, for `blkkin.spans`; and what became of every half ([`MeetBooks`]).
//! *Invariant*: that of [`super`]; each half is in one match at the most; received = matched + alone + refused + pending.
//!
//! # What makes two halves one request
//!
//! The protocol's own name of it: connection and cookie ([`Meeting`]). Never that they lie near each other in time: on a busy
//! connection there are a hundred such. But a name alone can lie, too:
//!
//! - *A cookie that comes again.* Some protocols count tags, not requests: tag 7 is another request a millisecond later. One half
//!   of the first was lost, and the second's meets what is left. So such halves are matched only when both clocks are known
//!   to each other, by [`clocks`], and exactly one candidate lies inside the other; where two do, neither is taken. And only where the
//!   clocks are known to less than the length of the answering end: the end of the request before or after would have to be
//!   off by more than its own length to lie inside.
//! - *A cookie that never comes again* (Linux' NBD client: 32 bits of a counter beside the tag) is exact by itself. Still the
//!   answering end may not have taken longer than the asking end, and where the clocks are known it must lie inside: what does
//!   not was made up, or has a name that somebody else has too. It is refused, and counted.
//! - *A request without an answer* ([`RpcEndpointEvent::unanswered`](blkkin_wire::meeting::RpcEndpointEvent)): who asked has left, and who
//!   answers may go on for long. So it only has to be taken after it was sent; and of a name that comes again before the asker left, as
//!   then there may have been a next one.
//! - *One trace on both ends*: refused; nothing is its own parent.
//!
//! # Whose time
//!
//! The clocks of two nodes differ. All that is certain is that the answering end lies inside the asking end. So the answering
//! end is put into the middle of the asking one, and may be off by half of the difference of their lengths: shift and error
//! are said with the move, and shown as tags. Of a request without an answer nothing is certain but that it was not
//! taken before it was sent: it is put there, and the tag of the error says that there is no bound.
//!
//! *Rejected*: to shift by the bound that all requests of two nodes give together ([`clocks`]), which is narrower. It
//! depends on which of them had come by then, so the same events, read again from topics that were filled in another order, would
//! give other times, and Zipkin would show both. The bound says what clocks may be, and is published as it is; the shift is
//! of the two halves alone.

pub mod clocks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use blkkin_wire::clock::DurationNs;
use blkkin_wire::fragment::{Incarnation, Stage, TraceFragment};
use blkkin_wire::remote_link::{ClockShift, LinkEndpoint, RemoteLink, Reparented, RpcKey, RpcSide};
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::numbers::Numbers;
use super::saved::{self, Unreadable};
use super::taken::{Known, Taken};
use super::{LogTime, Outlet, Record};
use clocks::{Clocks, Verdict};

/// Halves that wait at once; beyond it the one that has waited longest is given up. Some 20 MiB.
const WAITING_MAX: usize = 65_536;

/// What this stage may be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeetStageConfig {
    /// Partitions of the topic of spans.
    pub partitions: u32,
    /// How long a half waits for the other, in ms, by the log's time.
    pub wait_for: u64,
}

impl MeetStageConfig {
    /// With the default of the rest: as long as a trace waits to be told ([`super::assemble::AssembleStageConfig::await_for`]).
    pub fn new(partitions: u32) -> Self {
        MeetStageConfig { partitions, wait_for: 10_000 }
    }
}

/// What became of halves, since the state began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeetBooks {
    /// Records read, ticks and poison among them.
    pub records: u64,
    /// Ticks.
    pub ticks: u64,
    /// Records that could not be read: copied to where dead letters go.
    pub poison: u64,
    /// Pieces that had been taken before.
    pub repeated: u64,
    /// Pieces that never came, by the gaps in their numbers.
    pub missed: u64,
    /// Pieces that are no halves: left out.
    pub misplaced: u64,
    /// Halves taken, each once.
    pub received: u64,
    /// Halves whose other end was found: two a request.
    pub matched: u64,
    /// Halves whose other end did not come in time.
    pub alone: u64,
    /// Halves that could have been of several others, or that bear the name of another and cannot be its other end.
    pub refused: u64,
}

/// The state of one partition of links.
#[derive(Debug, Serialize, Deserialize)]
pub struct MeetStage {
    epoch: u64,
    numbers: Numbers,
    taken: Taken,
    now: LogTime,
    waiting: BTreeMap<RpcKey, Vec<Waiting>>,
    /// In the order in which they came; what was matched meanwhile is passed over.
    order: VecDeque<(LogTime, u64, RpcKey)>,
    count: u64,
    pending: u64,
    clocks: Clocks,
    books: MeetBooks,
    #[serde(skip, default = "no_config")]
    config: MeetStageConfig,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    number: u64,
    half: LinkEndpoint,
}

impl MeetStage {
    /// One that has read nothing.
    pub fn begin(epoch: Incarnation, config: MeetStageConfig) -> Self {
        MeetStage {
            epoch: epoch.0,
            numbers: Numbers::new(config.partitions),
            taken: Taken::default(),
            now: LogTime::default(),
            waiting: BTreeMap::new(),
            order: VecDeque::new(),
            count: 0,
            pending: 0,
            clocks: Clocks::default(),
            books: MeetBooks::default(),
            config,
        }
    }

    /// Takes the next record in.
    pub fn apply(&mut self, record: Record<'_>, out: &mut dyn Outlet) {
        self.books.records += 1;
        self.advance(record.at.unwrap_or_default());
        let batch = match v1::decode_fragments(record.bytes) {
            Ok(batch) => batch,
            Err(why) => {
                self.books.poison += 1;
                return out.dead(why.to_string());
            }
        };
        if batch.fragments.is_empty() {
            self.books.ticks += 1;
            return;
        }
        let Known { repeated, missed } = self.taken.take(&batch.origin, batch.first, batch.fragments.len());
        self.books.repeated += repeated as u64;
        self.books.missed += missed;
        for piece in batch.fragments.into_iter().skip(repeated) {
            match piece.remote_link {
                RemoteLink::Endpoint(half) => self.take(*half, out),
                _ => self.books.misplaced += 1,
            }
        }
    }

    /// It is so late by the log: what has waited for too long is given up.
    pub fn advance(&mut self, at: LogTime) {
        self.now = self.now.max(at);
        self.give_up();
    }

    /// Takes a half in.
    pub fn take(&mut self, half: LinkEndpoint, out: &mut dyn Outlet) {
        self.books.received += 1;
        let others = self.waiting.get(&half.event.key).map(Vec::as_slice).unwrap_or_default();
        let others = others.iter().filter(|other| other.half.event.side != half.event.side);
        let (mut fitting, mut unfit) = (Vec::new(), Vec::new());
        for other in others {
            let (asked, answered) = ends(&half, &other.half);
            let exact = asked.event.unique && answered.event.unique;
            let fits = asked.trace != answered.trace
                && match self.clocks.judge(asked, answered) {
                    Verdict::Inside => true,
                    Verdict::Unknown => exact,
                    Verdict::Outside => false,
                };
            match (fits, exact) {
                (true, _) => fitting.push(other.number),
                (false, true) => unfit.push(other.number),
                (false, false) => {}
            }
        }
        match (fitting.as_slice(), unfit.is_empty()) {
            (&[one], true) => self.matched(half, one, out),
            ([], true) => self.wait(half),
            // One name, and several that could be meant, or one that cannot be: nobody knows which of them is wrong.
            _ => {
                fitting.extend(unfit);
                for number in fitting {
                    self.remove(&half.event.key, number);
                    self.books.refused += 1;
                }
                self.books.refused += 1;
            }
        }
    }

    fn matched(&mut self, half: LinkEndpoint, other: u64, out: &mut dyn Outlet) {
        let Some(other) = self.remove(&half.event.key, other) else { return };
        self.books.matched += 2;
        let (asked, answered) = ends(&half, &other.half);
        let exact = asked.event.unique && answered.event.unique;
        if exact {
            self.clocks.learn(asked, answered);
            if let Some(apart) = self.clocks.apart(asked, answered) {
                out.apart(&apart);
            }
        }
        let name = &half.event.key.protocol;
        let alone = if asked.event.no_reply { ", which saw no answer" } else { "" };
        let rule = if exact {
            format!("exact: {name} connection and cookie{alone}")
        } else {
            format!("rule: {name} connection and cookie, inside by both clocks{alone}")
        };
        let moved = Reparented {
            trace: asked.trace,
            parent: asked.event.span,
            rule: rule.into(),
            clock: shift(asked, answered),
        };
        self.numbers
            .write(TraceFragment::link_only(answered.trace, RemoteLink::Reparented(moved.into())), out);
    }

    fn wait(&mut self, half: LinkEndpoint) {
        let (number, meeting) = (self.count, half.event.key.clone());
        self.count += 1;
        self.pending += 1;
        self.order.push_back((self.now, number, meeting.clone()));
        self.waiting.entry(meeting).or_default().push(Waiting { number, half });
        self.give_up();
    }

    fn give_up(&mut self) {
        while let Some((since, number, meeting)) = self.order.front() {
            let over = self.now.0.saturating_sub(since.0) > self.config.wait_for;
            let there =
                self.waiting.get(meeting).is_some_and(|all| all.iter().any(|one| one.number == *number));
            if there && !over && self.pending <= WAITING_MAX as u64 {
                return;
            }
            let (number, meeting) = (*number, meeting.clone());
            self.order.pop_front();
            self.books.alone += u64::from(self.remove(&meeting, number).is_some());
        }
    }

    fn remove(&mut self, meeting: &RpcKey, number: u64) -> Option<Waiting> {
        let all = self.waiting.get_mut(meeting)?;
        let found = all.swap_remove(all.iter().position(|one| one.number == number)?);
        if all.is_empty() {
            self.waiting.remove(meeting);
        }
        self.pending -= 1;
        Some(found)
    }

    /// The whole of it.
    pub fn save(&mut self) -> Result<Vec<u8>, Unreadable> {
        saved::write(Stage::Link, saved::fingerprint(&self.config), self)
            .map_err(|error| Unreadable::Damaged(error.to_string()))
    }

    /// The same again; under another configuration (or of another release) it begins `epoch`.
    pub fn restore(bytes: &[u8], config: MeetStageConfig, epoch: Incarnation) -> Result<Self, Unreadable> {
        let saved::Read { state, fingerprint } = saved::read::<MeetStage>(Stage::Link, bytes)?;
        let mut stage = state;
        if fingerprint != saved::fingerprint(&config) {
            (stage.epoch, stage.numbers) = (epoch.0, Numbers::new(config.partitions));
        }
        stage.config = config;
        Ok(stage)
    }

    /// Under which its pieces are numbered.
    pub fn epoch(&self) -> Incarnation {
        Incarnation(self.epoch)
    }

    /// Halves that wait. While there are some, and the partition is silent, it needs ticks.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// What became of halves.
    pub fn books(&self) -> &MeetBooks {
        &self.books
    }

    /// What is known of the clocks of nodes that met here.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }
}

/// Who asked, who answered.
fn ends<'a>(one: &'a LinkEndpoint, other: &'a LinkEndpoint) -> (&'a LinkEndpoint, &'a LinkEndpoint) {
    if one.event.side == RpcSide::Client { (one, other) } else { (other, one) }
}

/// Of who may have been taken at any time after it was sent.
const NO_BOUND: DurationNs = DurationNs(u64::MAX);

/// The answering end in the middle of the asking one.
fn shift(asked: &LinkEndpoint, answered: &LinkEndpoint) -> ClockShift {
    let wall = clocks::wall_less_monotonic;
    let offset = clocks::Interval::of(asked, answered);
    let apart = wall(asked) - wall(answered);
    let (offset, error) = match asked.event.no_reply {
        _ if clocks::one_clock(asked, answered) => (0, DurationNs(0)),
        true => (offset.high, NO_BOUND),
        false => (offset.middle(), DurationNs(offset.half())),
    };
    ClockShift { shift: clocks::clamp(apart - offset), error }
}

/// A stage that was read back is given one before it is used.
fn no_config() -> MeetStageConfig {
    MeetStageConfig::new(1)
}
