//! Send queue of one connection: replies that wait for the socket.
//!
//! *In*: complete replies, each with its span. *Out*: slices, many of which one write sends.
//! *Invariant*: replies are sent completely and in order, however many bytes a write takes. A span
//! gets its event `answers` before its first byte is written, and ends after its last byte was
//! taken.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::export::EncodedReply;
use crate::request_span::RequestSpan;

/// Reply in a send queue.
#[derive(Debug)]
pub(crate) struct QueuedReply {
    pub(crate) bytes: Vec<u8>,
    /// Bytes that the request was charged, and which return when it ends.
    pub(crate) cost: usize,
    /// Ends when it is dropped.
    pub(crate) span: RequestSpan,
}

impl QueuedReply {
    pub(crate) fn new(reply: EncodedReply, cost: usize, span: RequestSpan) -> Self {
        span.set_status(reply.errno);
        Self { bytes: reply.bytes, cost, span }
    }
}

/// Replies of one connection, in the order in which their requests were executed.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    replies: VecDeque<QueuedReply>,
    /// Number of bytes of the first reply that were sent.
    sent: usize,
    /// Number of replies, from the first on, whose spans have the event `answers`.
    begun: usize,
}

impl SendQueue {
    pub(crate) fn push(&mut self, reply: QueuedReply) {
        self.replies.push_back(reply);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Appends the next bytes to send to `slices`, of at most `max` replies.
    pub(crate) fn slices<'a>(&'a mut self, slices: &mut Vec<IoSlice<'a>>, max: usize) {
        let now = max.min(self.replies.len());
        for reply in self.replies.range(self.begun.min(now)..now) {
            reply.span.emit_answers();
        }
        self.begun = self.begun.max(now);
        let rest = self.replies.iter().skip(1).map(|reply| IoSlice::new(&reply.bytes));
        let first = self.replies.front().map(|reply| IoSlice::new(&reply.bytes[self.sent..]));
        slices.extend(first.into_iter().chain(rest).take(max));
    }

    /// Records that a write took `bytes` bytes, and ends the requests whose replies are sent
    /// completely. Returns their cost.
    pub(crate) fn advance(&mut self, bytes: usize) -> Released {
        let mut released = Released::default();
        self.sent += bytes;
        while let Some(first) = self.replies.front()
            && self.sent >= first.bytes.len()
        {
            self.sent -= first.bytes.len();
            released.add(first.cost);
            self.begun = self.begun.saturating_sub(1);
            // Ends the span.
            self.replies.pop_front();
        }
        released
    }

    /// Drops all replies, because the connection is lost. Returns their cost.
    pub(crate) fn discard(&mut self) -> Released {
        let mut released = Released::default();
        for reply in self.replies.drain(..) {
            reply.span.set_connection_lost();
            released.add(reply.cost);
        }
        (self.sent, self.begun) = (0, 0);
        released
    }
}

/// Cost and number of requests that ended, to be released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) cost: usize,
    pub(crate) requests: usize,
}

impl Released {
    fn add(&mut self, cost: usize) {
        self.cost += cost;
        self.requests += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Command, Request};

    fn reply(length: usize, byte: u8) -> QueuedReply {
        let request = Request { command: Command::Read, flags: 0, cookie: 0, offset: 0, length: 1 };
        let span = RequestSpan::without_rpc_key(&request);
        QueuedReply::new(EncodedReply { bytes: vec![byte; length], errno: 0 }, length, span)
    }

    #[test]
    fn replies_are_sent_completely_and_in_order_for_any_write_size() {
        for taken in 1..40 {
            let mut queue = SendQueue::default();
            let lengths = [16, 28, 1, 20];
            (0..).zip(lengths).for_each(|(byte, length)| queue.push(reply(length, byte)));
            let (mut sent, mut released) = (Vec::new(), 0);
            while !queue.is_empty() {
                let mut slices = Vec::new();
                queue.slices(&mut slices, 2);
                assert!(slices.len() <= 2);
                let now: Vec<u8> =
                    slices.iter().flat_map(|slice| slice.iter().copied()).take(taken).collect();
                drop(slices);
                released += queue.advance(now.len()).cost;
                sent.extend(now);
            }
            let expected: Vec<u8> =
                (0..).zip(lengths).flat_map(|(byte, length)| vec![byte; length]).collect();
            assert_eq!((sent, released), (expected, lengths.iter().sum()), "{taken}");
        }
    }
}
