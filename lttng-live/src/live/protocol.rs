//! Messages of LTTng's live protocol 2.4, encoded and decoded.
//!
//! *In*: requests, and bytes of replies. *Out*: bytes, and typed replies. *Source*: lttng-tools,
//! `src/bin/lttng-relayd/lttng-viewer-abi.h`. Numbers are big-endian and packed. Texts have a fixed
//! size and end at a NUL.
//!
//! The client and the relay exchange versions first, and the relay uses the lower one. This client
//! reports 2.4, which relays support since LTTng 2.4.

/// Protocol version that this client reports.
pub const VERSION: (u32, u32) = (2, 4);

/// Size of a session in a list, in bytes.
pub const SESSION_BYTES: usize = 8 + 3 * 4 + 64 + 255;
/// Size of a stream in a list, in bytes.
pub const STREAM_BYTES: usize = 8 + 8 + 4 + 4096 + 255;
/// Size of an index, in bytes.
pub const INDEX_BYTES: usize = 7 * 8 + 2 * 4;

/// Request to a relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Exchanges protocol versions.
    Connect,
    /// Lists all sessions of the relay.
    ListSessions,
    /// Attaches to a session; the reply lists its streams.
    Attach {
        /// Session's number in the list.
        session: u64,
        /// Starts with the oldest data at the relay; otherwise with new data.
        from_begin: bool,
    },
    /// Asks for the position of a stream's next packet.
    NextIndex {
        /// Stream's number.
        stream: u64,
    },
    /// Reads a part of the stream's file.
    Packet {
        /// Stream's number.
        stream: u64,
        /// Offset from the index.
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Reads new metadata of a trace.
    Metadata {
        /// Number of the metadata stream.
        stream: u64,
    },
    /// Lists the streams that were added since the last request.
    NewStreams {
        /// Session's number.
        session: u64,
    },
    /// Creates a viewer session, which is required before attaching.
    CreateSession,
}

impl Request {
    /// Appends the message's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(24);
        let command: u32 = match *self {
            Self::Connect => {
                body.extend(0_u64.to_be_bytes());
                body.extend(VERSION.0.to_be_bytes());
                body.extend(VERSION.1.to_be_bytes());
                // LTTNG_VIEWER_CLIENT_COMMAND.
                body.extend(1_u32.to_be_bytes());
                1
            }
            Self::ListSessions => 2,
            Self::Attach { session, from_begin } => {
                body.extend(session.to_be_bytes());
                body.extend(0_u64.to_be_bytes());
                body.extend(if from_begin { 1_u32 } else { 2 }.to_be_bytes());
                3
            }
            Self::NextIndex { stream } => {
                body.extend(stream.to_be_bytes());
                4
            }
            Self::Packet { stream, offset, length } => {
                body.extend(stream.to_be_bytes());
                body.extend(offset.to_be_bytes());
                body.extend(length.to_be_bytes());
                5
            }
            Self::Metadata { stream } => {
                body.extend(stream.to_be_bytes());
                6
            }
            Self::NewStreams { session } => {
                body.extend(session.to_be_bytes());
                7
            }
            Self::CreateSession => 8,
        };
        out.extend((body.len() as u64).to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(0_u32.to_be_bytes());
        out.extend(body);
    }
}

/// Decoder of consecutive fields. A missing field reads as 0; the receiver checks lengths.
pub(crate) struct Fields<'m>(pub(crate) &'m [u8]);

impl<'m> Fields<'m> {
    pub(crate) fn u32(&mut self) -> u32 {
        self.take().map_or(0, u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.take().map_or(0, u64::from_be_bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn text(&mut self, room: usize) -> String {
        let (text, rest) = self.0.split_at_checked(room).unwrap_or((self.0, &[]));
        self.0 = rest;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}

/// Session in the relay's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Session's number at this relay.
    pub id: u64,
    /// Period of the live timer in µs; 0 if the session is not live.
    pub live_timer_us: u32,
    /// Number of attached readers.
    pub clients: u32,
    /// Number of streams.
    pub streams: u32,
    /// Name of the traced machine.
    pub host: String,
    /// Session's name.
    pub name: String,
}

impl Session {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            id: fields.u64(),
            live_timer_us: fields.u32(),
            clients: fields.u32(),
            streams: fields.u32(),
            host: fields.text(64),
            name: fields.text(255),
        }
    }
}

/// Stream in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Stream's number at this relay.
    pub id: u64,
    /// Number of the stream's trace.
    pub trace: u64,
    /// True for the trace's metadata stream.
    pub is_metadata: bool,
    /// Path of the stream's trace at the relay, with session, domain, and user or process.
    pub path: String,
    /// Name of the channel with the CPU's number.
    pub channel: String,
}

impl Stream {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            id: fields.u64(),
            trace: fields.u64(),
            is_metadata: fields.u32() != 0,
            path: fields.text(4096),
            channel: fields.text(255),
        }
    }
}

/// Reply to a request for the next index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexReply {
    /// Position of the next packet.
    Packet(Index),
    /// No packet yet.
    Retry,
    /// The stream is idle and has no event before this time (a beacon).
    Inactive(u64),
    /// The stream has ended.
    HungUp,
    /// Any other status of the relay.
    Failed(u32),
}

/// Position and size of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Index {
    /// Offset in the relay's file, in bytes.
    pub offset: u64,
    /// Size of the packet in bits.
    pub packet_bits: u64,
    /// Size of its content in bits.
    pub content_bits: u64,
    /// End of the packet in clock ticks.
    pub end: u64,
}

/// Flags of a reply.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ViewerFlags {
    /// New metadata must be read before further packets.
    pub new_metadata: bool,
    /// New streams are available.
    pub new_streams: bool,
}

impl ViewerFlags {
    pub(crate) fn decode(flags: u32) -> Self {
        Self { new_metadata: flags & 1 != 0, new_streams: flags & 2 != 0 }
    }
}

/// Decodes an index and its flags.
pub(crate) fn index(bytes: &[u8]) -> (IndexReply, ViewerFlags) {
    let mut fields = Fields(bytes);
    let (offset, packet_bits, content_bits) = (fields.u64(), fields.u64(), fields.u64());
    let (_begin, end, _discarded, _stream) = (fields.u64(), fields.u64(), fields.u64(), fields.u64());
    let (status, flags) = (fields.u32(), fields.u32());
    let next = match status {
        1 => IndexReply::Packet(Index { offset, packet_bits, content_bits, end }),
        2 => IndexReply::Retry,
        3 | 6 => IndexReply::HungUp,
        5 => IndexReply::Inactive(end),
        other => IndexReply::Failed(other),
    };
    (next, ViewerFlags::decode(flags))
}
