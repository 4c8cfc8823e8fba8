//! Requests that go from one node to another, and how their two ends find each other.
//!
//! *In*: what each node saw of its own end: a [`MeetingEvent`] beside the span that asked or answered. *Out*: halves
//! ([`LinkHalf`]) that meet by [`Meeting`], and what a match says ([`Moved`]): in whose trace the one that answered is shown.
//!
//! *Invariant*: two halves are one request only by a name that the protocol itself put on the wire: connection and
//! cookie. Never by time, size or place alone.
//!
//! # Why a trace moves
//!
//! The node that answers does not know in whose trace it works: the protocol carries a cookie, no trace context. So its trace
//! begins under an id of its own, a provisional one, and is *moved* once the halves have met: its spans are said again under
//! the asker's trace id, its root below the span that asked. The provisional id stays in a tag.
//!
//! *Rejected*: an id computed by both ends from connection and cookie (the asker's trace may hold many requests to many nodes;
//! it has one id); a link instead of a parent (Zipkin shows no links).

use serde::{Deserialize, Serialize};

use crate::clock::{ClockAnchor, DurationNs, MonotonicNs};
use crate::ids::{Source, SpanId, TraceId};
use crate::partition::partition_of;

/// Which end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// It sent the request and waited for the answer: the parent.
    Asked,
    /// It took the request and sent the answer: the child, and the root of its own trace.
    Answered,
}

/// What both ends call one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Meeting {
    /// The protocol: `nbd`.
    pub rule: Box<str>,
    /// The connection, by a name that both ends find: `10.0.0.1:41234>10.0.0.2:10809`, the asker's end first.
    pub connection: Box<str>,
    /// The protocol's own number of the request.
    pub cookie: u64,
}

/// One end of a request, at the moment when it was over there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeetingEvent {
    /// The span that asked, or that answered.
    pub span: SpanId,
    /// Where its trace began.
    pub root: SpanId,
    /// Which end.
    pub side: Side,
    /// The request's name.
    pub meeting: Meeting,
    /// The protocol never gives one cookie twice on a connection. If it does, halves are matched only by clocks that are known.
    pub unique: bool,
    /// Of who asked: no answer was seen. Then `end` is when that was known, and says nothing of the other end's.
    pub unanswered: bool,
    /// The request was sent, or came.
    pub begin: MonotonicNs,
    /// The answer came, or was about to be sent.
    pub end: MonotonicNs,
}

/// A clock and how it is turned into wall clock: times of two halves are comparable through both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClock {
    /// Whose monotonic clock.
    pub source: Source,
    /// By which its spans' times became wall clock.
    pub anchor: ClockAnchor,
}

/// One end of a request on its way to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkHalf {
    /// The event.
    pub event: MeetingEvent,
    /// Its trace; of the one that answered a provisional one.
    pub trace: TraceId,
    /// Of which clock its times are.
    pub clock: NodeClock,
}

/// Wall clock times of one node as the other's clock has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockShift {
    /// To be added to times of the node that answered. ns.
    pub shift: i64,
    /// It is off by no more: half of what the asker saw of the request and the other did not.
    pub error: DurationNs,
}

/// A trace is shown in another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The asker's trace.
    pub to: TraceId,
    /// The span that asked: parent of what was the root.
    pub parent: SpanId,
    /// By which rule that is known.
    pub rule: Box<str>,
    /// Puts the times of the one on the clock of the other.
    pub clock: ClockShift,
}

/// What a piece has to do with other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Across {
    /// Nothing that is known.
    #[default]
    Nothing,
    /// It is the root of a trace of which the parts come one by one, and before it: they wait for it.
    Head,
    /// It is a part of such a trace: it is kept or left out with its root.
    Below,
    /// Its root answered somebody: its trace is provisional.
    Awaits,
    /// It is no part of a trace but one end of a request. Of `blkkin.links` only.
    Half(Box<LinkHalf>),
    /// It says where its trace is shown from now on. Of `blkkin.spans` only.
    Moved(Box<Moved>),
    /// It came from another trace, over so many moves. Of `blkkin.spans` only.
    Forwarded(u8),
}

impl Meeting {
    /// Where halves of this connection lie in `blkkin.links`: by rule and connection, so that all that is known of the two clocks
    /// by this connection is known in one place.
    pub fn partition(&self, partitions: u32) -> u32 {
        let key = [self.rule.as_bytes(), b"\0", self.connection.as_bytes()].concat();
        partition_of(&key, partitions)
    }
}

impl MeetingEvent {
    /// When it was said.
    pub fn time(&self) -> MonotonicNs {
        self.end
    }

    /// How long it took at this end.
    pub fn took(&self) -> DurationNs {
        self.end.since(self.begin)
    }
}
