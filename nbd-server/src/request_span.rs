//! Instrumentation of the server: every event that it emits is emitted here.
//!
//! *In*: a received request, the threads that execute it, and its end. *Out*: events of the
//! LTTng-UST provider `blkkin`, by the crate blkkin-ust. *Invariant*: a request is one span. It
//! begins when the request's last byte was read, and ends when its reply was handed to the kernel.
//! A thread that makes a system call for a request has *entered* its span, so the span is the
//! parent of the system call.
//!
//! An event costs about 100 ns, and a request takes a few µs. So the provider samples: above its
//! rate of roots, most spans emit nothing. A thread that executes several requests in a row switches
//! from one span to the next ([`SequentialSpans`]): one event instead of two.
//!
//! The span's RPC key identifies the request as a tracer of the client does. On one machine the key
//! has protocol `nbd`, the connection ([`connection_name`](crate::connection_name)) and the cookie. A
//! client may reuse a cookie after the reply ("Transmission"), so the key is not marked unique; one
//! clock distinguishes the uses. If the client may be on another machine, the key has protocol
//! `nbd-stream`, the connection, and a number from the request's stream offset and the low 16 bits
//! of its cookie (`stream_offset << 16 | cookie & 0xffff`). The offset differs for each request of
//! a connection, so this key is unique whatever cookies the client uses.
//!
//! A span ends after its reply was handed to the kernel, and the client may have the reply before.
//! With one clock that is harmless; with two it would look like an offset between the clocks. So
//! for a client that may be on another machine the span gets the event `answers` before its reply
//! is sent (docs/nbd.md).
//!
//! While no session records, each of these calls costs one comparison.

use std::ffi::CStr;

use blkkin_ust::{RpcSide, SequentialSpans, Span, SpanKind};

use crate::connection_name::ConnectionName;
use crate::protocol::request_decoder::ReceivedRequest;
use crate::protocol::{Command, Request};

const SERVICE: &CStr = c"blkkin-nbd";

/// Span of one request. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    span: Span,
    /// True if the client may be on another machine.
    client_may_be_remote: bool,
}

impl RequestSpan {
    /// Begins the span of a request that arrived on `connection`.
    pub(crate) fn begin(received: &ReceivedRequest, connection: Option<&ConnectionName>) -> Self {
        let ReceivedRequest { request, stream_offset, .. } = received;
        let span = Self::without_rpc_key(request);
        let Some(ConnectionName { text, may_be_remote }) = connection else { return span };
        if *may_be_remote {
            let number = stream_offset << 16 | request.cookie & 0xffff;
            span.span.rpc_endpoint(RpcSide::Server, c"nbd-stream", text, number, true);
        } else {
            span.span.rpc_endpoint(RpcSide::Server, c"nbd", text, request.cookie, false);
        }
        Self { client_may_be_remote: *may_be_remote, ..span }
    }

    /// Begins a span without an RPC key.
    pub(crate) fn without_rpc_key(request: &Request) -> Self {
        let span = Span::root(SpanKind::Server, name(request.command), SERVICE);
        if span.is_recording() {
            // The annotation has 64 bits with a sign, which is enough for the offset in any file.
            span.set_number(c"nbd.offset", request.offset as i64);
            span.set_number(c"nbd.length", request.length.into());
            if request.flags != 0 {
                span.set_number(c"nbd.flags", request.flags.into());
            }
        }
        Self { span, client_may_be_remote: false }
    }

    /// Returns whether a session records the span.
    pub(crate) fn is_recorded(&self) -> bool {
        self.span.is_recording()
    }

    /// Emits the event `answers` before the reply, or its remaining bytes, are handed to the
    /// kernel. A client on this machine does not need the event, which has a cost.
    pub(crate) fn emit_answers(&self) {
        if self.client_may_be_remote {
            self.span.add_event(c"answers");
        }
    }

    /// Enters the span on this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> blkkin_ust::Entered<'_> {
        self.span.enter()
    }

    /// Switches this thread from the previous span of `sequence` to this one.
    pub(crate) fn switch_to(&self, sequence: &mut SequentialSpans) {
        sequence.enter(&self.span);
    }

    /// Records the error number of the reply; 0 means success.
    pub(crate) fn set_status(&self, errno: u32) {
        if errno != 0 {
            self.span.set_error(errno as i32);
        }
    }

    /// Records that the connection was lost before the reply was sent.
    pub(crate) fn set_connection_lost(&self) {
        self.span.set_error(libc::EPIPE);
    }
}

/// Initializes tracing. A process that daemonizes calls this afterwards. The server runs without
/// tracing too; the error gives the reason.
pub fn init() -> Result<(), String> {
    blkkin_ust::init().map(|_| ()).map_err(|reason| reason.to_string())
}

fn name(command: Command) -> &'static CStr {
    match command {
        Command::Read => c"nbd read",
        Command::Write => c"nbd write",
        Command::Disconnect => c"nbd disconnect",
        Command::Flush => c"nbd flush",
        Command::Trim => c"nbd trim",
        Command::Cache => c"nbd cache",
        Command::WriteZeroes => c"nbd write zeroes",
        Command::BlockStatus => c"nbd block status",
        Command::Unknown(_) => c"nbd unknown",
    }
}
