//! One connection to a relay: asks, and waits for the answer.
//!
//! Where many streams are asked for their next packet the questions go out together and the answers are read in their
//! order: a relay with 600 streams takes 600 × 40 µs one by one. The relay's sockets hold a second answer back until the first
//! is acknowledged (Nagle's algorithm), and an acknowledgement may wait 40 ms; so here each is sent at once.

use std::io::{BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::linux::net::TcpStreamExt as _;
use std::time::Duration;

use super::protocol::{
    Fields, INDEX_BYTES, Index, News, Next, Request, SESSION_BYTES, STREAM_BYTES, Session, Stream, VERSION,
    index,
};
use crate::ctf::metadata::TEXT_MAX;
use crate::ctf::packet::PACKET_MAX;

/// How long a relay may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Sessions or streams in one list: more is no relay.
const LISTED_MAX: u32 = 1 << 16;
/// Questions on the way at once: 24 bytes each, and 64 for the answer.
const TOGETHER: usize = 64;

/// Why there is nothing to read from a relay.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// It is not there, or not any more.
    #[error("the relay at {address}: {error}")]
    Away {
        /// Where it was looked for.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// It speaks another protocol.
    #[error("the relay speaks version {0}.{1} of the live protocol; 2.4 and later 2.x can be read")]
    Version(u32, u32),
    /// What it says makes no sense.
    #[error("the relay's answer: {0}")]
    Protocol(String),
    /// It has no session of that name.
    #[error("the relay has no session `{name}`; it has {known}")]
    NoSession {
        /// What was looked for.
        name: String,
        /// What is there.
        known: String,
    },
    /// It does not let us read the session.
    #[error("the relay refuses session `{name}`: {why}")]
    Refused {
        /// The session.
        name: String,
        /// In its words.
        why: &'static str,
    },
    /// It is of another version of the format.
    #[error(
        "session `{0}` is of CTF 2; CTF 1.8 can be read: make it with `lttng create --trace-format=ctf-1.8`"
    )]
    Ctf2(String),
}

/// The answer to a question for a part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The bytes are there.
    Here,
    /// Not yet, or not before the news are read.
    Retry,
    /// They are gone: the relay has written over them.
    Gone,
}

/// A connection after its greeting.
pub struct Connection {
    address: String,
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    /// The relay's version.
    pub version: (u32, u32),
}

impl Connection {
    /// Connects to `address` (HOST:PORT) and greets.
    pub fn open(address: &str) -> Result<Self, LiveError> {
        let away = |error| LiveError::Away { address: address.to_owned(), error };
        let connected =
            address.to_socket_addrs().map_err(away)?.map(|to| TcpStream::connect_timeout(&to, ANSWER_WITHIN));
        let unknown = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
        let stream = connected.reduce(Result::or).unwrap_or_else(|| Err(unknown())).map_err(away)?;
        let prepared = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(ANSWER_WITHIN)));
        prepared.and_then(|()| stream.set_write_timeout(Some(ANSWER_WITHIN))).map_err(away)?;
        let stream = BufReader::with_capacity(64 << 10, stream);
        let mut connection = Self { address: address.to_owned(), stream, out: Vec::new(), version: (0, 0) };
        connection.greet()?;
        Ok(connection)
    }

    fn greet(&mut self) -> Result<(), LiveError> {
        let answer = self.ask::<20>(Request::Connect)?;
        let mut fields = Fields(&answer[8..]);
        self.version = (fields.u32(), fields.u32());
        let (major, minor) = self.version;
        if major != VERSION.0 || minor < VERSION.1 {
            return Err(LiveError::Version(major, minor));
        }
        Ok(())
    }

    /// All sessions of the relay.
    pub fn sessions(&mut self) -> Result<Vec<Session>, LiveError> {
        let count = Fields(&self.ask::<4>(Request::ListSessions)?).u32();
        let count = self.listed(count)?;
        (0..count).map(|_| self.read::<SESSION_BYTES>().map(|bytes| Session::decode(&bytes))).collect()
    }

    /// The streams of a session, which is followed from now on.
    pub fn attach(&mut self, session: &Session, from_begin: bool) -> Result<Vec<Stream>, LiveError> {
        let refused = |why| LiveError::Refused { name: session.name.clone(), why };
        let created = Fields(&self.ask::<4>(Request::CreateSession)?).u32();
        if created != 1 {
            return Err(refused("it makes no room for a reader"));
        }
        let answer = self.ask::<8>(Request::Attach { session: session.id, from_begin })?;
        let mut fields = Fields(&answer);
        match fields.u32() {
            1 => {}
            2 => return Err(refused("another reader is attached")),
            3 => return Err(refused("it is gone")),
            4 => return Err(refused("it is not live: it was not created with --live")),
            5 => return Err(refused("it cannot be read from there")),
            _ => return Err(refused("it does not say why")),
        }
        let count = fields.u32();
        self.streams(count)
    }

    /// Streams that began since the last time; none if the session is over.
    pub fn new_streams(&mut self, session: u64) -> Result<Option<Vec<Stream>>, LiveError> {
        let answer = self.ask::<8>(Request::NewStreams { session })?;
        let mut fields = Fields(&answer);
        match (fields.u32(), fields.u32()) {
            (1, count) => self.streams(count).map(Some),
            (2, _) => Ok(Some(Vec::new())),
            (4, _) => Ok(None),
            (other, _) => Err(LiveError::Protocol(format!("new streams: status {other}"))),
        }
    }

    fn streams(&mut self, count: u32) -> Result<Vec<Stream>, LiveError> {
        let count = self.listed(count)?;
        (0..count).map(|_| self.read::<STREAM_BYTES>().map(|bytes| Stream::decode(&bytes))).collect()
    }

    fn listed(&self, count: u32) -> Result<u32, LiveError> {
        match count {
            0..=LISTED_MAX => Ok(count),
            _ => Err(LiveError::Protocol(format!("a list of {count}"))),
        }
    }

    /// What each of `streams` has next.
    pub fn next(&mut self, streams: &[u64], into: &mut Vec<(Next, News)>) -> Result<(), LiveError> {
        for together in streams.chunks(TOGETHER) {
            for &stream in together {
                Request::NextIndex { stream }.put(&mut self.out);
            }
            self.send()?;
            for _ in together {
                // Lasts for a while only, so it is said each time.
                self.stream.get_ref().set_quickack(true).map_err(|error| self.away(error))?;
                into.push(index(&self.read::<INDEX_BYTES>()?));
            }
        }
        Ok(())
    }

    /// The content of the packet at `at`, in place of what is in `into`.
    pub fn packet(&mut self, stream: u64, at: &Index, into: &mut Vec<u8>) -> Result<(Part, News), LiveError> {
        let bits = at.content_bits;
        if bits > at.packet_bits || bits > PACKET_MAX * 8 {
            return Err(LiveError::Protocol(format!("a packet of {} bits with {bits}", at.packet_bits)));
        }
        let wanted = bits.div_ceil(8) as u32;
        let answer = self.ask::<12>(Request::Packet { stream, offset: at.offset, length: wanted })?;
        let mut fields = Fields(&answer);
        let (status, length, news) = (fields.u32(), fields.u32(), News::decode(fields.u32()));
        match status {
            1 if length == wanted => {
                self.read_into(u64::from(length), into)?;
                Ok((Part::Here, news))
            }
            1 => Err(LiveError::Protocol(format!("{length} bytes of a packet instead of {wanted}"))),
            2 => Ok((Part::Retry, news)),
            // With news this only says that they have to be read first.
            3 if news != News::default() => Ok((Part::Retry, news)),
            3 | 4 => Ok((Part::Gone, news)),
            other => Err(LiveError::Protocol(format!("a packet: status {other}"))),
        }
    }

    /// What was added to a trace's metadata; empty if nothing was.
    pub fn metadata(&mut self, stream: u64, into: &mut Vec<u8>) -> Result<(), LiveError> {
        let answer = self.ask::<12>(Request::Metadata { stream })?;
        let mut fields = Fields(&answer);
        into.clear();
        match (fields.u64(), fields.u32()) {
            (length, 1) if length <= TEXT_MAX as u64 => self.read_into(length, into),
            (length, 1) => Err(LiveError::Protocol(format!("metadata of {length} bytes"))),
            // Nothing new; or its trace has ended, and the relay has let go of it.
            (_, 2..=4) => Ok(()),
            (_, other) => Err(LiveError::Protocol(format!("metadata: status {other}"))),
        }
    }

    fn ask<const N: usize>(&mut self, request: Request) -> Result<[u8; N], LiveError> {
        request.put(&mut self.out);
        self.send()?;
        self.read()
    }

    fn send(&mut self) -> Result<(), LiveError> {
        let sent = self.stream.get_mut().write_all(&self.out);
        self.out.clear();
        sent.map_err(|error| self.away(error))
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], LiveError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map_err(|error| self.away(error))?;
        Ok(bytes)
    }

    /// Memory grows with what arrives, not with what is announced.
    fn read_into(&mut self, length: u64, into: &mut Vec<u8>) -> Result<(), LiveError> {
        into.clear();
        let read = (&mut self.stream).take(length).read_to_end(into);
        match read {
            Ok(read) if read as u64 == length => Ok(()),
            Ok(_) => Err(self.away(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.away(error)),
        }
    }

    fn away(&self, error: std::io::Error) -> LiveError {
        LiveError::Away { address: self.address.clone(), error }
    }
}
