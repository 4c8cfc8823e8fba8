//! Cuts a trace into fragments, and extracts its RPC endpoints.
//!
//! *In*: a finished [`Trace`]. *Out*: its spans in fragments of at most [`SPANS_MAX`], the root in
//! the first; and its RPC endpoints.
//!
//! *Invariant*: a function of the trace alone.
//!
//! A `sync()` may write tens of thousands of bios, and no Kafka record has room for all of them.
//! Such a trace is cut, and each fragment after the first is a late one. Failed spans are moved
//! into the first fragment, since the sampling rules read that one.

use blkkin_wire::fragment::{FragmentKind, TraceFragment};
use blkkin_wire::remote_link::{LinkEndpoint, NodeClock, RemoteLink, RpcEndpointEvent, RpcSide};
use blkkin_wire::span::Span;

use crate::spans;
use crate::trace::{Trace, TraceRole};

/// Maximum number of spans of a fragment. A span takes about 150 bytes in a record before
/// compression, or 1 KiB with unusually long texts. A record has at most 1 MiB by Kafka's default.
const SPANS_MAX: usize = 1_000;

pub(super) fn fragments(trace: &Trace) -> impl Iterator<Item = TraceFragment> {
    fragments_of(trace, spans::spans_of(trace))
}

/// Cuts spans that were created already.
pub(super) fn fragments_of(
    trace: &Trace,
    mut spans: Vec<Span>,
) -> impl Iterator<Item = TraceFragment> + use<> {
    if spans.len() > SPANS_MAX
        && let Some((_, below)) = spans.split_first_mut()
    {
        below.sort_by_key(|span| span.error.is_none());
    }
    let (id, kind, complete) = (trace.id, trace.kind, trace.incomplete.is_empty());
    let (kind, remote_link) = match (trace.has_remote_client(), trace.role()) {
        (true, _) => (kind, RemoteLink::PendingParent),
        (false, TraceRole::Standalone) => (kind, RemoteLink::None),
        (false, TraceRole::Root) => (kind, RemoteLink::Root),
        // The root determines whether the trace is sampled.
        (false, TraceRole::Child) => (FragmentKind::Late, RemoteLink::Child),
    };
    let sampled_by_application = trace.is_sampled_by_application();
    cut(spans).enumerate().map(move |(n, spans)| TraceFragment {
        trace: id,
        spans,
        kind: if n == 0 { kind } else { FragmentKind::Late },
        complete,
        sampled: None,
        sampled_by_application,
        remote_link: remote_link.clone(),
    })
}

/// Returns the RPC endpoints of the trace's spans.
pub(super) fn endpoints(trace: &Trace) -> impl Iterator<Item = LinkEndpoint> {
    let clock = NodeClock { source: trace.source, anchor: trace.anchor };
    // A server below the root has no trace to reparent, and is not the parent of a remote span.
    let known =
        |endpoint: &&RpcEndpointEvent| endpoint.side == RpcSide::Client || endpoint.span == trace.root_span;
    trace.rpc_endpoints.iter().filter(known).map(move |endpoint| LinkEndpoint {
        event: endpoint.clone(),
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
