//! What this daemon says of itself to whoever traces it: all of it is here.
//!
//! *In*: a request that came, the threads that work for it, its end. *Out*: events of LTTng-UST's provider `blkkin`, by the
//! crate blkkin-ust. *Invariant*: a request is one span, from when its last byte came until its reply was handed to the
//! kernel; a thread that does a system call for it has *entered* it, so what the kernel does there stands below it.
//!
//! An event costs about 100 ns, of a request that takes some µs. So what is true at one moment is said in one: the requests that one
//! read brought, with all about them ([`SpanBatch`]); the ends of those whose replies one write took; and a thread that does several
//! requests in a row turns from one to the next ([`SequentialSpans`]). Eight requests are some 11 events, and not 56; and 2 or 3 where a session does
//! not ask for turns, as its reader reads what threads publish.
//!
//! The span's meeting names the request as who watches the client knows it. On one machine: rule `nbd`, the connection
//! ([`peer`](crate::peer)) and the cookie. A client may use a cookie again once it was answered ("Transmission"), so it is not said to be
//! unique; one clock tells those apart. Where the client may be on another machine: rule `nbd-stream`, the connection, and as number
//! how many bytes came before the request on it, with the last 16 bits of the cookie behind (`place << 16 | cookie & 0xffff`). That is
//! another number for each request of a connection, so it is unique whatever clients do with cookies.
//!
//! That a request is done is said when its reply was handed to the kernel, and a client may have it before: by one clock that is known, by
//! two it would be taken for the clocks' difference. So to a client on another machine it is said besides, before its reply is sent, that it
//! *answers* (docs/daemons.md).
//!
//! While nobody traces, a request costs a comparison at each of these calls.

use std::ffi::CStr;

use blkkin_ust::{RpcSide, SequentialSpans, Span, SpanBatch, SpanKind};

use crate::peer::Name;
use crate::protocol::intake::Incoming;
use crate::protocol::{Command, Request};

const SERVICE: &CStr = c"blkkin-nbd";

/// A request, as a span; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Op {
    span: Span,
    /// The client may be on another machine.
    far: bool,
}

impl Op {
    /// It came by the connection of this name. Said with what else is said `together`.
    pub(crate) fn begin<'a>(
        together: &mut SpanBatch<'a>,
        incoming: &Incoming,
        connection: Option<&'a Name>,
    ) -> Self {
        let Incoming { request, place, .. } = incoming;
        let op = Self::named(together, request, |together, span| {
            let Some(Name { text, far }) = connection else { return };
            match far {
                true => {
                    let number = place << 16 | request.cookie & 0xffff;
                    together.rpc_endpoint(span, RpcSide::Server, c"nbd-stream", text, number, true);
                }
                false => together.rpc_endpoint(span, RpcSide::Server, c"nbd", text, request.cookie, false),
            }
        });
        Self { far: connection.is_some_and(|connection| connection.far), ..op }
    }

    /// It came, and by which connection is not known.
    #[cfg(test)]
    pub(crate) fn unnamed(request: &Request) -> Self {
        Self::named(&mut SpanBatch::new(), request, |_, _| {})
    }

    fn named<'a>(
        together: &mut SpanBatch<'a>,
        request: &Request,
        meet: impl FnOnce(&mut SpanBatch<'a>, &Span),
    ) -> Self {
        let span = together.root(SpanKind::Server, name(request.command), SERVICE);
        if span.is_recording() {
            meet(together, &span);
            // Signed by 64 bits: no file is longer.
            together.set_number(&span, c"nbd.offset", request.offset as i64);
            together.set_number(&span, c"nbd.length", request.length.into());
            if request.flags != 0 {
                together.set_number(&span, c"nbd.flags", request.flags.into());
            }
        }
        Self { span, far: false }
    }

    /// Somebody traces it.
    pub(crate) fn is_recorded(&self) -> bool {
        self.span.is_recording()
    }

    /// Its reply, or what is left of it, is about to be handed to the kernel. On one machine nobody needs to know: it costs an event.
    pub(crate) fn answers(&self, together: &mut SpanBatch<'_>) {
        if self.far {
            together.add_event(&self.span, c"answers");
        }
    }

    /// This thread works for it, as long as the guard lives.
    pub(crate) fn enter(&self) -> blkkin_ust::Entered<'_> {
        self.span.enter()
    }

    /// This thread works for it, in its turn.
    pub(crate) fn take(&self, turns: &mut SequentialSpans) {
        turns.enter(&self.span);
    }

    /// Its reply was handed to the kernel.
    pub(crate) fn end(self, together: &mut SpanBatch<'_>) {
        together.end(self.span);
    }

    /// The client is told so; 0 says that nothing failed.
    pub(crate) fn outcome(&self, errno: u32) {
        if errno != 0 {
            self.span.set_error(errno as i32);
        }
    }

    /// Nobody will hear of it: the connection was lost before its reply was sent.
    pub(crate) fn lost(&self) {
        self.span.set_error(libc::EPIPE);
    }
}

/// After daemonizing, if this process does. The server runs whether somebody can trace it or not: an error says why not.
pub fn init() -> Result<(), String> {
    blkkin_ust::init().map(|_| ()).map_err(|why| why.to_string())
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
