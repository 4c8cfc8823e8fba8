//! Remote links of fragments: rows, because they are rare and short.

use super::trace_id::{high_low, trace_id};
use crate::clock::{DurationNs, MonotonicNs};
use crate::ids::{SpanId, TraceId};
use crate::remote_link::{
    ClockShift, LinkEndpoint, NodeClock, PeerClock, Reparented, RpcEndpointEvent, RpcKey, RpcSide,
};
use crate::v1::message;
use crate::v1::rpc_endpoint::{NO_REPLY, SERVER, UNIQUE};
use crate::v1::virtual_machine::{read_offset, write_offset};
use crate::v1::{Malformed, frame};

/// Cookie of no request. An older reader would take a range of the image for one of the guest's disk.
const NO_REQUEST: u64 = u64::MAX;

pub(super) fn encode_endpoint<'a>(
    endpoint: &'a LinkEndpoint,
    index: &mut impl FnMut(&'a str) -> u32,
) -> message::LinkEndpoint {
    let LinkEndpoint { event, clock, peer, trace: _, image } = endpoint;
    let flag = |set, flag| if set { flag } else { 0 };
    message::LinkEndpoint {
        flags: flag(event.side == RpcSide::Server, SERVER)
            | flag(event.unique, UNIQUE)
            | flag(event.no_reply, NO_REPLY),
        span: event.span.0,
        root: event.root.0,
        protocol: index(&event.key.protocol),
        connection: index(&event.key.connection),
        cookie: if image.is_some() { NO_REQUEST } else { event.key.cookie },
        begin: event.begin.0,
        end: event.end.0,
        node: clock.source.node.0.to_be_bytes().to_vec(),
        boot: clock.source.boot.0.to_be_bytes().to_vec(),
        epoch: clock.source.epoch.0,
        anchor: frame::write_anchor(&clock.anchor),
        peer: peer.as_ref().map(|peer| message::PeerClock {
            node: peer.node.0.to_be_bytes().to_vec(),
            boot: peer.boot.0.to_be_bytes().to_vec(),
            offset: write_offset(&peer.offset),
        }),
        image_cookie: image.map(|_| event.key.cookie),
        image: image.unwrap_or_default(),
    }
}

pub(super) fn decode_endpoint(
    endpoint: &message::LinkEndpoint,
    trace: TraceId,
    mut string: impl FnMut(u32, &'static str) -> Result<Box<str>, Malformed>,
) -> Result<LinkEndpoint, Malformed> {
    let source = frame::source_of(
        &endpoint.node,
        &endpoint.boot,
        endpoint.epoch,
        ["LinkEndpoint.node", "LinkEndpoint.boot"],
    )?;
    Ok(LinkEndpoint {
        event: RpcEndpointEvent {
            span: SpanId(endpoint.span),
            root: SpanId(endpoint.root),
            side: if endpoint.flags & SERVER != 0 { RpcSide::Server } else { RpcSide::Client },
            key: RpcKey {
                protocol: string(endpoint.protocol, "LinkEndpoint.protocol")?,
                connection: string(endpoint.connection, "LinkEndpoint.connection")?,
                cookie: endpoint.image_cookie.unwrap_or(endpoint.cookie),
            },
            unique: endpoint.flags & UNIQUE != 0,
            no_reply: endpoint.flags & NO_REPLY != 0,
            begin: MonotonicNs(endpoint.begin),
            end: MonotonicNs(endpoint.end),
        },
        trace,
        clock: NodeClock { source, anchor: frame::read_anchor(&endpoint.anchor) },
        peer: endpoint.peer.as_ref().map(decode_peer).transpose()?,
        image: endpoint.image_cookie.map(|_| endpoint.image),
    })
}

fn decode_peer(peer: &message::PeerClock) -> Result<PeerClock, Malformed> {
    let source = frame::source_of(&peer.node, &peer.boot, 0, ["PeerClock.node", "PeerClock.boot"])?;
    let offset = read_offset(&peer.offset);
    Ok(PeerClock { node: source.node, boot: source.boot, offset })
}

pub(super) fn encode_reparented(reparented: &Reparented, rule: u32) -> message::Reparented {
    let (trace_high, trace_low) = high_low(reparented.trace);
    message::Reparented {
        trace_high,
        trace_low,
        parent: reparented.parent.0,
        rule,
        shift: reparented.clock.shift,
        error: reparented.clock.error.0,
    }
}

pub(super) fn decode_reparented(
    reparented: &message::Reparented,
    mut string: impl FnMut(u32, &'static str) -> Result<Box<str>, Malformed>,
) -> Result<Reparented, Malformed> {
    Ok(Reparented {
        trace: trace_id(&reparented.trace_high, &reparented.trace_low),
        parent: SpanId(reparented.parent),
        rule: string(reparented.rule, "Reparented.rule")?,
        clock: ClockShift { shift: reparented.shift, error: DurationNs(reparented.error) },
    })
}
