//! The order in which streams' events come out: by time, over all streams.
//!
//! Only numbers here: which stream's next event is when, and until when a stream that has none is known to have none. An
//! event may go as soon as no other stream can still bring an earlier one. Streams themselves are in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is known of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its next event is in the heap.
    Ready,
    /// It has no event before this time.
    Quiet(i64),
    /// It has none any more.
    Closed,
}

/// Streams by number, in the order in which they were added.
#[derive(Default, Debug)]
pub struct Merge {
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    states: Vec<State>,
    /// The earliest time at which a quiet stream may bring an event.
    limit: Option<i64>,
}

impl Merge {
    /// A stream that has no event before `from`; its number.
    pub fn add(&mut self, from: i64) -> usize {
        self.states.push(State::Quiet(from));
        self.limit = None;
        self.states.len() - 1
    }

    /// The stream's next event is at `time`.
    #[inline]
    pub fn ready(&mut self, stream: usize, time: i64) {
        self.set(stream, State::Ready);
        self.heap.push(Reverse((time, stream)));
    }

    /// The stream has no event before `until`.
    pub fn quiet(&mut self, stream: usize, until: i64) {
        self.set(stream, State::Quiet(until));
    }

    /// The stream brings nothing any more.
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

    /// The earliest time that may still come from a stream without an event here.
    pub fn limit(&mut self) -> i64 {
        let states = &self.states;
        *self.limit.get_or_insert_with(|| {
            let quiet = states.iter().filter_map(|state| match state {
                State::Quiet(until) => Some(*until),
                State::Ready | State::Closed => None,
            });
            quiet.min().unwrap_or(i64::MAX)
        })
    }

    /// The stream whose event is next, and its time. It is ready no more: say what it is now.
    #[inline]
    pub fn pop(&mut self) -> Option<(i64, usize)> {
        let Reverse((time, _)) = *self.heap.peek()?;
        if time > self.limit() {
            return None;
        }
        self.heap.pop().map(|Reverse(next)| next)
    }

    /// An event up to here may go before all others.
    #[inline]
    pub fn bound(&mut self) -> i64 {
        let next = self.earliest().unwrap_or(i64::MAX);
        next.min(self.limit())
    }

    /// The earliest event that is here.
    #[inline]
    pub fn earliest(&self) -> Option<i64> {
        self.heap.peek().map(|Reverse((time, _))| *time)
    }

    /// The latest of the events that are next in their streams.
    pub fn latest(&self) -> Option<i64> {
        self.heap.iter().map(|Reverse((time, _))| *time).max()
    }

    /// True if no stream can bring anything any more.
    pub fn is_over(&self) -> bool {
        self.states.iter().all(|state| *state == State::Closed)
    }

    /// Streams that hold others up: without an event, and known for no later than `until`.
    pub fn holding(&self, until: i64) -> impl Iterator<Item = usize> {
        let held = move |state: &State| matches!(state, State::Quiet(known) if *known < until);
        self.states.iter().enumerate().filter(move |(_, state)| held(state)).map(|(stream, _)| stream)
    }
}
