//! A client that leaves the server's work the same whatever happens to itself: reads of 4 KiB at places that jump about, over
//! [`CONNECTIONS`], [`IN_FLIGHT`] on each.
//!
//! *In*: the server's socket. *Out*: how many replies came. *Invariants*: each reply is what was asked for (its magic, no error, a cookie that
//! is under way): a server that is fast by being wrong is not measured. A server's read always finds [`IN_FLIGHT`] requests, because those of a
//! connection are sent in one write, when all before them were answered. And the server never has to wake it: it asks again and again
//! for what has come.
//!
//! *Rejected*: fio's engine, and a client that waits and sends as many requests as were answered. Both get less of their CPU when the
//! server is traced, as those who collect have the same one. The server then finds fewer requests at a time and wakes its client
//! more often, and both cost it more than the tracing does: of 19 % that were measured so, 12 were that.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// So that the server has another one's requests to do while the client looks at its replies.
pub(super) const CONNECTIONS: usize = 4;
pub(super) const IN_FLIGHT: usize = 32;
const BLOCK: u32 = 4096;
/// Of a simple reply ("Simple reply message"), and with its block.
const HEAD: usize = 16;
const REPLY: usize = HEAD + BLOCK as usize;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// NBD_OPT_EXPORT_NAME, which ends the handshake; what the client can: fixed newstyle, no zeroes.
const EXPORT_NAME: u32 = 1;
const FLAGS: u32 = 3;

pub(super) struct Client {
    connections: Vec<Connection>,
    requests: Vec<u8>,
    replies: Vec<u8>,
    asked: u64,
}

struct Connection {
    stream: UnixStream,
    blocks: u64,
}

impl Client {
    /// Shakes hands.
    pub(super) fn connect(socket: &Path) -> Result<Client> {
        let connections = (0..CONNECTIONS).map(|_| Connection::new(socket)).collect::<Result<_>>()?;
        Ok(Client { connections, requests: Vec::new(), replies: vec![0; IN_FLIGHT * REPLY], asked: 0 })
    }

    /// For so long, and until all are answered; how many replies came.
    pub(super) fn ask(&mut self, length: Duration) -> Result<u64> {
        let Self { connections, requests, replies, asked } = self;
        let (begun, before) = (Instant::now(), *asked);
        for connection in &mut *connections {
            connection.put(asked, requests)?;
        }
        let mut goes_on = true;
        while goes_on {
            goes_on = begun.elapsed() < length;
            for connection in &mut *connections {
                connection.take(replies, *asked)?;
                if goes_on {
                    connection.put(asked, requests)?;
                }
            }
        }
        Ok(*asked - before)
    }
}

impl Connection {
    /// Without structured replies.
    fn new(socket: &Path) -> Result<Connection> {
        let mut stream = UnixStream::connect(socket).context("the server is not there")?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if !greeting.starts_with(b"NBDMAGICIHAVEOPT") {
            bail!("that is no NBD server");
        }
        let mut words = FLAGS.to_be_bytes().to_vec();
        words.extend(b"IHAVEOPT");
        words.extend(EXPORT_NAME.to_be_bytes());
        words.extend(0_u32.to_be_bytes());
        stream.write_all(&words)?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        stream.set_nonblocking(true)?;
        let bytes = answer.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Ok(Connection { stream, blocks: (bytes / u64::from(BLOCK)).max(1) })
    }

    /// In one write: a socket that nothing waits in has room for it.
    fn put(&mut self, asked: &mut u64, requests: &mut Vec<u8>) -> Result<()> {
        requests.clear();
        for cookie in *asked..*asked + IN_FLIGHT as u64 {
            // Any odd number: all blocks, in no order that read-ahead would guess.
            let place = cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks * u64::from(BLOCK);
            requests.extend(REQUEST_MAGIC.to_be_bytes());
            // No flags; a read.
            requests.extend([0; 4]);
            requests.extend(cookie.to_be_bytes());
            requests.extend(place.to_be_bytes());
            requests.extend(BLOCK.to_be_bytes());
        }
        *asked += IN_FLIGHT as u64;
        self.stream.write_all(requests).context("the server takes nothing")
    }

    /// All that were asked for here.
    fn take(&mut self, replies: &mut [u8], asked: u64) -> Result<()> {
        let mut filled = 0;
        while filled < replies.len() {
            match self.stream.read(&mut replies[filled..]) {
                Ok(0) => bail!("the server ended the connection"),
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error).context("the server is gone"),
            }
        }
        replies.chunks(REPLY).try_for_each(|reply| check(reply, asked))
    }
}

fn check(reply: &[u8], asked: u64) -> Result<()> {
    let (head, _) = reply.split_first_chunk::<HEAD>().context("invariant: a reply is whole")?;
    let number = u128::from_be_bytes(*head);
    let (magic, error, cookie) = ((number >> 96) as u32, (number >> 64) as u32, number as u64);
    if magic != REPLY_MAGIC || error != 0 || cookie >= asked {
        bail!("a reply with magic {magic:x}, error {error}, cookie {cookie}");
    }
    Ok(())
}
