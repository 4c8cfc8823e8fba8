//! NBD client that sends arbitrary bytes.
//!
//! It is written from the protocol's text alone and shares no code with the server: an error in
//! shared code would stay hidden.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    structured: bool,
}

/// Decoded reply. `error` is 0 for success; `data` is the data of a read, or the payload of a block
/// status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
}

impl Client {
    /// Connects, reads the greeting and sends the client flags.
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        // Ends the test if the server never replies.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Self { stream, structured: false };
        let greeting: [u8; 18] = client.read().unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        client.send(&3_u32.to_be_bytes());
        client
    }

    /// Connects and enters the transmission phase; with block status if replies are structured.
    pub(crate) fn ready(socket: &Path, structured: bool) -> Self {
        let mut client = Self::connect(socket);
        client.structured = structured;
        if structured {
            client.option(8, &[]);
            assert_eq!(client.option_reply().0, 1);
            let query = b"base:allocation";
            let data = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, query.len() as u8], &query[..]].concat();
            client.option(10, &data);
            assert_eq!((client.option_reply().0, client.option_reply().0), (4, 1));
        }
        client.option(7, &[0; 6]);
        while client.option_reply().0 != 1 {}
        client
    }

    pub(crate) fn option(&mut self, option: u32, data: &[u8]) {
        let length = data.len() as u32;
        self.send(&[b"IHAVEOPT", &option.to_be_bytes()[..], &length.to_be_bytes(), data].concat());
    }

    /// Reads a reply to an option. Returns its type and its data.
    pub(crate) fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let head: [u8; 20] = self.read().unwrap();
        assert_eq!(&head[..8], &0x0003_e889_0455_65a9_u64.to_be_bytes());
        let mut data = vec![0; u32_of(&head[16..20]) as usize];
        self.stream.read_exact(&mut data).unwrap();
        (u32_of(&head[12..16]), data)
    }

    pub(crate) fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.send(&request(command, flags, cookie, offset, length));
    }

    /// Sends a request and reads its reply, which must be the next one.
    pub(crate) fn round_trip(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> Reply {
        self.request(command, flags, 0xc001e, offset, length);
        let reply = self.reply(if command == READ { length } else { 0 });
        assert_eq!(reply.cookie, 0xc001e);
        reply
    }

    /// Sends bytes. An error is ignored: the server may have closed the connection.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the next reply. A successful simple reply has `simple_data` bytes of data.
    pub(crate) fn reply(&mut self, simple_data: u32) -> Reply {
        self.try_reply(simple_data).unwrap()
    }

    /// Reads the next reply as [`reply`](Self::reply) does. Returns an error if the server closed
    /// the connection.
    pub(crate) fn try_reply(&mut self, simple_data: u32) -> io::Result<Reply> {
        let magic: [u8; 4] = self.read()?;
        if magic == 0x6744_6698_u32.to_be_bytes() {
            assert!(!self.structured || simple_data == 0, "a simple reply to a read");
            let head: [u8; 12] = self.read()?;
            let error = u32_of(&head[..4]);
            let mut data = vec![0; if error == 0 { simple_data as usize } else { 0 }];
            self.stream.read_exact(&mut data)?;
            return Ok(Reply { cookie: u64_of(&head[4..]), error, data });
        }
        assert_eq!((magic, self.structured), (0x668e_33ef_u32.to_be_bytes(), true));
        let head: [u8; 16] = self.read()?;
        let kind = u16::from_be_bytes([head[2], head[3]]);
        let mut data = vec![0; u32_of(&head[12..]) as usize];
        self.stream.read_exact(&mut data)?;
        let cookie = u64_of(&head[4..12]);
        assert_eq!(head[..2], [0, 1], "a reply in several chunks");
        Ok(match kind {
            0 => Reply { cookie, error: 0, data },
            1 => Reply { cookie, error: 0, data: data.split_off(8) },
            5 => Reply { cookie, error: 0, data },
            0x8001 => Reply { cookie, error: u32_of(&data[..4]), data: Vec::new() },
            other => panic!("a chunk of kind {other:#x}"),
        })
    }

    /// Returns whether the server closed the connection without sending anything more.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

pub(crate) fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}
