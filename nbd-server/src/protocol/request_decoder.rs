//! Decoder from a client's byte stream to its requests.
//!
//! *In*: bytes in reads of any size. *Out*: requests, each with the data that it writes and its
//! stream offset. *Invariant*: the boundaries of the reads change neither the requests nor their
//! offsets. The decoder stores at most [`BUFFER_BYTES`] and one payload of [`PAYLOAD_MAX`].
//!
//! One read of the socket brings many requests: with 16 in flight, one system call for each would
//! cost more than the work. The rest of a large write is read directly into its payload:
//! [`space`](RequestDecoder::space) then returns that part.

use super::request::{HEADER, Request};
use super::{Command, PAYLOAD_MAX};

/// Size of the read buffer: 2,300 headers, or 15 writes of 4 KiB.
pub const BUFFER_BYTES: usize = 64 << 10;
/// Number of missing payload bytes from which on they are read directly into the payload. A smaller
/// rest is read into the buffer together with the next requests, and copied.
const DIRECT_READ_MIN: usize = 32 << 10;

/// Request with the data that it writes.
#[derive(Debug, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// Header.
    pub request: Request,
    /// Stream offset of the header: bytes that the client sent before it on this connection.
    pub stream_offset: u64,
    /// Data of a write; empty for any other command.
    pub payload: Vec<u8>,
}

/// Protocol violation after which the stream cannot be decoded. The server closes the connection
/// ("Termination of the session").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A header with a wrong magic.
    #[error("wrong request magic")]
    Magic,
    /// A write above the negotiated maximum. To skip its data would mean to read up to 4 GiB.
    #[error("write of {0} bytes is above the maximum")]
    TooLong(u32),
}

/// Bytes of a client that are not yet decoded.
#[derive(Debug)]
pub struct RequestDecoder {
    buffer: Box<[u8]>,
    /// Range of the buffer with undecoded bytes.
    start: usize,
    end: usize,
    /// Write of which payload is missing, and the number of its payload bytes that arrived.
    partial: Option<(ReceivedRequest, usize)>,
    /// Stream offset of the next request.
    stream_offset: u64,
    /// True after a disconnect or a violation.
    ended: bool,
}

impl Default for RequestDecoder {
    fn default() -> Self {
        Self::at_offset(0)
    }
}

impl RequestDecoder {
    /// Returns a decoder for a stream of which `stream_offset` bytes were read already.
    pub fn at_offset(stream_offset: u64) -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            partial: None,
            stream_offset,
            ended: false,
        }
    }

    /// Returns the space for the next read. It is never empty after [`next`](Self::next) returned
    /// no request.
    pub fn space(&mut self) -> &mut [u8] {
        if self.reads_directly()
            && let Some((write, arrived)) = &mut self.partial
        {
            return &mut write.payload[*arrived..];
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// Records that `bytes` bytes were written to [`space`](Self::space).
    pub fn filled(&mut self, bytes: usize) {
        if self.reads_directly()
            && let Some((write, arrived)) = &mut self.partial
        {
            *arrived = (*arrived + bytes).min(write.payload.len());
        } else {
            self.end = (self.end + bytes).min(self.buffer.len());
        }
    }

    /// Returns the header of the request that [`next`](Self::next) would begin to decode; none if it
    /// is incomplete, or if the data of an earlier request is.
    pub fn next_header(&self) -> Option<Request> {
        if self.ended || self.partial.is_some() {
            return None;
        }
        self.buffer[self.start..self.end].first_chunk::<HEADER>().and_then(Request::decode)
    }

    /// Returns the next request; none if it is incomplete, and none after a disconnect.
    #[expect(
        clippy::should_implement_trait,
        reason = "it fails, and returns requests after it returned none"
    )]
    pub fn next(&mut self) -> Result<Option<ReceivedRequest>, Violation> {
        if self.ended {
            return Ok(None);
        }
        if self.partial.is_none() {
            let Some(header) = self.buffer[self.start..self.end].first_chunk::<HEADER>() else {
                return Ok(None);
            };
            let Some(request) = Request::decode(header) else {
                self.ended = true;
                return Err(Violation::Magic);
            };
            self.start += HEADER;
            let length = request.payload_bytes();
            if length > PAYLOAD_MAX {
                self.ended = true;
                return Err(Violation::TooLong(length));
            }
            self.ended = request.command == Command::Disconnect;
            let stream_offset = self.stream_offset;
            self.stream_offset += HEADER as u64 + u64::from(length);
            if length == 0 {
                return Ok(Some(ReceivedRequest { request, stream_offset, payload: Vec::new() }));
            }
            let payload = vec![0; length as usize];
            self.partial = Some((ReceivedRequest { request, stream_offset, payload }, 0));
        }
        let Some((mut write, mut arrived)) = self.partial.take() else { return Ok(None) };
        let missing = &mut write.payload[arrived..];
        let buffered = missing.len().min(self.end - self.start);
        missing[..buffered].copy_from_slice(&self.buffer[self.start..][..buffered]);
        self.start += buffered;
        arrived += buffered;
        if arrived == write.payload.len() {
            return Ok(Some(write));
        }
        self.partial = Some((write, arrived));
        Ok(None)
    }

    /// Returns whether the next read goes directly into a payload. The buffer is empty then, since
    /// its bytes were copied.
    fn reads_directly(&self) -> bool {
        self.partial.as_ref().is_some_and(|(write, arrived)| write.payload.len() - arrived >= DIRECT_READ_MIN)
            && self.start == self.end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(command: u16, cookie: u64, length: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0; 2]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(0_u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// Decodes bytes that arrive in reads of the lengths `reads`, which repeat.
    fn decode(mut bytes: &[u8], reads: &[usize]) -> (Vec<ReceivedRequest>, Option<Violation>) {
        let (mut decoder, mut out) = (RequestDecoder::default(), Vec::new());
        let mut reads = reads.iter().copied().cycle();
        loop {
            loop {
                match decoder.next() {
                    Ok(Some(received)) => out.push(received),
                    Ok(None) => break,
                    Err(violation) => return (out, Some(violation)),
                }
            }
            if bytes.is_empty() || decoder.ended {
                return (out, None);
            }
            let space = decoder.space();
            assert!(!space.is_empty());
            let read = reads.next().unwrap_or(1).min(space.len()).min(bytes.len());
            space[..read].copy_from_slice(&bytes[..read]);
            decoder.filled(read);
            bytes = &bytes[read..];
        }
    }

    /// Well-formed requests: command number, cookie and data length are random.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let data = prop_oneof![3 => 0..5_000_usize, 1 => 60_000..140_000_usize];
        let one = (0..9_u16, any::<u64>(), data);
        prop::collection::vec(one, 0..8).prop_map(|all| {
            let made = all.iter().map(|&(command, cookie, length)| {
                let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
                encode(command, cookie, length as u32, if command == 1 { &data } else { &[] })
            });
            made.collect::<Vec<_>>().concat()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn read_boundaries_make_no_difference(bytes in stream(), reads in prop::collection::vec(1..100_000_usize, 1..8)) {
            let whole = decode(&bytes, &[usize::MAX]);
            prop_assert_eq!(whole.1, None);
            let mut offset = 0;
            for ReceivedRequest { stream_offset, payload, .. } in &whole.0 {
                prop_assert_eq!(*stream_offset, offset);
                offset += (HEADER + payload.len()) as u64;
            }
            for received in &whole.0 {
                let expected = if received.request.command == Command::Write { received.request.length } else { 0 };
                prop_assert_eq!(received.payload.len() as u32, expected);
                prop_assert!(received.payload.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            }
            prop_assert_eq!(decode(&bytes, &reads), whole);
        }

        #[test]
        fn any_bytes_decode_to_requests_or_a_violation(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            valid in stream(),
            reads in prop::collection::vec(1..50_usize, 1..4),
        ) {
            let bytes = [&valid[..valid.len().min(2_000)], &bytes[..]].concat();
            prop_assert_eq!(decode(&bytes, &reads), decode(&bytes, &[usize::MAX]));
        }
    }

    #[test]
    fn a_write_above_the_maximum_is_a_violation() {
        let (none, violation) = decode(&encode(1, 5, u32::MAX, &[]), &[7]);
        assert_eq!((none, violation), (vec![], Some(Violation::TooLong(u32::MAX))));
    }

    #[test]
    fn nothing_follows_a_disconnect() {
        let bytes = [encode(2, 1, 0, &[]), encode(0, 2, 512, &[])].concat();
        let (requests, violation) = decode(&bytes, &[usize::MAX]);
        assert_eq!((requests.len(), requests[0].request.command, violation), (1, Command::Disconnect, None));
    }
}
