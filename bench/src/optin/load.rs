//! What the load does: it comes by probes, and it sends and receives on a pair of sockets that nobody else has.

use std::io;

use anyhow::{Context, Result, bail};

use crate::calls::timed;
use crate::{affinity, library};

/// A turn of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// By a probe that says nothing.
    Bare,
    /// By one with four numbers.
    Four,
    /// And a text of 16 bytes.
    Text,
    /// A send and a receive of 28 bytes that are no NBD.
    Other,
    /// A flush and its answer: two sends and two receives.
    Nbd,
}

impl Turn {
    pub(super) const ALL: [Turn; 5] = [Turn::Bare, Turn::Four, Turn::Text, Turn::Other, Turn::Nbd];

    pub(super) fn name(self) -> &'static str {
        match self {
            Turn::Bare => "bare",
            Turn::Four => "four",
            Turn::Text => "text",
            Turn::Other => "other",
            Turn::Nbd => "nbd",
        }
    }

    /// For people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Turn::Bare => "a probe that says nothing",
            Turn::Four => "a probe with four numbers",
            Turn::Text => "the same with a text of 16 bytes",
            Turn::Other => "a send or receive on a socket that is not NBD's",
            Turn::Nbd => "one of the four sends and receives of an NBD request",
        }
    }

    /// Calls of a turn.
    pub(super) fn calls(self) -> f64 {
        match self {
            Turn::Bare | Turn::Four | Turn::Text => 1.0,
            Turn::Other => 2.0,
            Turn::Nbd => 4.0,
        }
    }

    pub(super) fn is_hit(self) -> bool {
        self.calls() == 1.0
    }

    pub(super) fn by_name(name: &str) -> Option<Turn> {
        Turn::ALL.into_iter().find(|turn| turn.name() == name)
    }
}

/// `measure-optin CHUNKS LIBRARY`: prints ns of each.
pub(crate) fn run(chunks: usize, library: &str) -> Result<()> {
    affinity::pin(&[affinity::load_cpu()])?;
    affinity::prefer_this_process();
    let sockets = Sockets::new()?;
    for turn in Turn::ALL {
        let took = match turn {
            Turn::Other => timed(chunks, || sockets.carry(&[7; REQUEST])),
            Turn::Nbd => {
                let mut cookie = 0;
                timed(chunks, || {
                    cookie += 1;
                    sockets.flush(cookie);
                })
            }
            _ => {
                let by = by(library, turn.name())?;
                // SAFETY: `hits.c` has it so; the text ends in a NUL.
                timed(chunks, || unsafe { by(1, c"sixteen letters!".as_ptr()) })
            }
        };
        println!("{} {took:.2}", turn.name());
    }
    Ok(())
}

type By = unsafe extern "C" fn(u64, *const libc::c_char);

fn by(library: &str, name: &str) -> Result<By> {
    let function = library::function(library, name)?;
    // SAFETY: `hits.c` has it so.
    Ok(unsafe { std::mem::transmute::<*mut std::ffi::c_void, By>(function) })
}

/// "Request message" and "Simple reply message" of NBD's doc/proto.md.
const REQUEST: usize = 28;
const REPLY: usize = 16;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const FLUSH: u16 = 3;

/// Two ends of one connection.
struct Sockets([libc::c_int; 2]);

impl Sockets {
    fn new() -> Result<Sockets> {
        let mut ends = [0; 2];
        // SAFETY: there is room for two.
        if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error()).context("no sockets");
        }
        let sockets = Sockets(ends);
        // What is measured carries all that it is given.
        if sockets.carried(&[7; REQUEST], 0) != REQUEST {
            bail!("the sockets carry nothing");
        }
        Ok(sockets)
    }

    fn flush(&self, cookie: u64) {
        let mut request = [0; REQUEST];
        request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        request[6..8].copy_from_slice(&FLUSH.to_be_bytes());
        request[8..16].copy_from_slice(&cookie.to_be_bytes());
        self.carried(&request, 0);
        let mut reply = [0; REPLY];
        reply[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        reply[8..].copy_from_slice(&cookie.to_be_bytes());
        self.carried(&reply, 1);
    }

    fn carry(&self, bytes: &[u8]) {
        self.carried(bytes, 0);
    }

    /// How many came out at the other end.
    #[inline]
    fn carried(&self, bytes: &[u8], from: usize) -> usize {
        let mut taken = [0_u8; REQUEST];
        // SAFETY: both buffers live across the calls, and are as long as is said.
        let received = unsafe {
            libc::send(self.0[from], bytes.as_ptr().cast(), bytes.len(), 0);
            libc::recv(self.0[1 - from], taken.as_mut_ptr().cast(), taken.len(), 0)
        };
        usize::try_from(received).unwrap_or(0)
    }
}
