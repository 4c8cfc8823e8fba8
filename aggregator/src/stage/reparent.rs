//! Turns a fragment of one trace into a fragment of another.
//!
//! *In*: a fragment of a provisional trace, and the client's span. *Out*: the same spans in the
//! client's trace.
//!
//! *Invariant*: every change of a time is recorded. The former root has the clock shift and its
//! error bound as tags. Times minus the shift are those of the node's own clock.
//!
//! *Rejected*: a new fragment with the client's clock alone. The original times could not be
//! restored.

use std::borrow::Cow;

use blkkin_wire::clock::WallclockNs;
use blkkin_wire::fragment::{FragmentKind, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::{RemoteLink, Reparented};
use blkkin_wire::span::{Span, SpanKind, TagValue};

/// Maximum number of reparents of a fragment. Client, proxy, server and host are three. Beyond it
/// there is a loop.
const REPARENTS_MAX: u8 = 8;

/// Tags: clock shift that was added to a trace's times, and its error bound.
const SHIFT: &str = "blkkin.clock.shift.ns";
const ERROR: &str = "blkkin.clock.error.ns";
/// Text of the error bound if there is none.
const NO_BOUND: &str = "no bound: the client observed no reply";

/// Returns the fragment in the trace of `target`, or none after too many reparents.
pub(super) fn reparented(fragment: &TraceFragment, target: &Reparented) -> Option<TraceFragment> {
    let before = if let RemoteLink::Forwarded(count) = fragment.remote_link { count } else { 0 };
    let count = before.checked_add(1).filter(|count| *count <= REPARENTS_MAX)?;
    let spans = fragment.spans.iter().map(|span| reparented_span(span, fragment.trace, target)).collect();
    let remote_link = RemoteLink::Forwarded(count);
    Some(TraceFragment {
        trace: target.trace,
        spans,
        kind: FragmentKind::Late,
        remote_link,
        ..fragment.clone()
    })
}

fn reparented_span(span: &Span, from: TraceId, target: &Reparented) -> Span {
    let mut span = span.clone();
    let shift = target.clock.shift;
    span.start = shifted(span.start, shift);
    span.annotations.iter_mut().for_each(|(time, _)| *time = shifted(*time, shift));
    span.links.iter_mut().filter(|link| link.trace == from).for_each(|link| link.trace = target.trace);
    if span.trace == from {
        span.trace = target.trace;
    }
    if span.parent.is_none() {
        span.parent = Some(target.parent);
        span.kind = SpanKind::Server;
        let mut tag = |key: &'static str, value| span.tags.push((Cow::Borrowed(key), value));
        tag("blkkin.parent.evidence", TagValue::Text(Cow::Owned(target.rule.to_string())));
        tag("blkkin.trace.own", TagValue::Text(Cow::Owned(from.to_string())));
        tag(SHIFT, TagValue::Number(0));
        tag(ERROR, TagValue::Number(0));
    }
    // Also for the former root of another trace that moved along.
    let error = i64::try_from(target.clock.error.0).unwrap_or(i64::MAX);
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
