//! What pieces say of other nodes: rows, since they are seldom and short.

use super::message;
use super::read::whole;
use super::write::halves;
use crate::clock::{DurationNs, MonotonicNs};
use crate::ids::{SpanId, TraceId};
use crate::meeting::{ClockShift, LinkHalf, Meeting, MeetingEvent, Moved, NodeClock, Side};
use crate::v1::meeting::{ANSWERED, UNANSWERED, UNIQUE};
use crate::v1::{Malformed, totals};

pub(super) fn half_out<'a>(half: &'a LinkHalf, place: &mut impl FnMut(&'a str) -> u32) -> message::LinkHalf {
    let LinkHalf { event, clock, .. } = half;
    let flag = |set, flag| if set { flag } else { 0 };
    message::LinkHalf {
        flags: flag(event.side == Side::Answered, ANSWERED)
            | flag(event.unique, UNIQUE)
            | flag(event.unanswered, UNANSWERED),
        span: event.span.0,
        root: event.root.0,
        rule: place(&event.meeting.rule),
        connection: place(&event.meeting.connection),
        cookie: event.meeting.cookie,
        begin: event.begin.0,
        end: event.end.0,
        node: clock.source.node.0.to_be_bytes().to_vec(),
        boot: clock.source.boot.0.to_be_bytes().to_vec(),
        epoch: clock.source.epoch.0,
        anchor: totals::write_anchor(&clock.anchor),
    }
}

pub(super) fn half_in(
    half: &message::LinkHalf,
    trace: TraceId,
    mut word: impl FnMut(u32, &'static str) -> Result<Box<str>, Malformed>,
) -> Result<LinkHalf, Malformed> {
    let source = totals::source_of(&half.node, &half.boot, half.epoch, ["LinkHalf.node", "LinkHalf.boot"])?;
    Ok(LinkHalf {
        event: MeetingEvent {
            span: SpanId(half.span),
            root: SpanId(half.root),
            side: if half.flags & ANSWERED != 0 { Side::Answered } else { Side::Asked },
            meeting: Meeting {
                rule: word(half.rule, "LinkHalf.rule")?,
                connection: word(half.connection, "LinkHalf.connection")?,
                cookie: half.cookie,
            },
            unique: half.flags & UNIQUE != 0,
            unanswered: half.flags & UNANSWERED != 0,
            begin: MonotonicNs(half.begin),
            end: MonotonicNs(half.end),
        },
        trace,
        clock: NodeClock { source, anchor: totals::read_anchor(&half.anchor) },
    })
}

pub(super) fn moved_out(moved: &Moved, rule: u32) -> message::Moved {
    let (trace_high, trace_low) = halves(moved.to);
    message::Moved {
        trace_high,
        trace_low,
        parent: moved.parent.0,
        rule,
        shift: moved.clock.shift,
        error: moved.clock.error.0,
    }
}

pub(super) fn moved_in(
    moved: &message::Moved,
    mut word: impl FnMut(u32, &'static str) -> Result<Box<str>, Malformed>,
) -> Result<Moved, Malformed> {
    Ok(Moved {
        to: whole(&moved.trace_high, &moved.trace_low),
        parent: SpanId(moved.parent),
        rule: word(moved.rule, "Moved.rule")?,
        clock: ClockShift { shift: moved.shift, error: DurationNs(moved.error) },
    })
}
