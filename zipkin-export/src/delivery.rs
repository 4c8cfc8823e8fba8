//! Getting a batch accepted: again when nobody answers, in halves when the answer is no, or when a server fails over it.
//!
//! *In*: a [`Batch`] and something that can post a request. *Out*: a verdict on each of its spans, told to a
//! [`Ledger`]. *Invariant*: a span gets one verdict; a request is repeated only while nobody has said what is wrong
//! with it.
//!
//! Zipkin refuses a whole list for one bad span. A refused list is therefore posted in halves until the bad
//! span stands alone: 2·log₂(1000) ≈ 20 posts for each bad one of 1000, and only that one is lost.
//!
//! A server may also *fail* over a list (500), again and again, and it does not say whether one of the spans or its own state is to
//! blame. Repeated for ever, one span would hold everything behind it; given up, a server that is broken for all would have
//! everything refused. So after [`FAILURES_MAX`] failures in a row the list is posted in halves, and a span is refused only if it
//! fails as often alone *and* the server has accepted others of the same list since. Where it accepts nothing, it is waited for.
//! *Limits*: a span that comes alone has no others to be compared with, and is repeated; a server that breaks in the middle of
//! the search has one span refused each 16 s.
//!
//! A request that nobody answers is repeated without a maximum of its own: how long is the ledger's to say. In one process
//! a queue bounds what can pile up behind it, and the deadline of the shutdown how long it goes on; behind a topic of Kafka
//! nothing piles up.
//!
//! *Rejected*: giving a request up after some attempts, or some minutes. It would lose spans that there still
//! is room for, and a server that is away is away for the next request too.

use std::ops::Range;
use std::time::Duration;

use crate::backoff::{Backoff, Jitter};
use crate::batch::Batch;

/// What a server said to one post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It has them.
    Accepted,
    /// It has all but so many, and does not say which it does not want; why.
    AcceptedBut(u64, String),
    /// Something in the list is wrong.
    Refused(String),
    /// The request is longer than it takes.
    TooLong(String),
    /// It does not want requests from us, whatever is in them.
    Denied(String),
    /// It failed over the request; by its own fault or by what is in it, it does not say.
    Failed(String),
}

/// Failures in a row after which it is looked for who is to blame. With the default back-off these are 16 s: a restart passes.
const FAILURES_MAX: u32 = 8;

/// Nobody said anything about the request: the same post may succeed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// In which way.
    pub reason: Reason,
    /// In words.
    pub why: String,
}

/// In which way nobody said anything about a request. For counting: there are few of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// No connection, or one that broke.
    NotReached,
    /// No answer in time.
    NoAnswer,
    /// It wants to be asked later.
    Busy,
    /// It failed.
    Failed,
    /// It wants nothing from us, and may be told otherwise.
    Denied,
    /// The file could not be written.
    NotWritten,
}

/// One attempt to have a request accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// In the request.
    pub spans: usize,
    /// Of the request.
    pub bytes: usize,
    /// These spans were in a request before.
    pub again: bool,
    /// What it came to.
    pub answer: Answer,
}

/// What an attempt came to, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// All were accepted.
    Accepted,
    /// All but some.
    Partly,
    /// Something in it is wrong.
    Refused,
    /// It is too long.
    TooLong,
    /// It has no verdict.
    Without(Reason),
}

impl Answer {
    fn of(answered: &Result<Reply, Away>) -> Answer {
        match answered {
            Ok(Reply::Accepted) => Answer::Accepted,
            Ok(Reply::AcceptedBut(..)) => Answer::Partly,
            Ok(Reply::Refused(_)) => Answer::Refused,
            Ok(Reply::TooLong(_)) => Answer::TooLong,
            Ok(Reply::Denied(_)) => Answer::Without(Reason::Denied),
            Ok(Reply::Failed(_)) => Answer::Without(Reason::Failed),
            Err(Away { reason, .. }) => Answer::Without(*reason),
        }
    }
}

/// Something that a request of spans can be posted to.
pub trait Post {
    /// Posts it, and waits for the answer, within a bound of its own.
    fn post(&mut self, request: &[u8]) -> Result<Reply, Away>;

    /// Whether the answer to an empty request says that somebody is there.
    fn can_be_probed(&self) -> bool {
        true
    }
}

impl<P: Post + ?Sized> Post for Box<P> {
    fn post(&mut self, request: &[u8]) -> Result<Reply, Away> {
        (**self).post(request)
    }

    fn can_be_probed(&self) -> bool {
        (**self).can_be_probed()
    }
}

/// What became of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was accepted.
    Sent,
    /// It is refused, however often it is sent; why.
    Rejected(String),
}

/// Whether to go on after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterPause {
    /// Repeat.
    GoOn,
    /// What has no verdict gets none.
    GiveUp,
}

/// Whoever wants to know what became of the spans, and says how long to go on.
pub trait Ledger {
    /// What became of the spans of `range`, of those that were handed over.
    fn settle(&mut self, range: Range<usize>, verdict: Verdict);
    /// So many of those that were settled as sent were refused all the same, nobody knows which.
    fn recant(&mut self, spans: u64, why: String);
    /// A request was posted.
    fn attempted(&mut self, _attempt: Attempt) {}
    /// The destination is away, or is back.
    fn outage(&mut self, why: Option<String>);
    /// Whether a destination that wants nothing from us is asked again, as it may be told otherwise.
    fn asks_again_when_denied(&self) -> bool;
    /// Nothing more is to be posted.
    fn is_over(&self) -> bool;
    /// A request is about to be repeated: waits for `delay`, or less.
    fn pause(&mut self, delay: Duration) -> AfterPause;
}

/// How batches are delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) backoff: Backoff,
    /// Posts after which a refused batch is not halved any further.
    pub(crate) posts_max: u32,
}

pub(crate) struct Delivery<P> {
    post: P,
    patience: Patience,
    request: Vec<u8>,
    /// Of a request that was too long.
    too_long: Option<usize>,
    /// The batch in hand was in a request already.
    posted: bool,
}

impl<P: Post> Delivery<P> {
    pub(crate) fn new(post: P, patience: Patience) -> Self {
        Delivery { post, patience, request: Vec::new(), too_long: None, posted: false }
    }

    /// Posts an empty request, so that a user hears of a wrong address before the first span is made, and that who was away
    /// is back although there is nothing to send. Nothing else depends on the answer.
    pub(crate) fn probe(&mut self, batch: &Batch, ledger: &mut impl Ledger) {
        if !self.post.can_be_probed() {
            return;
        }
        batch.request(&(0..0), &mut self.request);
        match self.post.post(&self.request) {
            Err(Away { why, .. }) | Ok(Reply::Denied(why) | Reply::Failed(why)) => ledger.outage(Some(why)),
            Ok(_) => ledger.outage(None),
        }
    }

    /// Bytes of the shortest request that was too long, since this was asked last.
    pub(crate) fn too_long(&mut self) -> Option<usize> {
        self.too_long.take()
    }

    /// Tells `ledger` what became of each span of `batch`, the first of which is its span `first`; whether it is to go
    /// on after that.
    pub(crate) fn deliver(&mut self, batch: &Batch, first: usize, ledger: &mut impl Ledger) -> AfterPause {
        let told = |range: &Range<usize>| first + range.start..first + range.end;
        let whole = 0..batch.len();
        let mut todo = vec![whole];
        let mut search = Search::default();
        let mut posts_left = self.patience.posts_max;
        self.posted = false;
        while let Some(range) = todo.pop().or_else(|| search.next()) {
            let failures_max = search.failures_max(&range, batch.len());
            let Some(reply) = self.post_until_answered(batch, &range, failures_max, ledger) else {
                return AfterPause::GiveUp;
            };
            posts_left = posts_left.saturating_sub(1);
            match reply {
                Reply::Accepted => {
                    search.accepted();
                    ledger.settle(told(&range), Verdict::Sent);
                }
                Reply::AcceptedBut(spans, why) => {
                    search.accepted();
                    ledger.settle(told(&range), Verdict::Sent);
                    ledger.recant(spans.min(range.len() as u64), why);
                }
                Reply::Refused(_) | Reply::TooLong(_) if range.len() > 1 && posts_left > 0 => {
                    halves(range, &mut todo);
                }
                Reply::Failed(why) => match search.failed(&range, batch.len()) {
                    Fault::TheSpans if range.len() > 1 && posts_left > 0 => halves(range, &mut todo),
                    Fault::TheSpans => ledger.settle(told(&range), Verdict::Rejected(why)),
                    Fault::NotKnown => search.aside.push(range),
                    Fault::TheServers => todo.push(range),
                },
                Reply::Refused(why) | Reply::TooLong(why) | Reply::Denied(why) => {
                    ledger.settle(told(&range), Verdict::Rejected(why));
                }
            }
        }
        AfterPause::GoOn
    }

    fn post_until_answered(
        &mut self,
        batch: &Batch,
        range: &Range<usize>,
        failures_max: u32,
        ledger: &mut impl Ledger,
    ) -> Option<Reply> {
        batch.request(range, &mut self.request);
        let (mut failures, mut over_it) = (0, 0);
        while !ledger.is_over() {
            let answered = self.post.post(&self.request);
            // A part is posted because the whole was.
            let again = std::mem::replace(&mut self.posted, true);
            let answer = Answer::of(&answered);
            ledger.attempted(Attempt { spans: range.len(), bytes: self.request.len(), again, answer });
            let why = match answered {
                Err(Away { why, .. }) => why,
                Ok(Reply::Denied(why)) if ledger.asks_again_when_denied() => why,
                Ok(Reply::Failed(why)) => {
                    over_it += 1;
                    if over_it >= failures_max {
                        return Some(Reply::Failed(why));
                    }
                    why
                }
                Ok(reply) => {
                    if let Reply::TooLong(_) = reply {
                        let shortest = self.too_long.unwrap_or(usize::MAX);
                        self.too_long = Some(shortest.min(self.request.len()));
                    }
                    ledger.outage(None);
                    return Some(reply);
                }
            };
            ledger.outage(Some(why));
            failures += 1;
            let delay = self.patience.backoff.delay(failures, Jitter::random());
            if ledger.pause(delay) == AfterPause::GiveUp {
                return None;
            }
        }
        None
    }
}

/// The first half is on top.
fn halves(range: Range<usize>, todo: &mut Vec<Range<usize>>) {
    let middle = range.start + range.len() / 2;
    todo.push(middle..range.end);
    todo.push(range.start..middle);
}

/// Who is to blame for a failure.
enum Fault {
    /// One of the spans, or the one.
    TheSpans,
    /// It is asked again when all others are done.
    NotKnown,
    /// It accepts nothing: it is waited for.
    TheServers,
}

/// The search for spans over which a server fails.
#[derive(Default)]
struct Search {
    /// Lists are halved without waiting.
    under_way: bool,
    /// Something has failed as often as it may.
    failed: bool,
    /// Something was accepted after that.
    accepted: bool,
    /// Posts that failed since anything was accepted.
    fruitless: u32,
    /// Spans over which it failed, alone.
    aside: Vec<Range<usize>>,
    /// All others are done.
    last_turn: bool,
}

impl Search {
    fn next(&mut self) -> Option<Range<usize>> {
        self.last_turn = true;
        self.aside.pop()
    }

    /// While it is looked for, no failure is waited for; before a span is blamed, all of them.
    fn failures_max(&self, range: &Range<usize>, spans: usize) -> u32 {
        match self.under_way && !(self.last_turn && range.len() == 1) {
            _ if spans == 1 => u32::MAX,
            true => 1,
            false => FAILURES_MAX,
        }
    }

    fn accepted(&mut self) {
        self.accepted = self.failed;
        self.fruitless = 0;
    }

    fn failed(&mut self, range: &Range<usize>, spans: usize) -> Fault {
        (self.under_way, self.failed) = (true, true);
        self.fruitless += 1;
        // A bad span fails alone, and in each list that it is in: of two halves one is accepted.
        let fruitless_max = 2 * (spans.ilog2() + 1);
        if !self.accepted && self.fruitless > fruitless_max {
            // From the beginning, with patience.
            (self.under_way, self.fruitless) = (false, 0);
            return Fault::TheServers;
        }
        let alone = range.len() == 1;
        let judged = self.accepted && self.last_turn;
        if alone && !judged { Fault::NotKnown } else { Fault::TheSpans }
    }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
