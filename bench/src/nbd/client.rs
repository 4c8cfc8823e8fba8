//! A client that takes as little as it can, so that the server is what is waited for: reads of 4 KiB at places that jump about, 32 in flight.
//!
//! *In*: the server's socket. *Out*: how many replies came. *Invariant*: each reply is what was asked for: its magic, no error, a cookie that
//! is under way; a server that is fast by being wrong is not measured. fio's engine takes about as long for a request as the server; this
//! one asks for all that was answered in one write, and reads all replies that are there in one read.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const IN_FLIGHT: u64 = 32;
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
    stream: UnixStream,
    blocks: u64,
    asked: u64,
}

impl Client {
    /// Shakes hands, without structured replies.
    pub(super) fn connect(socket: &Path) -> Result<Client> {
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
        let bytes = answer.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Ok(Client { stream, blocks: (bytes / u64::from(BLOCK)).max(1), asked: 0 })
    }

    /// For so long; how many replies came.
    pub(super) fn ask(mut self, length: Duration) -> Result<u64> {
        let (begun, mut answered) = (Instant::now(), 0);
        let (mut requests, mut replies) = (Vec::new(), vec![0; IN_FLIGHT as usize * REPLY]);
        let mut filled = 0;
        self.put(IN_FLIGHT, &mut requests)?;
        while answered < self.asked {
            let read = self.stream.read(&mut replies[filled..]).context("the server is gone")?;
            if read == 0 {
                bail!("the server ended the connection");
            }
            filled += read;
            let whole = filled / REPLY;
            for reply in replies[..whole * REPLY].chunks(REPLY) {
                self.check(reply)?;
            }
            replies.copy_within(whole * REPLY..filled, 0);
            filled -= whole * REPLY;
            answered += whole as u64;
            if begun.elapsed() < length {
                self.put(whole as u64, &mut requests)?;
            }
        }
        Ok(answered)
    }

    /// In one write.
    fn put(&mut self, count: u64, requests: &mut Vec<u8>) -> Result<()> {
        requests.clear();
        for _ in 0..count {
            // Any odd number: all blocks, in no order that read-ahead would guess.
            let place = self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks * u64::from(BLOCK);
            requests.extend(REQUEST_MAGIC.to_be_bytes());
            // No flags; a read.
            requests.extend([0; 4]);
            requests.extend(self.asked.to_be_bytes());
            requests.extend(place.to_be_bytes());
            requests.extend(BLOCK.to_be_bytes());
            self.asked += 1;
        }
        self.stream.write_all(requests).context("the server takes nothing")
    }

    fn check(&self, reply: &[u8]) -> Result<()> {
        let (head, _) = reply.split_first_chunk::<HEAD>().context("invariant: a reply is whole")?;
        let number = u128::from_be_bytes(*head);
        let (magic, error, cookie) = ((number >> 96) as u32, (number >> 64) as u32, number as u64);
        if magic != REPLY_MAGIC || error != 0 || cookie >= self.asked {
            bail!("a reply with magic {magic:x}, error {error}, cookie {cookie}");
        }
        Ok(())
    }
}
