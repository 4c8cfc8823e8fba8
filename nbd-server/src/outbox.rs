//! Replies that wait to be sent.
//!
//! *In*: whole replies, each with its span. *Out*: slices for one write of many. *Invariant*: replies go out whole and in
//! order, whatever a write took; a span says that it answers before its first byte is given out, and ends only when its last one was taken.

use std::collections::VecDeque;
use std::io::IoSlice;

use blkkin_ust::SpanBatch;

use crate::export::Answer;
use crate::op::Op;

/// A reply, and what it means.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    /// What its request holds of its connection's allowance.
    pub(crate) cost: usize,
    /// Ends when it is dropped.
    pub(crate) op: Op,
}

impl Reply {
    pub(crate) fn new(answer: Answer, cost: usize, op: Op) -> Self {
        op.outcome(answer.errno);
        Self { bytes: answer.bytes, cost, op }
    }
}

/// In the order in which they became ready.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    replies: VecDeque<Reply>,
    /// Bytes of the first one that are sent.
    sent: usize,
    /// The first so many have said that they answer.
    answering: usize,
}

impl Outbox {
    pub(crate) fn push(&mut self, reply: Reply) {
        self.replies.push_back(reply);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// What is to be sent now, first things first.
    pub(crate) fn slices<'a>(&'a mut self, into: &mut Vec<IoSlice<'a>>, most: usize) {
        let now = most.min(self.replies.len());
        let mut together = SpanBatch::new();
        for reply in self.replies.range(self.answering.min(now)..now) {
            reply.op.answers(&mut together);
        }
        drop(together);
        self.answering = self.answering.max(now);
        let rest = self.replies.iter().skip(1).map(|reply| IoSlice::new(&reply.bytes));
        let first = self.replies.front().map(|reply| IoSlice::new(&reply.bytes[self.sent..]));
        into.extend(first.into_iter().chain(rest).take(most));
    }

    /// So many bytes were taken. What that sent whole is over; says what those requests held.
    pub(crate) fn advance(&mut self, bytes: usize) -> Released {
        let mut released = Released::default();
        self.sent += bytes;
        let mut together = SpanBatch::new();
        while let Some(first) = self.replies.front()
            && self.sent >= first.bytes.len()
        {
            self.sent -= first.bytes.len();
            released.add(first.cost);
            self.answering = self.answering.saturating_sub(1);
            if let Some(reply) = self.replies.pop_front() {
                reply.op.end(&mut together);
            }
        }
        released
    }

    /// Nothing will be sent any more.
    pub(crate) fn lose(&mut self) -> Released {
        let mut released = Released::default();
        for reply in self.replies.drain(..) {
            reply.op.lost();
            released.add(reply.cost);
        }
        (self.sent, self.answering) = (0, 0);
        released
    }
}

/// What requests that are over held.
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

    fn reply(length: usize, byte: u8) -> Reply {
        let request = Request { command: Command::Read, flags: 0, cookie: 0, offset: 0, length: 1 };
        let op = Op::unnamed(&request);
        Reply::new(Answer { bytes: vec![byte; length], errno: 0 }, length, op)
    }

    #[test]
    fn replies_go_out_whole_and_in_order_whatever_a_write_takes() {
        for taken in 1..40 {
            let mut outbox = Outbox::default();
            let lengths = [16, 28, 1, 20];
            (0..).zip(lengths).for_each(|(byte, length)| outbox.push(reply(length, byte)));
            let (mut sent, mut released) = (Vec::new(), 0);
            while !outbox.is_empty() {
                let mut slices = Vec::new();
                outbox.slices(&mut slices, 2);
                assert!(slices.len() <= 2);
                let now: Vec<u8> =
                    slices.iter().flat_map(|slice| slice.iter().copied()).take(taken).collect();
                drop(slices);
                released += outbox.advance(now.len()).cost;
                sent.extend(now);
            }
            let expected: Vec<u8> =
                (0..).zip(lengths).flat_map(|(byte, length)| vec![byte; length]).collect();
            assert_eq!((sent, released), (expected, lengths.iter().sum()), "{taken}");
        }
    }
}
