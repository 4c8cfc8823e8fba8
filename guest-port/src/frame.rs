//! Format of a frame, and the search for frames in a stream of bytes.
//!
//! | bytes | content (integers little-endian) |
//! |---|---|
//! | 4 | mark: `BKG1` |
//! | 1 | kind: 1 RECORD, 2 RESUME, 3 ACKNOWLEDGED, 4 RESUMED, 5 PING, 6 PONG |
//! | 3 | zero |
//! | 8 | number |
//! | 4 | length of the payload, at most [`PAYLOAD_MAX`] |
//! | 4 | CRC-32 of the payload (IEEE 802.3, as in zlib) |
//! | 4 | CRC-32 of the bytes before |
//! | length | payload: of a RECORD the record; of a PONG the guest's boot id (16 bytes, big-endian) and its CLOCK_MONOTONIC (8 bytes, ns) |
//!
//! *Invariant*: [`Decoder::next_frame`] returns only frames with checksums that fit. After bytes that are no frame it
//! continues at the next mark, so damage costs the frames that it touches and no other.

use std::ops::Range;

/// Maximum length of a payload. A record has at most 1,000,000 bytes by default (`BatcherConfig` of the bus).
pub const PAYLOAD_MAX: usize = 1 << 20;
/// Length of a frame without its payload.
pub const HEADER: usize = 28;
const MARK: [u8; 4] = *b"BKG1";

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Guest to host: the payload is the record with this number.
    Record,
    /// Host to guest: send every record that is not acknowledged. The number is the request's.
    Resume,
    /// Host to guest: the records below this number are safe.
    Acknowledged,
    /// Guest to host: the records of the resume request with this number follow.
    Resumed,
    /// Host to guest: what time is it there? The number is the ping's.
    Ping,
    /// Guest to host: the answer to the ping with this number.
    Pong,
}

const KINDS: [Kind; 6] =
    [Kind::Record, Kind::Resume, Kind::Acknowledged, Kind::Resumed, Kind::Ping, Kind::Pong];

/// A frame. The payload is a part of the decoder's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Kind.
    pub kind: Kind,
    /// Number of the record, of the first record that is not acknowledged, of the resume request, or of the ping.
    pub number: u64,
    /// Encoded record or time.
    pub payload: &'a [u8],
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Record => 1,
            Kind::Resume => 2,
            Kind::Acknowledged => 3,
            Kind::Resumed => 4,
            Kind::Ping => 5,
            Kind::Pong => 6,
        }
    }

    fn of(byte: u8) -> Option<Kind> {
        KINDS.into_iter().find(|kind| kind.byte() == byte)
    }
}

/// Appends a frame. The payload must not be longer than [`PAYLOAD_MAX`].
pub fn encode(frame: Frame<'_>, out: &mut Vec<u8>) {
    debug_assert!(frame.payload.len() <= PAYLOAD_MAX);
    let start = out.len();
    out.extend(MARK);
    out.extend([frame.kind.byte(), 0, 0, 0]);
    out.extend(frame.number.to_le_bytes());
    out.extend((frame.payload.len() as u32).to_le_bytes());
    out.extend(crc32fast::hash(frame.payload).to_le_bytes());
    let header = crc32fast::hash(&out[start..]);
    out.extend(header.to_le_bytes());
    out.extend(frame.payload);
}

/// Decoder of a stream of frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Start of the bytes that were not returned yet.
    at: usize,
    skipped: u64,
}

/// Header with a checksum that fits.
struct Header {
    kind: Kind,
    number: u64,
    length: usize,
    checksum: u32,
}

impl Decoder {
    /// Adds bytes of the stream.
    pub fn add(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame.
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        let (header, payload) = self.find()?;
        Some(Frame { kind: header.kind, number: header.number, payload: &self.buffer[payload] })
    }

    /// Returns the number of bytes that were in no frame.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Finds the next complete frame, and moves behind it.
    fn find(&mut self) -> Option<(Header, Range<usize>)> {
        loop {
            self.skip_to_mark();
            let rest = &self.buffer[self.at..];
            let header = rest.first_chunk::<HEADER>()?;
            let Some(header) = Header::parse(header) else {
                self.skip(1);
                continue;
            };
            let payload = HEADER..HEADER + header.length;
            let bytes = rest.get(payload.clone())?;
            if crc32fast::hash(bytes) != header.checksum {
                self.skip(1);
                continue;
            }
            let payload = self.at + payload.start..self.at + payload.end;
            self.at = payload.end;
            return Some((header, payload));
        }
    }

    /// Skips bytes that cannot begin a frame.
    fn skip_to_mark(&mut self) {
        let rest = &self.buffer[self.at..];
        let begins = |at: &usize| {
            let rest = &rest[*at..];
            rest.iter().zip(&MARK).all(|(byte, mark)| byte == mark)
        };
        let start = (0..rest.len()).find(begins).unwrap_or(rest.len());
        self.skip(start);
    }

    fn skip(&mut self, bytes: usize) {
        self.at += bytes;
        self.skipped += bytes as u64;
    }
}

impl Header {
    fn parse(bytes: &[u8; HEADER]) -> Option<Header> {
        let word = |at: usize| bytes[at..].first_chunk().map(|word| u32::from_le_bytes(*word));
        let number = bytes[8..].first_chunk().map(|word| u64::from_le_bytes(*word))?;
        let (length, checksum, own) = (word(16)? as usize, word(20)?, word(24)?);
        let kind = Kind::of(bytes[4])?;
        let is_valid = bytes[..4] == MARK
            && bytes[5..8] == [0; 3]
            && length <= PAYLOAD_MAX
            && crc32fast::hash(&bytes[..HEADER - 4]) == own;
        is_valid.then_some(Header { kind, number, length, checksum })
    }
}
