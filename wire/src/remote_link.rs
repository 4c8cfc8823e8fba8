//! Requests between two nodes, and how their two endpoints are linked.
//!
//! *In*: what each node saw of its endpoint: an [`RpcEndpointEvent`] for the client or server span.
//! *Out*: endpoints ([`LinkEndpoint`]) that are matched by [`RpcKey`], and the result of a match
//! ([`Reparented`]): the new parent of the server's trace.
//!
//! *Invariant*: two endpoints belong to one request only by a name that the protocol itself
//! transmits: connection and cookie. Never by time, size or location alone.
//!
//! # Why a trace is reparented
//!
//! The server does not know the client's trace: the protocol carries a cookie, no trace context. So
//! the server's trace begins under a provisional id. Once the endpoints have matched, the trace is
//! *reparented*: its spans are emitted again under the client's trace id, with the client span as
//! parent of the server root. A tag keeps the provisional id.
//!
//! *Rejected*: an id computed by both endpoints from connection and cookie (the client's trace can
//! contain many requests to many nodes, and has one id); a span link instead of a parent (Zipkin
//! does not show links).

use serde::{Deserialize, Serialize};

use crate::clock::{ClockAnchor, ClockOffset, DurationNs, MonotonicNs};
use crate::ids::{BootId, NodeId, Source, SpanId, TraceId};
use crate::partition::partition_of;

/// Endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RpcSide {
    /// Sent the request and waited for the reply: the parent.
    Client,
    /// Received the request and sent the reply: the child, and the root of its own trace.
    Server,
}

/// Name of a request, the same at both endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RpcKey {
    /// Protocol: `nbd`.
    pub protocol: Box<str>,
    /// Connection name that both endpoints derive, client address first:
    /// `10.0.0.1:41234>10.0.0.2:10809`.
    pub connection: Box<str>,
    /// The protocol's number of the request.
    pub cookie: u64,
}

/// An endpoint of a request, emitted when the request ended there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcEndpointEvent {
    /// Client or server span.
    pub span: SpanId,
    /// Root span of its trace.
    pub root: SpanId,
    /// Client or server.
    pub side: RpcSide,
    /// Name of the request.
    pub key: RpcKey,
    /// True if the protocol never reuses a cookie on a connection. If it does, endpoints match only
    /// if both clocks are known.
    pub unique: bool,
    /// For a client: no reply was seen. Then `end` is when that was known, and is unrelated to the
    /// server's end.
    pub no_reply: bool,
    /// Time at which the request was sent or received.
    pub begin: MonotonicNs,
    /// Time at which the reply was received, or was about to be sent.
    pub end: MonotonicNs,
}

/// Clock of a node and its conversion to wall clock. Times of two endpoints are comparable through
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClock {
    /// Source of the monotonic clock.
    pub source: Source,
    /// Anchor that converted the times of its spans to wall clock.
    pub anchor: ClockAnchor,
}

/// An endpoint of a request, in transit to the link stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEndpoint {
    /// Event.
    pub event: RpcEndpointEvent,
    /// Trace; provisional for a server.
    pub trace: TraceId,
    /// Clock of its times.
    pub clock: NodeClock,
    /// Clock of the other endpoint's node, if this node knows it.
    pub peer: Option<PeerClock>,
    /// Identity of the image of which its key has a range, where that is not the range of the guest's disk: one with
    /// clusters, or a backing file ([`DiskRequest::in_image`](crate::disk_request::DiskRequest::in_image)). Another image
    /// of the same disk and layer has another one.
    pub image: Option<u64>,
}

/// Clock of another node, as an endpoint's node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerClock {
    /// Node of the other endpoint.
    pub node: NodeId,
    /// Boot of that node.
    pub boot: BootId,
    /// Clock of that node minus that of the endpoint's node.
    pub offset: ClockOffset,
}

/// Offset between the wall clocks of two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockShift {
    /// Offset to add to times of the server, in ns.
    pub shift: i64,
    /// Maximum error: half of the time that the client saw of the request and the server did not, or less if the client's
    /// node has measured the server's clock.
    pub error: DurationNs,
}

/// New parent of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reparented {
    /// Trace of the client.
    pub trace: TraceId,
    /// Client span: the parent of the former root.
    pub parent: SpanId,
    /// Rule that established the link.
    pub rule: Box<str>,
    /// Offset from the server's clock to the client's clock.
    pub clock: ClockShift,
}

/// Relation of a fragment to other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RemoteLink {
    /// No known relation.
    #[default]
    None,
    /// Root of a trace whose fragments arrive one by one and before the root: they wait for it.
    Root,
    /// Fragment of such a trace: it is sampled together with its root.
    Child,
    /// Trace whose root is a server endpoint without a known client: the trace id is provisional.
    PendingParent,
    /// No part of a trace but one endpoint of a request. In `blkkin.links` only.
    Endpoint(Box<LinkEndpoint>),
    /// New parent of the trace. In `blkkin.spans` only.
    Reparented(Box<Reparented>),
    /// The trace has no known client: its provisional id stays. In `blkkin.spans` only. Every server
    /// endpoint gets this answer or a new parent, so a reader knows how long to wait.
    Unlinked,
    /// Forwarded from another trace, over this number of reparentings. In `blkkin.spans` only.
    Forwarded(u8),
}

impl RpcKey {
    /// Returns the partition of `blkkin.links` for this connection, by protocol and connection, so
    /// that one partition has all clock information of the connection.
    pub fn partition(&self, partitions: u32) -> u32 {
        let key = [self.protocol.as_bytes(), b"\0", self.connection.as_bytes()].concat();
        partition_of(&key, partitions)
    }
}

impl RpcEndpointEvent {
    /// Returns an endpoint on a root span, with a cookie that the protocol reuses. For tests and load
    /// generators, like [`SyscallEvent::bare`](crate::event::SyscallEvent::bare).
    pub fn bare(span: SpanId, side: RpcSide, key: RpcKey, [begin, end]: [MonotonicNs; 2]) -> Self {
        Self { span, root: span, side, key, unique: false, no_reply: false, begin, end }
    }

    /// Returns the time of emission.
    pub fn time(&self) -> MonotonicNs {
        self.end
    }

    /// Returns the time from begin to end at this endpoint.
    pub fn duration(&self) -> DurationNs {
        self.end.since(self.begin)
    }
}
