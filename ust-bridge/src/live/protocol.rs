//! Messages of LTTng's live protocol 2.4, as bytes (lttng-tools, `src/bin/lttng-relayd/lttng-viewer-abi.h`): numbers are
//! big-endian and packed, texts have fixed room and end at a NUL.
//!
//! The relay says its version first and then keeps to the lower of both; we say 2.4, which relays since LTTng 2.4 speak.

/// What we say that we speak.
pub const VERSION: (u32, u32) = (2, 4);

/// Bytes of a session in a list.
pub const SESSION_BYTES: usize = 8 + 3 * 4 + 64 + 255;
/// Bytes of a stream in a list.
pub const STREAM_BYTES: usize = 8 + 8 + 4 + 4096 + 255;
/// Bytes of an index.
pub const INDEX_BYTES: usize = 7 * 8 + 2 * 4;

/// What may be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Says our version; answered by the relay's.
    Connect,
    /// All sessions of the relay.
    ListSessions,
    /// Streams of a session, from its begin or from now on.
    Attach {
        /// By its number in the list.
        session: u64,
        /// From what the relay still has; or else from now on.
        from_begin: bool,
    },
    /// Where the stream's next packet is.
    NextIndex {
        /// The stream.
        stream: u64,
    },
    /// A part of the stream's file.
    Packet {
        /// The stream.
        stream: u64,
        /// As the index says.
        offset: u64,
        /// In bytes.
        length: u32,
    },
    /// What was added to a trace's metadata.
    Metadata {
        /// The stream that is metadata.
        stream: u64,
    },
    /// Streams that began since the last time.
    NewStreams {
        /// The session.
        session: u64,
    },
    /// What attaching needs first.
    CreateSession,
}

impl Request {
    /// Adds the message's bytes to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(24);
        let command: u32 = match *self {
            Self::Connect => {
                body.extend(0_u64.to_be_bytes());
                body.extend(VERSION.0.to_be_bytes());
                body.extend(VERSION.1.to_be_bytes());
                // A connection for commands.
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

/// Numbers of a message, one after another. What is missing reads as 0: lengths are checked where messages are received.
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

/// A session in the relay's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its number at this relay.
    pub id: u64,
    /// In µs; 0 if it is not live.
    pub live_timer_us: u32,
    /// Readers that are attached.
    pub clients: u32,
    /// Its streams.
    pub streams: u32,
    /// The machine that is traced.
    pub host: String,
    /// As its owner called it.
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

/// A stream in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Its number at this relay.
    pub id: u64,
    /// The trace that it is part of.
    pub trace: u64,
    /// It is that trace's metadata.
    pub is_metadata: bool,
    /// Where the relay keeps it; says session, domain, user or process.
    pub path: String,
    /// Channel and processor.
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

/// What the relay answers when asked for a stream's next packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// There is one.
    Packet(Index),
    /// Not yet.
    Retry,
    /// The stream is idle, and has no event before this time.
    Inactive(u64),
    /// The stream has ended.
    Over,
    /// The relay cannot say.
    Failed(u32),
}

/// Where a packet is, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Index {
    /// In the relay's file.
    pub offset: u64,
    /// In bits.
    pub packet_bits: u64,
    /// In bits.
    pub content_bits: u64,
    /// In ticks.
    pub end: u64,
}

/// What else the relay has to say.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct News {
    /// Metadata that is needed for what comes.
    pub metadata: bool,
    /// Streams that began.
    pub streams: bool,
}

impl News {
    pub(crate) fn decode(flags: u32) -> Self {
        Self { metadata: flags & 1 != 0, streams: flags & 2 != 0 }
    }
}

/// An index and its flags.
pub(crate) fn index(bytes: &[u8]) -> (Next, News) {
    let mut fields = Fields(bytes);
    let (offset, packet_bits, content_bits) = (fields.u64(), fields.u64(), fields.u64());
    let (_begin, end, _discarded, _stream) = (fields.u64(), fields.u64(), fields.u64(), fields.u64());
    let (status, flags) = (fields.u32(), fields.u32());
    let next = match status {
        1 => Next::Packet(Index { offset, packet_bits, content_bits, end }),
        2 => Next::Retry,
        3 | 6 => Next::Over,
        5 => Next::Inactive(end),
        other => Next::Failed(other),
    };
    (next, News::decode(flags))
}
