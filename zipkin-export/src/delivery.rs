//! Delivery of a batch: retries while the server is unreachable, halves when it rejects the batch
//! or fails on it.
//!
//! *In*: a [`Batch`] and a transport. *Out*: a result for each span, reported to a
//! [`DeliveryObserver`]. *Invariant*: each span gets one result. A request is retried only as long
//! as no server has rejected it.
//!
//! Zipkin rejects a whole list for one bad span. A rejected list is therefore posted in halves
//! until the bad span is alone: 2·log₂(1000) ≈ 20 posts for each bad span of 1000, and only that
//! span is lost.
//!
//! A server can also *fail* on a list (500), repeatedly, without stating whether a span or its own
//! state is the cause. Retrying for ever would let one span block all others; giving up would let a
//! broken server reject everything. So after [`FAILURES_MAX`] consecutive failures the list is
//! posted in halves. A span is rejected only if the server fails on it alone equally often *and*
//! has accepted other spans of the same list since. If the server accepts nothing, delivery waits
//! for it.
//!
//! *Limits*: a span that arrives alone has no others to compare with, and is retried. A server that
//! breaks during the search causes one rejected span every 16 s.
//!
//! A request without a response is retried without a limit here: the observer decides how long. In
//! one process, the queue bounds the backlog and the shutdown deadline bounds the time. Behind a
//! Kafka topic there is no backlog.
//!
//! *Rejected*: giving up on a request after some attempts or minutes. It would lose spans while
//! there is still room for them, and an unreachable server is unreachable for the next request too.

use std::ops::Range;
use std::time::Duration;

use crate::backoff::{Backoff, Jitter};
use crate::batch::Batch;

/// Reply of a server to one post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerReply {
    /// Accepted all spans.
    Accepted,
    /// Accepted all spans except this number, which the server does not identify; with its reason.
    PartlyAccepted(u64, String),
    /// A span of the list is invalid.
    Refused(String),
    /// The request exceeds the server's size limit.
    TooLarge(String),
    /// The server accepts no requests from this client.
    Denied(String),
    /// The server failed on the request, because of its state or because of the content.
    ServerError(String),
}

/// Consecutive failures before the search for bad spans begins. With the default back-off these are
/// 16 s: longer than a restart.
const FAILURES_MAX: u32 = 8;

/// No reply about the request: the same post can succeed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Reason.
    pub reason: FailureReason,
    /// Reason as text.
    pub why: String,
}

/// Reason why an attempt failed. For metrics: there are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureReason {
    /// No connection, or the connection broke.
    ConnectFailed,
    /// No response in time.
    Timeout,
    /// The server asked to retry later.
    Busy,
    /// The server failed.
    ServerError,
    /// The server accepts no requests from this client; its configuration may change.
    Denied,
    /// The file could not be written.
    WriteFailed,
}

/// Attempt to deliver a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Spans in the request.
    pub spans: usize,
    /// Bytes of the request.
    pub bytes: usize,
    /// True if these spans were in an earlier request.
    pub retry: bool,
    /// Result.
    pub result: AttemptResult,
}

/// Result of an attempt, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttemptResult {
    /// Accepted all spans.
    Accepted,
    /// Some spans rejected.
    PartlyAccepted,
    /// A span is invalid.
    Refused,
    /// The request is too large.
    TooLarge,
    /// No result: the attempt failed.
    Failed(FailureReason),
}

impl AttemptResult {
    fn of(reply_or_error: &Result<ServerReply, Unreachable>) -> AttemptResult {
        match reply_or_error {
            Ok(ServerReply::Accepted) => AttemptResult::Accepted,
            Ok(ServerReply::PartlyAccepted(..)) => AttemptResult::PartlyAccepted,
            Ok(ServerReply::Refused(_)) => AttemptResult::Refused,
            Ok(ServerReply::TooLarge(_)) => AttemptResult::TooLarge,
            Ok(ServerReply::Denied(_)) => AttemptResult::Failed(FailureReason::Denied),
            Ok(ServerReply::ServerError(_)) => AttemptResult::Failed(FailureReason::ServerError),
            Err(Unreachable { reason, .. }) => AttemptResult::Failed(*reason),
        }
    }
}

/// Transport that can post requests of spans.
pub trait Transport {
    /// Posts a request and waits for the reply, within its own timeout.
    fn post(&mut self, request: &[u8]) -> Result<ServerReply, Unreachable>;

    /// Returns whether the reply to an empty request shows that the server is reachable.
    fn supports_probe(&self) -> bool {
        true
    }
}

impl<P: Transport + ?Sized> Transport for Box<P> {
    fn post(&mut self, request: &[u8]) -> Result<ServerReply, Unreachable> {
        (**self).post(request)
    }

    fn supports_probe(&self) -> bool {
        (**self).supports_probe()
    }
}

/// Result of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// Accepted.
    Sent,
    /// Rejected permanently, with the reason.
    Rejected(String),
}

/// Decision after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Retry.
    Continue,
    /// Stop: remaining spans get no result.
    GiveUp,
}

/// Receives the results of a delivery and decides how long it continues.
pub trait DeliveryObserver {
    /// Records the result of the spans in `range`, an index range of the spans handed over.
    fn settle(&mut self, range: Range<usize>, verdict: DeliveryResult);
    /// Records that `spans` of the spans settled as sent were rejected after all, without
    /// identifying them.
    fn mark_rejected(&mut self, spans: u64, why: String);
    /// Records an attempt.
    fn on_attempt(&mut self, _attempt: Attempt) {}
    /// Records that the destination is unreachable, or with `None` that it is back.
    fn on_outage(&mut self, why: Option<String>);
    /// Returns whether a destination that denies requests is retried, because its configuration may
    /// change.
    fn retries_when_denied(&self) -> bool;
    /// Returns whether posting must stop.
    fn is_cancelled(&self) -> bool;
    /// Waits up to `delay` before a retry.
    fn pause(&mut self, delay: Duration) -> RetryDecision;
}

/// Limits of retries and halving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) backoff: Backoff,
    /// Posts after which a rejected batch is not halved any further.
    pub(crate) posts_max: u32,
}

pub(crate) struct Delivery<P> {
    post: P,
    retry_policy: RetryPolicy,
    request: Vec<u8>,
    /// Length of the shortest request that was too large.
    shortest_too_large: Option<usize>,
    /// The current batch was already in a request.
    posted: bool,
}

impl<P: Transport> Delivery<P> {
    pub(crate) fn new(post: P, retry_policy: RetryPolicy) -> Self {
        Delivery { post, retry_policy, request: Vec::new(), shortest_too_large: None, posted: false }
    }

    /// Posts an empty request. It reports a wrong address before the first span, and the recovery
    /// of a server while no spans are pending. Nothing else depends on the reply.
    pub(crate) fn probe(&mut self, batch: &Batch, observer: &mut impl DeliveryObserver) {
        if !self.post.supports_probe() {
            return;
        }
        batch.request(&(0..0), &mut self.request);
        match self.post.post(&self.request) {
            Err(Unreachable { why, .. }) | Ok(ServerReply::Denied(why) | ServerReply::ServerError(why)) => {
                observer.on_outage(Some(why))
            }
            Ok(_) => observer.on_outage(None),
        }
    }

    /// Returns and resets the length of the shortest request that was too large.
    pub(crate) fn take_shortest_too_large(&mut self) -> Option<usize> {
        self.shortest_too_large.take()
    }

    /// Delivers `batch` and reports each result to `observer`. The batch's first span has the index
    /// `first`. Returns whether to continue.
    pub(crate) fn deliver(
        &mut self,
        batch: &Batch,
        first: usize,
        observer: &mut impl DeliveryObserver,
    ) -> RetryDecision {
        let indices = |range: &Range<usize>| first + range.start..first + range.end;
        let whole = 0..batch.len();
        let mut pending = vec![whole];
        let mut search = FaultSearch::default();
        let mut posts_left = self.retry_policy.posts_max;
        self.posted = false;
        while let Some(range) = pending.pop().or_else(|| search.next()) {
            let failures_max = search.failures_max(&range, batch.len());
            let Some(reply) = self.post_with_retries(batch, &range, failures_max, observer) else {
                return RetryDecision::GiveUp;
            };
            posts_left = posts_left.saturating_sub(1);
            match reply {
                ServerReply::Accepted => {
                    search.accepted();
                    observer.settle(indices(&range), DeliveryResult::Sent);
                }
                ServerReply::PartlyAccepted(spans, why) => {
                    search.accepted();
                    observer.settle(indices(&range), DeliveryResult::Sent);
                    observer.mark_rejected(spans.min(range.len() as u64), why);
                }
                ServerReply::Refused(_) | ServerReply::TooLarge(_) if range.len() > 1 && posts_left > 0 => {
                    split_in_half(range, &mut pending);
                }
                ServerReply::ServerError(why) => match search.failed(&range, batch.len()) {
                    FaultSource::Spans if range.len() > 1 && posts_left > 0 => {
                        split_in_half(range, &mut pending)
                    }
                    FaultSource::Spans => observer.settle(indices(&range), DeliveryResult::Rejected(why)),
                    FaultSource::Unknown => search.deferred.push(range),
                    FaultSource::Server => pending.push(range),
                },
                ServerReply::Refused(why) | ServerReply::TooLarge(why) | ServerReply::Denied(why) => {
                    observer.settle(indices(&range), DeliveryResult::Rejected(why));
                }
            }
        }
        RetryDecision::Continue
    }

    fn post_with_retries(
        &mut self,
        batch: &Batch,
        range: &Range<usize>,
        failures_max: u32,
        observer: &mut impl DeliveryObserver,
    ) -> Option<ServerReply> {
        batch.request(range, &mut self.request);
        let (mut failures, mut server_errors) = (0, 0);
        while !observer.is_cancelled() {
            let reply_or_error = self.post.post(&self.request);
            // A part is posted because the whole was posted before.
            let retry = std::mem::replace(&mut self.posted, true);
            let result = AttemptResult::of(&reply_or_error);
            observer.on_attempt(Attempt { spans: range.len(), bytes: self.request.len(), retry, result });
            let why = match reply_or_error {
                Err(Unreachable { why, .. }) => why,
                Ok(ServerReply::Denied(why)) if observer.retries_when_denied() => why,
                Ok(ServerReply::ServerError(why)) => {
                    server_errors += 1;
                    if server_errors >= failures_max {
                        return Some(ServerReply::ServerError(why));
                    }
                    why
                }
                Ok(reply) => {
                    if let ServerReply::TooLarge(_) = reply {
                        let shortest = self.shortest_too_large.unwrap_or(usize::MAX);
                        self.shortest_too_large = Some(shortest.min(self.request.len()));
                    }
                    observer.on_outage(None);
                    return Some(reply);
                }
            };
            observer.on_outage(Some(why));
            failures += 1;
            let delay = self.retry_policy.backoff.delay(failures, Jitter::random());
            if observer.pause(delay) == RetryDecision::GiveUp {
                return None;
            }
        }
        None
    }
}

/// Pushes both halves of `range`, the first one on top.
fn split_in_half(range: Range<usize>, pending: &mut Vec<Range<usize>>) {
    let middle = range.start + range.len() / 2;
    pending.push(middle..range.end);
    pending.push(range.start..middle);
}

/// Cause of a failure.
enum FaultSource {
    /// A span of the list.
    Spans,
    /// Not known: the span is retried after all others.
    Unknown,
    /// The server accepts nothing: delivery waits for it.
    Server,
}

/// Search for spans on which a server fails.
#[derive(Default)]
struct FaultSearch {
    /// Lists are halved without pauses.
    active: bool,
    /// A list failed as often as allowed.
    failed: bool,
    /// A list was accepted after that.
    accepted: bool,
    /// Failed posts since the last accepted one.
    failures_since_accept: u32,
    /// Single spans on which the server failed.
    deferred: Vec<Range<usize>>,
    /// True once all other spans are done.
    final_pass: bool,
}

impl FaultSearch {
    fn next(&mut self) -> Option<Range<usize>> {
        self.final_pass = true;
        self.deferred.pop()
    }

    /// Returns the failures allowed for `range`. The search does not wait for failures; a span is
    /// rejected only after all of them.
    fn failures_max(&self, range: &Range<usize>, spans: usize) -> u32 {
        match self.active && !(self.final_pass && range.len() == 1) {
            _ if spans == 1 => u32::MAX,
            true => 1,
            false => FAILURES_MAX,
        }
    }

    fn accepted(&mut self) {
        self.accepted = self.failed;
        self.failures_since_accept = 0;
    }

    fn failed(&mut self, range: &Range<usize>, spans: usize) -> FaultSource {
        (self.active, self.failed) = (true, true);
        self.failures_since_accept += 1;
        // A bad span fails alone and in each list that contains it: one of two halves is accepted.
        let failures_max = 2 * (spans.ilog2() + 1);
        if !self.accepted && self.failures_since_accept > failures_max {
            // Restart from the beginning, with pauses.
            (self.active, self.failures_since_accept) = (false, 0);
            return FaultSource::Server;
        }
        let single = range.len() == 1;
        let confirmed = self.accepted && self.final_pass;
        if single && !confirmed { FaultSource::Unknown } else { FaultSource::Spans }
    }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
