//! Getting a batch accepted: again when nobody answers, in halves when the answer is no.
//!
//! *In*: a [`Batch`] and something that can post a request. *Out*: a verdict on each of its spans, told to a
//! [`Ledger`]. *Invariant*: a span gets one verdict; a request is repeated only while nobody has said what is wrong
//! with it.
//!
//! Zipkin refuses a whole list for one bad span. A refused list is therefore posted in halves until the bad
//! span stands alone: 2·log₂(1000) ≈ 20 posts for each bad one of 1000, and only that one is lost.
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
}

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
}

impl<P: Post> Delivery<P> {
    pub(crate) fn new(post: P, patience: Patience) -> Self {
        Delivery { post, patience, request: Vec::new(), too_long: None }
    }

    /// Posts an empty request, so that a user hears of a wrong address before the first span is made, and that who was away
    /// is back although there is nothing to send. Nothing else depends on the answer.
    pub(crate) fn probe(&mut self, batch: &Batch, ledger: &mut impl Ledger) {
        if !self.post.can_be_probed() {
            return;
        }
        batch.request(&(0..0), &mut self.request);
        match self.post.post(&self.request) {
            Err(Away { why, .. }) | Ok(Reply::Denied(why)) => ledger.outage(Some(why)),
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
        let mut posts_left = self.patience.posts_max;
        while let Some(range) = todo.pop() {
            let Some(reply) = self.post_until_answered(batch, &range, ledger) else {
                return AfterPause::GiveUp;
            };
            posts_left = posts_left.saturating_sub(1);
            match reply {
                Reply::Accepted => ledger.settle(told(&range), Verdict::Sent),
                Reply::AcceptedBut(spans, why) => {
                    ledger.settle(told(&range), Verdict::Sent);
                    ledger.recant(spans.min(range.len() as u64), why);
                }
                Reply::Refused(_) | Reply::TooLong(_) if range.len() > 1 && posts_left > 0 => {
                    let middle = range.start + range.len() / 2;
                    todo.push(middle..range.end);
                    todo.push(range.start..middle);
                }
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
        ledger: &mut impl Ledger,
    ) -> Option<Reply> {
        batch.request(range, &mut self.request);
        let mut failures = 0;
        while !ledger.is_over() {
            let answered = self.post.post(&self.request);
            // A part is posted because the whole was.
            let again = failures > 0 || range.len() < batch.len();
            let answer = Answer::of(&answered);
            ledger.attempted(Attempt { spans: range.len(), bytes: self.request.len(), again, answer });
            let why = match answered {
                Err(Away { why, .. }) => why,
                Ok(Reply::Denied(why)) if ledger.asks_again_when_denied() => why,
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

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
