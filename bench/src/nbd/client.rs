//! Client that keeps the server's work constant whatever happens to the client: reads of 4 KiB at
//! scattered offsets, over [`CONNECTIONS`] with [`IN_FLIGHT`] requests each.
//!
//! *In*: the server's socket. *Out*: the number of replies. *Invariants*: each reply is valid
//! (magic, no error, a cookie in flight), so that a server that is fast because it is wrong is not
//! measured. A server's read always finds [`IN_FLIGHT`] requests, because those of a connection are
//! sent in one write after all earlier ones were answered. The server never has to wake the client,
//! because the client polls.
//!
//! *Rejected*: fio's engine, and a client that waits and sends as many requests as were answered.
//! Both get less CPU time when the server is traced, because the collectors use the same CPU. The
//! server then finds fewer requests per read and wakes its client more often, and both cost more
//! than the tracing: of 19 % measured in this way, 12 were that effect.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Number of connections, so that the server has requests of another one while the client reads
/// replies.
pub(super) const CONNECTIONS: usize = 4;
pub(super) const IN_FLIGHT: usize = 32;
const BLOCK: u32 = 4096;
/// Size of the header of a simple reply ("Simple reply message"), and of a reply with its block.
const HEAD: usize = 16;
const REPLY: usize = HEAD + BLOCK as usize;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// NBD_OPT_EXPORT_NAME, which ends the handshake, and the client's flags: fixed newstyle, no
/// zeroes.
const EXPORT_NAME: u32 = 1;
const FLAGS: u32 = 3;

pub(super) struct Client {
    connections: Vec<Connection>,
    requests: Vec<u8>,
    replies: Vec<u8>,
    sent: u64,
}

struct Connection {
    stream: UnixStream,
    blocks: u64,
}

impl Client {
    /// Connects and negotiates.
    pub(super) fn connect(socket: &Path) -> Result<Client> {
        let connections = (0..CONNECTIONS).map(|_| Connection::new(socket)).collect::<Result<_>>()?;
        Ok(Client { connections, requests: Vec::new(), replies: vec![0; IN_FLIGHT * REPLY], sent: 0 })
    }

    /// Sends requests for `length`, waits for all replies, and returns their number.
    pub(super) fn run(&mut self, length: Duration) -> Result<u64> {
        let Self { connections, requests, replies, sent } = self;
        let (started, before) = (Instant::now(), *sent);
        for connection in &mut *connections {
            connection.send_requests(sent, requests)?;
        }
        let mut continues = true;
        while continues {
            continues = started.elapsed() < length;
            for connection in &mut *connections {
                connection.receive_replies(replies, *sent)?;
                if continues {
                    connection.send_requests(sent, requests)?;
                }
            }
        }
        Ok(*sent - before)
    }
}

impl Connection {
    /// Negotiates without structured replies.
    fn new(socket: &Path) -> Result<Connection> {
        let mut stream = UnixStream::connect(socket).context("the server is not there")?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if !greeting.starts_with(b"NBDMAGICIHAVEOPT") {
            bail!("that is no NBD server");
        }
        let mut hello = FLAGS.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(EXPORT_NAME.to_be_bytes());
        hello.extend(0_u32.to_be_bytes());
        stream.write_all(&hello)?;
        let mut reply_header = [0; 10];
        stream.read_exact(&mut reply_header)?;
        stream.set_nonblocking(true)?;
        let bytes = reply_header.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Ok(Connection { stream, blocks: (bytes / u64::from(BLOCK)).max(1) })
    }

    /// Sends all requests in one write: the empty socket buffer has room for them.
    fn send_requests(&mut self, sent: &mut u64, requests: &mut Vec<u8>) -> Result<()> {
        requests.clear();
        for cookie in *sent..*sent + IN_FLIGHT as u64 {
            // Any odd factor visits all blocks in an order that read-ahead cannot predict.
            let offset = cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks * u64::from(BLOCK);
            requests.extend(REQUEST_MAGIC.to_be_bytes());
            // No flags; a read.
            requests.extend([0; 4]);
            requests.extend(cookie.to_be_bytes());
            requests.extend(offset.to_be_bytes());
            requests.extend(BLOCK.to_be_bytes());
        }
        *sent += IN_FLIGHT as u64;
        self.stream.write_all(requests).context("the server takes nothing")
    }

    /// Receives the replies to all requests of this connection.
    fn receive_replies(&mut self, replies: &mut [u8], sent: u64) -> Result<()> {
        let mut filled = 0;
        while filled < replies.len() {
            match self.stream.read(&mut replies[filled..]) {
                Ok(0) => bail!("the server ended the connection"),
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error).context("the server is gone"),
            }
        }
        replies.chunks(REPLY).try_for_each(|reply| check(reply, sent))
    }
}

fn check(reply: &[u8], sent: u64) -> Result<()> {
    let (head, _) = reply.split_first_chunk::<HEAD>().context("invariant: a reply is whole")?;
    let number = u128::from_be_bytes(*head);
    let (magic, error, cookie) = ((number >> 96) as u32, (number >> 64) as u32, number as u64);
    if magic != REPLY_MAGIC || error != 0 || cookie >= sent {
        bail!("a reply with magic {magic:x}, error {error}, cookie {cookie}");
    }
    Ok(())
}
