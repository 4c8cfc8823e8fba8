//! Load of `optin`: it passes USDT probes, and it sends and receives on a private socket pair.

use std::io;

use anyhow::{Context, Result, bail};

use crate::calls::measure_ns;
use crate::{affinity, library};

/// Measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// USDT probe without arguments.
    Bare,
    /// USDT probe with four numbers.
    Four,
    /// USDT probe with four numbers and a text of 16 bytes.
    Text,
    /// Send and receive of 28 bytes that are not NBD.
    Other,
    /// NBD flush and its reply: two sends and two receives.
    Nbd,
}

impl Action {
    pub(super) const ALL: [Action; 5] =
        [Action::Bare, Action::Four, Action::Text, Action::Other, Action::Nbd];

    pub(super) fn name(self) -> &'static str {
        match self {
            Action::Bare => "bare",
            Action::Four => "four",
            Action::Text => "text",
            Action::Other => "other",
            Action::Nbd => "nbd",
        }
    }

    /// Returns the name in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Action::Bare => "a probe without arguments",
            Action::Four => "a probe with four numbers",
            Action::Text => "the same with a text of 16 bytes",
            Action::Other => "a send or receive on a socket that is not NBD's",
            Action::Nbd => "one of the four sends and receives of an NBD request",
        }
    }

    /// Returns the number of events or system calls per operation.
    pub(super) fn calls(self) -> f64 {
        match self {
            Action::Bare | Action::Four | Action::Text => 1.0,
            Action::Other => 2.0,
            Action::Nbd => 4.0,
        }
    }

    pub(super) fn is_usdt(self) -> bool {
        self.calls() == 1.0
    }

    pub(super) fn by_name(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// Prints ns of each operation: `measure-optin CHUNKS LIBRARY`.
pub(crate) fn run(chunks: usize, library: &str) -> Result<()> {
    affinity::pin(&[affinity::load_cpu()])?;
    affinity::prefer_this_process();
    let sockets = Sockets::new()?;
    for action in Action::ALL {
        let ns = match action {
            Action::Other => measure_ns(chunks, || sockets.transfer(&[7; REQUEST])),
            Action::Nbd => {
                let mut cookie = 0;
                measure_ns(chunks, || {
                    cookie += 1;
                    sockets.flush(cookie);
                })
            }
            _ => {
                let usdt_function = usdt_function(library, action.name())?;
                // SAFETY: the signature in `usdt.c`; the text ends in a NUL.
                measure_ns(chunks, || unsafe { usdt_function(1, c"sixteen letters!".as_ptr()) })
            }
        };
        println!("{} {ns:.2}", action.name());
    }
    Ok(())
}

type UsdtFunction = unsafe extern "C" fn(u64, *const libc::c_char);

fn usdt_function(library: &str, name: &str) -> Result<UsdtFunction> {
    let function = library::function(library, name)?;
    // SAFETY: the signature in `usdt.c`.
    Ok(unsafe { std::mem::transmute::<*mut std::ffi::c_void, UsdtFunction>(function) })
}

/// Sizes and magics of "Request message" and "Simple reply message" in NBD's doc/proto.md.
const REQUEST: usize = 28;
const REPLY: usize = 16;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const FLUSH: u16 = 3;

/// Connected pair of sockets.
struct Sockets([libc::c_int; 2]);

impl Sockets {
    fn new() -> Result<Sockets> {
        let mut ends = [0; 2];
        // SAFETY: there is room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error()).context("no sockets");
        }
        let sockets = Sockets(ends);
        // Check that the sockets deliver all bytes.
        if sockets.transferred(&[7; REQUEST], 0) != REQUEST {
            bail!("the sockets carry nothing");
        }
        Ok(sockets)
    }

    fn flush(&self, cookie: u64) {
        let mut request = [0; REQUEST];
        request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        request[6..8].copy_from_slice(&FLUSH.to_be_bytes());
        request[8..16].copy_from_slice(&cookie.to_be_bytes());
        self.transferred(&request, 0);
        let mut reply = [0; REPLY];
        reply[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        reply[8..].copy_from_slice(&cookie.to_be_bytes());
        self.transferred(&reply, 1);
    }

    fn transfer(&self, bytes: &[u8]) {
        self.transferred(bytes, 0);
    }

    /// Sends `bytes` and returns how many bytes were received.
    #[inline]
    fn transferred(&self, bytes: &[u8], from: usize) -> usize {
        let mut buffer = [0_u8; REQUEST];
        // SAFETY: both buffers outlive the calls and have the sizes that are passed.
        let received = unsafe {
            libc::send(self.0[from], bytes.as_ptr().cast(), bytes.len(), 0);
            libc::recv(self.0[1 - from], buffer.as_mut_ptr().cast(), buffer.len(), 0)
        };
        usize::try_from(received).unwrap_or(0)
    }
}
