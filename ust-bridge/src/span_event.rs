//! Events about daemon spans, independent of the instrumentation that emitted them.
//!
//! *In*: events of LTTng-UST or USDT, through [`crate::mapping`]. *Out*: [`SpanEvent`]s, each with
//! its [`EventOrigin`], for [`crate::daemon_spans`].
//!
//! *Invariant*: events come in order of time, except those that the reader counts as late. A thread
//! works for the innermost span that it has entered. An id of 0 means that there is none.

use std::borrow::Cow;

pub use blkkin_wire::remote_link::RpcSide;
pub use blkkin_wire::span::SpanKind;

/// Root, whose events may name any thread; also for events in which the kernel names the thread.
pub const TRUSTED_USER: u32 = 0;

/// Time and thread of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventOrigin<'a> {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Process id in the process's own pid namespace; 0 if unknown.
    pub vpid: u32,
    /// Thread id in the same namespace; 0 if unknown.
    pub vtid: u32,
    /// Inode of the pid namespace; 0 for the initial one, or if unknown.
    pub pid_ns: u64,
    /// User whose programs can write the event. The ids above are this user's claim.
    pub user: u32,
    /// Name of the process; in fact the thread's comm, of up to 15 bytes.
    pub procname: Cow<'a, str>,
}

/// Begin, end or annotation of a span, or a thread's change of span.
#[derive(Clone, PartialEq, Debug)]
pub enum SpanEvent<'a> {
    /// Begin of a span.
    Begin {
        /// Upper half of the trace id.
        trace_hi: u64,
        /// Lower half of the trace id; both halves are 0 if the event has no trace id.
        trace_lo: u64,
        /// Span id.
        span: u64,
        /// Parent's span id.
        parent: u64,
        /// Role in a request between two programs.
        kind: SpanKind,
        /// The thread also enters the span.
        enter: bool,
        /// Roots that the source sampled, per million; 1,000,000 without sampling.
        sample_rate: u32,
        /// Name of the operation.
        name: Cow<'a, str>,
        /// Name of the service.
        service: Cow<'a, str>,
    },
    /// End of a span.
    End {
        /// Span id.
        span: u64,
        /// 0, or a positive errno.
        status: i32,
    },
    /// The thread works for the span from now on.
    Enter {
        /// Span id.
        span: u64,
    },
    /// The thread no longer works for the span.
    Leave {
        /// Span id.
        span: u64,
    },
    /// Point in time within a span.
    Event {
        /// Span id.
        span: u64,
        /// Name of the event.
        name: Cow<'a, str>,
    },
    /// Attribute with a text.
    Text {
        /// Span id.
        span: u64,
        /// Attribute's key.
        key: Cow<'a, str>,
        /// Attribute's value.
        value: Cow<'a, str>,
    },
    /// Attribute with a number.
    Number {
        /// Span id.
        span: u64,
        /// Attribute's key.
        key: Cow<'a, str>,
        /// Attribute's value.
        value: i64,
    },
    /// Endpoint of a request that client and server identify in the same way.
    RpcEndpoint {
        /// Span of this endpoint.
        span: u64,
        /// Side of this endpoint.
        side: RpcSide,
        /// The cookie is used once per connection.
        unique: bool,
        /// Protocol, as the rules for remote links name it.
        protocol: Cow<'a, str>,
        /// Both socket addresses, the client's first.
        connection: Cow<'a, str>,
        /// Request's number on this connection.
        cookie: u64,
    },
}
