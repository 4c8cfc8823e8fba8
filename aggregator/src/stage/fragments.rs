//! Cuts a trace into fragments, and extracts its RPC endpoints.
//!
//! *In*: a finished [`Trace`]. *Out*: its spans in fragments of at most [`SPANS_MAX`], the root in
//! the first; and its RPC endpoints. A call of QEMU that submits I/O for several requests of its guest has a fragment of
//! another trace for each.
//!
//! *Invariant*: a function of the trace alone.
//!
//! A `sync()` may write tens of thousands of bios, and no Kafka record has room for all of them.
//! Such a trace is cut, and each fragment after the first is a late one. Failed spans are moved
//! into the first fragment, since the sampling rules read that one.

use std::collections::HashMap;

use blkkin_wire::disk_request::DISK_PROTOCOL;
use blkkin_wire::fragment::{FragmentKind, TraceFragment};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::remote_link::{LinkEndpoint, NodeClock, RemoteLink, RpcEndpointEvent, RpcSide};
use blkkin_wire::span::{Span, SpanLink};

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
    let apart = take_apart(trace, &mut spans);
    let whole = (id, spans, kind, remote_link);
    let apart =
        apart.into_iter().map(|(id, spans)| (id, spans, FragmentKind::First, RemoteLink::PendingParent));
    std::iter::once(whole).chain(apart).flat_map(move |(trace, spans, kind, remote_link)| {
        cut(spans).enumerate().map(move |(n, spans)| TraceFragment {
            trace,
            spans,
            kind: if n == 0 { kind } else { FragmentKind::Late },
            complete,
            sampled: None,
            sampled_by_application,
            remote_link: remote_link.clone(),
        })
    })
}

/// Takes the spans of each submission that serves a guest's request out of the spans of the call that made several: each
/// is a trace of its own, whose root has a span link to the call.
fn take_apart(trace: &Trace, spans: &mut Vec<Span>) -> Vec<(TraceId, Vec<Span>)> {
    let servers = trace.disk_servers().into_iter().map(|server| server.endpoint);
    let roots: Vec<SpanId> =
        servers.filter(|server| is_apart(trace, server)).map(|server| server.span).collect();
    if roots.is_empty() {
        return Vec::new();
    }
    let parents: HashMap<SpanId, SpanId> =
        spans.iter().filter_map(|span| Some((span.id, span.parent?))).collect();
    let root_of = |span: &Span| {
        // A span is at most as deep as there are spans.
        let above = std::iter::successors(Some(span.id), |id| parents.get(id).copied());
        above.take(parents.len() + 1).find(|id| roots.contains(id))
    };
    let mut apart: Vec<(TraceId, Vec<Span>)> =
        roots.iter().map(|root| (trace.source.trace_id(*root), Vec::new())).collect();
    for mut span in std::mem::take(spans) {
        let Some(n) = root_of(&span).and_then(|root| roots.iter().position(|one| *one == root)) else {
            spans.push(span);
            continue;
        };
        let (id, of_root) = &mut apart[n];
        if span.id == roots[n]
            && let Some(call) = span.parent.take()
        {
            let relation = "submitted_by (exact: the call submitted it)".into();
            span.links.push(SpanLink { trace: trace.id, span: call, relation });
        }
        span.trace = *id;
        of_root.push(span);
    }
    apart
}

/// Returns the RPC endpoints of the trace's spans.
pub(super) fn endpoints(trace: &Trace) -> impl Iterator<Item = LinkEndpoint> {
    let clock = NodeClock { source: trace.source, anchor: trace.anchor };
    // The spans of a commit that a call shows are in the call's trace.
    let shown = trace.shown_in.map_or(trace.id, |position| position.trace);
    // A server below the root has no trace to reparent, and is not the parent of a remote span. No source reports an
    // endpoint toward a disk: they are made here, so that a guest has none of another's disk.
    let known = |endpoint: &&RpcEndpointEvent| {
        let is_linked = endpoint.side == RpcSide::Client || endpoint.span == trace.root_span;
        is_linked && &*endpoint.key.protocol != DISK_PROTOCOL
    };
    let of_protocol = trace.rpc_endpoints.iter().filter(known).cloned().map(|event| (event, None, None));
    let (peer, clients) = trace.disk_clients().unzip();
    let of_disks = clients.into_iter().flatten().map(move |event| (event, peer, None));
    let served = trace.disk_servers().into_iter().map(|server| (server.endpoint, None, server.image));
    of_protocol.chain(of_disks).chain(served).map(move |(event, peer, image)| LinkEndpoint {
        trace: if is_apart(trace, &event) { trace.source.trace_id(event.span) } else { shown },
        event,
        clock,
        peer,
        image,
    })
}

/// Returns whether the span of a server is the root of a trace of its own.
fn is_apart(trace: &Trace, endpoint: &RpcEndpointEvent) -> bool {
    endpoint.side == RpcSide::Server && endpoint.span != trace.root_span
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
