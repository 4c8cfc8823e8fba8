//! Connection to a relay, with one method per request.
//!
//! *In*: requests of the reader. *Out*: decoded replies, or a [`LiveError`]. *Invariant*: each
//! length is checked before its content is read, and memory grows with received data, not with
//! announced data.
//!
//! *Pipelining.* Requests for the next packets of many streams are sent together, and the replies
//! are read in order. One by one, a relay with 600 streams takes 600 × 40 µs. The relay's socket
//! holds a second reply back until the first is acknowledged (Nagle's algorithm), and an
//! acknowledgement may be delayed by 40 ms. The reader therefore acknowledges each reply at once.

use std::io::{BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::linux::net::TcpStreamExt as _;
use std::time::Duration;

use super::protocol::{
    Fields, INDEX_BYTES, Index, IndexReply, Request, SESSION_BYTES, STREAM_BYTES, Session, Stream, VERSION,
    ViewerFlags, index,
};
use crate::ctf::metadata::TEXT_MAX;
use crate::ctf::packet::PACKET_MAX;

/// Maximum time until a reply arrives.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of sessions or streams in a list. A larger number is a protocol error.
const LIST_MAX: u32 = 1 << 16;
/// Requests in flight: 24 bytes each, and 64 bytes per reply.
const PIPELINE_MAX: usize = 64;

/// Reason why nothing can be read from a relay.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The connection cannot be opened, or broke.
    #[error("cannot reach the relay at {address}: {error}")]
    Unreachable {
        /// Address of the relay.
        address: String,
        /// Operating system's error.
        error: std::io::Error,
    },
    /// The relay's protocol version is not supported.
    #[error("the relay has version {0}.{1} of the live protocol; 2.4 and later 2.x are supported")]
    Version(u32, u32),
    /// A reply is invalid.
    #[error("invalid reply of the relay: {0}")]
    Protocol(String),
    /// The relay has no session of this name.
    #[error("the relay has no session `{name}` (it has {known})")]
    NoSession {
        /// Requested session.
        name: String,
        /// Sessions of the relay.
        known: String,
    },
    /// The relay refuses to attach the reader.
    #[error("the relay refuses session `{name}`: {why}")]
    Refused {
        /// Session's name.
        name: String,
        /// Reason.
        why: &'static str,
    },
    /// The session's format is CTF 2.
    #[error(
        "session `{0}` is CTF 2, only CTF 1.8 is supported: create it with `lttng create --trace-format=ctf-1.8`"
    )]
    Ctf2(String),
}

/// Reply to a request for a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketReply {
    /// The content was received.
    Received,
    /// Not available yet, or new metadata or streams must be read first.
    Retry,
    /// The relay has overwritten the packet.
    Overwritten,
}

/// Connection after the handshake.
pub struct Connection {
    address: String,
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    /// Relay's version.
    pub version: (u32, u32),
}

impl Connection {
    /// Connects to `address` (HOST:PORT) and exchanges versions.
    pub fn open(address: &str) -> Result<Self, LiveError> {
        let unknown = || std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address");
        let connected = address.to_socket_addrs().and_then(|all| {
            let connected = all.map(|to| TcpStream::connect_timeout(&to, REPLY_TIMEOUT));
            connected.reduce(Result::or).unwrap_or_else(|| Err(unknown()))
        });
        Self::over(address, connected)
    }

    /// Exchanges versions over a new connection to `address`.
    pub fn over(address: &str, connected: std::io::Result<TcpStream>) -> Result<Self, LiveError> {
        let unreachable = |error| LiveError::Unreachable { address: address.to_owned(), error };
        let stream = connected.map_err(unreachable)?;
        let prepared = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(REPLY_TIMEOUT)));
        prepared.and_then(|()| stream.set_write_timeout(Some(REPLY_TIMEOUT))).map_err(unreachable)?;
        let stream = BufReader::with_capacity(64 << 10, stream);
        let mut connection = Self { address: address.to_owned(), stream, out: Vec::new(), version: (0, 0) };
        connection.handshake()?;
        Ok(connection)
    }

    fn handshake(&mut self) -> Result<(), LiveError> {
        let reply = self.request::<20>(Request::Connect)?;
        let mut fields = Fields(&reply[8..]);
        self.version = (fields.u32(), fields.u32());
        let (major, minor) = self.version;
        if major != VERSION.0 || minor < VERSION.1 {
            return Err(LiveError::Version(major, minor));
        }
        Ok(())
    }

    /// Returns all sessions of the relay.
    pub fn sessions(&mut self) -> Result<Vec<Session>, LiveError> {
        let count = Fields(&self.request::<4>(Request::ListSessions)?).u32();
        let count = self.check_list_length(count)?;
        (0..count).map(|_| self.read::<SESSION_BYTES>().map(|bytes| Session::decode(&bytes))).collect()
    }

    /// Attaches to a session and returns its streams.
    pub fn attach(&mut self, session: &Session, from_begin: bool) -> Result<Vec<Stream>, LiveError> {
        let refused = |why| LiveError::Refused { name: session.name.clone(), why };
        let created = Fields(&self.request::<4>(Request::CreateSession)?).u32();
        if created != 1 {
            return Err(refused("it has no viewer session left"));
        }
        let reply = self.request::<8>(Request::Attach { session: session.id, from_begin })?;
        let mut fields = Fields(&reply);
        match fields.u32() {
            1 => {}
            2 => return Err(refused("another reader is attached")),
            3 => return Err(refused("it no longer exists")),
            4 => return Err(refused("it is not live: it was not created with --live")),
            5 => return Err(refused("the requested position is invalid")),
            _ => return Err(refused("unknown status")),
        }
        let count = fields.u32();
        self.streams(count)
    }

    /// Returns the streams that were added since the last call; `None` if the session has ended.
    pub fn new_streams(&mut self, session: u64) -> Result<Option<Vec<Stream>>, LiveError> {
        let reply = self.request::<8>(Request::NewStreams { session })?;
        let mut fields = Fields(&reply);
        match (fields.u32(), fields.u32()) {
            (1, count) => self.streams(count).map(Some),
            (2, _) => Ok(Some(Vec::new())),
            (4, _) => Ok(None),
            (other, _) => Err(LiveError::Protocol(format!("status {other} of new streams"))),
        }
    }

    fn streams(&mut self, count: u32) -> Result<Vec<Stream>, LiveError> {
        let count = self.check_list_length(count)?;
        (0..count).map(|_| self.read::<STREAM_BYTES>().map(|bytes| Stream::decode(&bytes))).collect()
    }

    fn check_list_length(&self, count: u32) -> Result<u32, LiveError> {
        match count {
            0..=LIST_MAX => Ok(count),
            _ => Err(LiveError::Protocol(format!("a list of {count} entries"))),
        }
    }

    /// Requests the next index of each stream.
    pub fn next_indexes(
        &mut self,
        streams: &[u64],
        into: &mut Vec<(IndexReply, ViewerFlags)>,
    ) -> Result<(), LiveError> {
        for batch in streams.chunks(PIPELINE_MAX) {
            for &stream in batch {
                Request::NextIndex { stream }.encode(&mut self.out);
            }
            self.send()?;
            for _ in batch {
                // Quick acknowledgement is not permanent, so it is set for each reply.
                self.stream.get_ref().set_quickack(true).map_err(|error| self.unreachable(error))?;
                into.push(index(&self.read::<INDEX_BYTES>()?));
            }
        }
        Ok(())
    }

    /// Reads the content of the packet at `at` into `into`.
    pub fn packet(
        &mut self,
        stream: u64,
        at: &Index,
        into: &mut Vec<u8>,
    ) -> Result<(PacketReply, ViewerFlags), LiveError> {
        let bits = at.content_bits;
        if bits > at.packet_bits || bits > PACKET_MAX * 8 {
            return Err(LiveError::Protocol(format!(
                "a packet of {} bits with {bits} bits of content",
                at.packet_bits
            )));
        }
        let wanted = bits.div_ceil(8) as u32;
        let reply = self.request::<12>(Request::Packet { stream, offset: at.offset, length: wanted })?;
        let mut fields = Fields(&reply);
        let (status, length, flags) = (fields.u32(), fields.u32(), ViewerFlags::decode(fields.u32()));
        match status {
            1 if length == wanted => {
                self.read_content(u64::from(length), into)?;
                Ok((PacketReply::Received, flags))
            }
            1 => Err(LiveError::Protocol(format!("{length} bytes of a packet instead of {wanted}"))),
            2 => Ok((PacketReply::Retry, flags)),
            // With flags this status only means that the flagged data must be read first.
            3 if flags != ViewerFlags::default() => Ok((PacketReply::Retry, flags)),
            3 | 4 => Ok((PacketReply::Overwritten, flags)),
            other => Err(LiveError::Protocol(format!("status {other} of a packet"))),
        }
    }

    /// Reads new metadata of a trace into `into`, which is empty if there is none.
    pub fn metadata(&mut self, stream: u64, into: &mut Vec<u8>) -> Result<(), LiveError> {
        let reply = self.request::<12>(Request::Metadata { stream })?;
        let mut fields = Fields(&reply);
        into.clear();
        match (fields.u64(), fields.u32()) {
            (length, 1) if length <= TEXT_MAX as u64 => self.read_content(length, into),
            (length, 1) => Err(LiveError::Protocol(format!("metadata of {length} bytes"))),
            // No new metadata; or the trace has ended, and the relay has released it.
            (_, 2..=4) => Ok(()),
            (_, other) => Err(LiveError::Protocol(format!("status {other} of metadata"))),
        }
    }

    fn request<const N: usize>(&mut self, message: Request) -> Result<[u8; N], LiveError> {
        message.encode(&mut self.out);
        self.send()?;
        self.read()
    }

    fn send(&mut self) -> Result<(), LiveError> {
        let sent = self.stream.get_mut().write_all(&self.out);
        self.out.clear();
        sent.map_err(|error| self.unreachable(error))
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], LiveError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map_err(|error| self.unreachable(error))?;
        Ok(bytes)
    }

    /// Reads `length` bytes. Memory grows with received bytes, not with the announced length.
    fn read_content(&mut self, length: u64, into: &mut Vec<u8>) -> Result<(), LiveError> {
        into.clear();
        let read = (&mut self.stream).take(length).read_to_end(into);
        match read {
            Ok(read) if read as u64 == length => Ok(()),
            Ok(_) => Err(self.unreachable(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.unreachable(error)),
        }
    }

    fn unreachable(&self, error: std::io::Error) -> LiveError {
        LiveError::Unreachable { address: self.address.clone(), error }
    }
}
