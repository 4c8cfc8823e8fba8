//! A trace as pieces.
//!
//! *In*: a finished [`Trace`]. *Out*: its spans in pieces of [`SPANS_MAX`] at the most, the root in the first; and, beside them, its ends of requests between nodes. *Invariant*: a
//! function of the trace alone.
//!
//! A `sync()` may have written tens of thousands of bios, and no record of Kafka holds all of them. So such a trace is cut,
//! and everything behind the first piece is a later part of it. What failed comes forward into the first: whether a trace is
//! kept is decided by that.

use blkkin_wire::fragment::{FragmentKind, TraceFragment};
use blkkin_wire::remote_link::{LinkEndpoint, NodeClock, RemoteLink, RpcEndpointEvent, RpcSide};
use blkkin_wire::span::Span;

use crate::trace::{Hangs, Trace};
use crate::translate;

/// Spans of a piece. A span is some 150 bytes in a record before compression, 1 KiB with unusually long words, and a record is
/// 1 MiB at the most by Kafka's default.
const SPANS_MAX: usize = 1_000;

pub(super) fn pieces(trace: &Trace) -> impl Iterator<Item = TraceFragment> {
    pieces_of(trace, translate::spans(trace))
}

/// The same where its spans were made already.
pub(super) fn pieces_of(trace: &Trace, mut spans: Vec<Span>) -> impl Iterator<Item = TraceFragment> + use<> {
    if spans.len() > SPANS_MAX
        && let Some((_, below)) = spans.split_first_mut()
    {
        below.sort_by_key(|span| span.error.is_none());
    }
    let (id, part, complete) = (trace.id, trace.part, trace.missing.nothing());
    let (part, across) = match (trace.answered(), trace.hangs()) {
        (true, _) => (part, RemoteLink::PendingParent),
        (false, Hangs::ByItself) => (part, RemoteLink::None),
        (false, Hangs::Above) => (part, RemoteLink::Root),
        // Whether the trace is kept is its root's matter.
        (false, Hangs::Below) => (FragmentKind::Late, RemoteLink::Child),
    };
    let sampled_by_program = trace.is_sampled_by_program();
    cut(spans).enumerate().map(move |(n, spans)| TraceFragment {
        trace: id,
        spans,
        kind: if n == 0 { part } else { FragmentKind::Late },
        complete,
        sampled: None,
        sampled_by_application: sampled_by_program,
        remote_link: across.clone(),
    })
}

/// The ends of requests between nodes that the trace's spans were.
pub(super) fn halves(trace: &Trace) -> impl Iterator<Item = LinkEndpoint> {
    let clock = NodeClock { source: trace.source, anchor: trace.anchor };
    // Who answered below its root has no trace to move, and is no parent of anything.
    let known = |met: &&RpcEndpointEvent| met.side == RpcSide::Client || met.span == trace.root_span;
    trace.meetings.iter().filter(known).map(move |met| LinkEndpoint {
        event: met.clone(),
        trace: trace.id,
        clock,
    })
}

fn cut(mut spans: Vec<Span>) -> impl Iterator<Item = Vec<Span>> {
    std::iter::from_fn(move || {
        if spans.is_empty() {
            return None;
        }
        let rest = if spans.len() > SPANS_MAX { spans.split_off(SPANS_MAX) } else { Vec::new() };
        Some(std::mem::replace(&mut spans, rest))
    })
}
