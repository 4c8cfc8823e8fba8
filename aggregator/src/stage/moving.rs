//! A piece of one trace as a piece of another.
//!
//! *In*: a piece of a provisional trace, and where that is shown. *Out*: the same spans there. *Invariant*: no time is changed
//! without saying by how much: what was the root has the shift in a tag and how far that may be off; times less the shift are
//! those of the node's own clock.

use std::borrow::Cow;

use blkkin_wire::clock::WallclockNs;
use blkkin_wire::fragment::{FragmentKind, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::{RemoteLink, Reparented};
use blkkin_wire::span::{Span, SpanKind, TagValue};

/// Moves of one piece: client, proxy, server, host are three. Beyond it somebody goes in circles.
const MOVES_MAX: u8 = 8;

/// What was added to a trace's times, and how far they may be off by that.
const SHIFT: &str = "blkkin.clock.shift.ns";
const ERROR: &str = "blkkin.clock.error.ns";
/// In its place where there is none.
const NO_BOUND: &str = "no bound: who asked saw no answer";

/// As it is shown where `moved` says; none after too many moves.
pub(super) fn shown(piece: &TraceFragment, moved: &Reparented) -> Option<TraceFragment> {
    let before = if let RemoteLink::Forwarded(moves) = piece.remote_link { moves } else { 0 };
    let moves = before.checked_add(1).filter(|moves| *moves <= MOVES_MAX)?;
    let spans = piece.spans.iter().map(|span| span_shown(span, piece.trace, moved)).collect();
    let across = RemoteLink::Forwarded(moves);
    Some(TraceFragment {
        trace: moved.trace,
        spans,
        kind: FragmentKind::Late,
        remote_link: across,
        ..piece.clone()
    })
}

fn span_shown(span: &Span, from: TraceId, moved: &Reparented) -> Span {
    let mut span = span.clone();
    let shift = moved.clock.shift;
    span.start = shifted(span.start, shift);
    span.annotations.iter_mut().for_each(|(time, _)| *time = shifted(*time, shift));
    span.links.iter_mut().filter(|link| link.trace == from).for_each(|link| link.trace = moved.trace);
    if span.trace == from {
        span.trace = moved.trace;
    }
    if span.parent.is_none() {
        span.parent = Some(moved.parent);
        span.kind = SpanKind::Server;
        let mut tag = |key: &'static str, value| span.tags.push((Cow::Borrowed(key), value));
        tag("blkkin.link", TagValue::Text(Cow::Owned(moved.rule.to_string())));
        tag("blkkin.trace.own", TagValue::Text(Cow::Owned(from.to_string())));
        tag(SHIFT, TagValue::Number(0));
        tag(ERROR, TagValue::Number(0));
    }
    // Also of what was a root in another trace and was moved with that.
    let error = i64::try_from(moved.clock.error.0).unwrap_or(i64::MAX);
    for (key, value) in &mut span.tags {
        let more = if key == SHIFT { shift } else { error };
        match (key.as_ref(), value) {
            (ERROR, value @ TagValue::Number(_)) if more == i64::MAX => {
                *value = TagValue::Text(Cow::Borrowed(NO_BOUND));
            }
            (SHIFT | ERROR, TagValue::Number(sum)) => *sum = sum.saturating_add(more),
            _ => {}
        }
    }
    span
}

fn shifted(time: WallclockNs, shift: i64) -> WallclockNs {
    WallclockNs(time.0.saturating_add_signed(shift))
}
