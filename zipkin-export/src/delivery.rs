//! Getting a batch accepted: again when nobody answers, in halves when the answer is no.
//!
//! *In*: a [`Batch`] and something that can post a list. *Out*: a verdict on each of its spans, told to the
//! [`Queue`]. *Invariant*: a span gets one verdict; a list is repeated only while nobody has said what is wrong
//! with it.
//!
//! Zipkin refuses a whole list for one bad span. A refused list is therefore posted in halves until the bad
//! span stands alone: 2·log₂(1000) ≈ 20 posts for each bad one of 1000, and only that one is lost.
//!
//! A list that nobody answers is repeated without a maximum of its own: that is what the queue is for. The queue
//! bounds what can pile up behind it, and the deadline of the shutdown how long it goes on.
//!
//! *Rejected*: giving a list up after some attempts, or some minutes. It would lose spans that the queue still
//! had room for, and a server that is away is away for the next list too.

use std::ops::Range;

use crate::backoff::{Backoff, Jitter};
use crate::batch::Batch;
use crate::queue::{AfterPause, Queue, Verdict};

/// Posts after which a refused batch is not halved any further: enough to find a dozen bad spans of 1000. A
/// server that refuses everything would else get 2000 posts a batch.
pub(crate) const POSTS_MAX: u32 = 256;

/// What a server said to one post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It has them.
    Accepted,
    /// Something in the list is wrong.
    Refused(String),
    /// It does not want lists from us, whatever is in them.
    Denied(String),
}

/// Nobody said anything about the list: the same post may succeed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Away(pub(crate) String);

/// Something that can post a JSON list of spans.
pub(crate) trait Post {
    fn post(&mut self, list: &[u8]) -> Result<Reply, Away>;
}

pub(crate) struct Delivery<P> {
    post: P,
    backoff: Backoff,
    list: Vec<u8>,
}

impl<P: Post> Delivery<P> {
    pub(crate) fn new(post: P, backoff: Backoff) -> Self {
        Delivery { post, backoff, list: Vec::new() }
    }

    /// Posts an empty list, so that a user hears of a wrong address before the first span is made. Nothing else
    /// depends on the answer.
    pub(crate) fn probe(&mut self, queue: &Queue) {
        match self.post.post(b"[]") {
            Err(Away(why)) | Ok(Reply::Denied(why)) => queue.set_outage(Some(why)),
            Ok(Reply::Accepted | Reply::Refused(_)) => {}
        }
    }

    /// Tells `queue` what became of each span of `batch`; of none any more once the queue is abandoned.
    pub(crate) fn deliver(&mut self, batch: &Batch, queue: &Queue) {
        let whole = 0..batch.len();
        let mut todo = vec![whole];
        let mut posts_left = POSTS_MAX;
        while let Some(range) = todo.pop() {
            let Some(reply) = self.post_until_answered(batch, &range, queue) else { return };
            posts_left = posts_left.saturating_sub(1);
            match reply {
                Reply::Accepted => queue.settle(Verdict::Sent, range.len()),
                Reply::Refused(_) if range.len() > 1 && posts_left > 0 => {
                    let middle = range.start + range.len() / 2;
                    todo.push(middle..range.end);
                    todo.push(range.start..middle);
                }
                Reply::Refused(why) | Reply::Denied(why) => {
                    queue.set_fault(why);
                    queue.settle(Verdict::Rejected, range.len());
                }
            }
        }
    }

    fn post_until_answered(&mut self, batch: &Batch, range: &Range<usize>, queue: &Queue) -> Option<Reply> {
        batch.list(range, &mut self.list);
        let mut failures = 0;
        while !queue.is_abandoned() {
            if failures > 0 {
                queue.count_retry();
            }
            match self.post.post(&self.list) {
                Ok(reply) => {
                    queue.set_outage(None);
                    return Some(reply);
                }
                Err(Away(why)) => queue.set_outage(Some(why)),
            }
            failures += 1;
            if queue.pause(self.backoff.delay(failures, Jitter::random())) == AfterPause::GiveUp {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
