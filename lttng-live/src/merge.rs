//! Merge of several streams by time.
//!
//! *In*: for each stream the time of its next event, or the time before which it has none. *Out*:
//! the stream with the next event. The merge holds only times, not events.
//!
//! *Invariant*: an event is released when no other stream can still have an earlier one. Each
//! stream is in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// State of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The next event is in the heap.
    Ready,
    /// No event before this time.
    Idle(i64),
    /// No further events.
    Closed,
}

/// Streams, numbered in the order of [`StreamMerge::add`].
#[derive(Default, Debug)]
pub struct StreamMerge {
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    states: Vec<State>,
    /// Earliest time at which an idle stream may have an event; `None` until it is computed.
    limit: Option<i64>,
}

impl StreamMerge {
    /// Adds a stream without events before `from`, and returns its number.
    pub fn add(&mut self, from: i64) -> usize {
        self.states.push(State::Idle(from));
        self.limit = None;
        self.states.len() - 1
    }

    /// Sets the time of the stream's next event.
    #[inline]
    pub fn ready(&mut self, stream: usize, time: i64) {
        self.set(stream, State::Ready);
        self.heap.push(Reverse((time, stream)));
    }

    /// Marks the stream as without events before `until`.
    pub fn idle(&mut self, stream: usize, until: i64) {
        self.set(stream, State::Idle(until));
    }

    /// Marks the stream as ended.
    pub fn close(&mut self, stream: usize) {
        self.set(stream, State::Closed);
    }

    #[inline]
    fn set(&mut self, stream: usize, state: State) {
        if self.states[stream] != state {
            self.states[stream] = state;
            self.limit = None;
        }
    }

    /// Returns the earliest time at which an idle stream may have an event.
    pub fn limit(&mut self) -> i64 {
        let states = &self.states;
        *self.limit.get_or_insert_with(|| {
            let idle = states.iter().filter_map(|state| match state {
                State::Idle(until) => Some(*until),
                State::Ready | State::Closed => None,
            });
            idle.min().unwrap_or(i64::MAX)
        })
    }

    /// Returns the stream with the next event, and its time. The caller then sets the stream's new
    /// state.
    #[inline]
    pub fn pop(&mut self) -> Option<(i64, usize)> {
        let Reverse((time, _)) = *self.heap.peek()?;
        if time > self.limit() {
            return None;
        }
        self.heap.pop().map(|Reverse(next)| next)
    }

    /// Returns the time up to which an event precedes all others.
    #[inline]
    pub fn bound(&mut self) -> i64 {
        let next = self.earliest().unwrap_or(i64::MAX);
        next.min(self.limit())
    }

    /// Returns the time of the earliest event in the heap.
    #[inline]
    pub fn earliest(&self) -> Option<i64> {
        self.heap.peek().map(|Reverse((time, _))| *time)
    }

    /// Returns the time of the latest event in the heap.
    pub fn latest(&self) -> Option<i64> {
        self.heap.iter().map(|Reverse((time, _))| *time).max()
    }

    /// Returns true if all streams have ended.
    pub fn is_ended(&self) -> bool {
        self.states.iter().all(|state| *state == State::Closed)
    }

    /// Returns the streams that block others: idle, and known only up to a time before `until`.
    pub fn blocking(&self, until: i64) -> impl Iterator<Item = usize> {
        let blocks = move |state: &State| matches!(state, State::Idle(known) if *known < until);
        self.states.iter().enumerate().filter(move |(_, state)| blocks(state)).map(|(stream, _)| stream)
    }
}
