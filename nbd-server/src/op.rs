//! What this daemon says of itself to whoever traces it: all of it is here.
//!
//! *In*: a request that came, the threads that work for it, its end. *Out*: events of LTTng-UST's provider `blkkin`, by the
//! crate blkkin-ust. *Invariant*: a request is one span, from when its last byte came until its reply was handed to the
//! kernel; a thread that does a system call for it has *entered* it, so what the kernel does there stands below it.
//!
//! The span's meeting names the request as who watches the client knows it. On one machine: rule `nbd`, the connection
//! ([`peer`](crate::peer)) and the cookie. A client may use a cookie again once it was answered ("Transmission"), so it is not said to be
//! unique; one clock tells those apart. Where the client may be on another machine: rule `nbd-stream`, the connection, and as number
//! how many bytes came before the request on it, with the last 16 bits of the cookie behind (`place << 16 | cookie & 0xffff`). That is
//! another number for each request of a connection, so it is unique whatever clients do with cookies.
//!
//! While nobody traces, a request costs a comparison at each of these calls.

use std::ffi::CStr;

use blkkin_ust::{Kind, Side, Span};

use crate::peer::Name;
use crate::protocol::intake::Incoming;
use crate::protocol::{Command, Request};

const SERVICE: &CStr = c"blkkin-nbd";

/// A request, as a span; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Op(Span);

impl Op {
    /// It came by the connection of this name.
    pub(crate) fn begin(incoming: &Incoming, connection: Option<&Name>) -> Self {
        let Incoming { request, place, .. } = incoming;
        Self::named(request, |span| {
            let Some(Name { text, far }) = connection else { return };
            match far {
                true => {
                    let number = place << 16 | request.cookie & 0xffff;
                    span.meeting(Side::Answered, c"nbd-stream", text, number, true);
                }
                false => span.meeting(Side::Answered, c"nbd", text, request.cookie, false),
            }
        })
    }

    /// It came, and by which connection is not known.
    #[cfg(test)]
    pub(crate) fn unnamed(request: &Request) -> Self {
        Self::named(request, |_| {})
    }

    fn named(request: &Request, meet: impl FnOnce(&Span)) -> Self {
        let span = Span::root(Kind::Server, name(request.command), SERVICE);
        if span.is_recorded() {
            meet(&span);
            // Signed by 64 bits: no file is longer.
            span.number(c"nbd.offset", request.offset as i64);
            span.number(c"nbd.length", request.length.into());
            if request.flags != 0 {
                span.number(c"nbd.flags", request.flags.into());
            }
        }
        Self(span)
    }

    /// Somebody traces it.
    pub(crate) fn is_recorded(&self) -> bool {
        self.0.is_recorded()
    }

    /// This thread works for it, as long as the guard lives.
    pub(crate) fn enter(&self) -> blkkin_ust::Entered<'_> {
        self.0.enter()
    }

    /// The client is told so; 0 says that nothing failed.
    pub(crate) fn outcome(&self, errno: u32) {
        if errno != 0 {
            self.0.fail(errno as i32);
        }
    }

    /// Nobody will hear of it: the connection was lost before its reply was sent.
    pub(crate) fn lost(&self) {
        self.0.fail(libc::EPIPE);
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
