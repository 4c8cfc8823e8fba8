//! From a client's bytes to its requests.
//!
//! *In*: bytes as they come, cut anywhere. *Out*: requests, each with the data that it writes. *Invariant*: how the
//! bytes were cut makes no difference, to where in the stream a request lies neither; no more than [`BUFFER`] and one payload of [`PAYLOAD_MAX`] are held.
//!
//! Many requests come with one read of the socket: with 16 in flight a system call for each would cost more than the
//! work itself. What a large write carries is read to where it is used: [`space`](Intake::space) is then its data.

use super::request::{HEADER, Request};
use super::{Command, PAYLOAD_MAX};

/// Bytes that are read at once: 2,300 headers, or 15 writes of 4 KiB.
pub const BUFFER: usize = 64 << 10;
/// A payload with so much of it missing is read to its own place. Below it is read with what follows, and copied.
const OWN_PLACE: usize = 32 << 10;

/// A request and the data that it writes.
#[derive(Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The request.
    pub request: Request,
    /// How many bytes came before it since the connection began.
    pub place: u64,
    /// As long as the request says if it writes; else empty.
    pub payload: Vec<u8>,
}

/// After this the client cannot be understood any more: the connection ends ("Termination of the session").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// What should be a request has another magic.
    #[error("a request without its magic")]
    Magic,
    /// More data than was allowed in the handshake; to skip it would mean to read up to 4 GiB.
    #[error("a write of {0} bytes")]
    TooLong(u32),
}

/// What has come of a client, and is not yet a request.
#[derive(Debug)]
pub struct Intake {
    buffer: Box<[u8]>,
    /// What is in the buffer: from, to.
    from: usize,
    to: usize,
    /// A write whose data is not all here, and how much is.
    begun: Option<(Incoming, usize)>,
    /// Where in the stream what is given out next begins.
    place: u64,
    /// What was given out last ended this connection.
    ended: bool,
}

impl Default for Intake {
    fn default() -> Self {
        Self::after(0)
    }
}

impl Intake {
    /// Of what comes behind so many bytes.
    pub fn after(place: u64) -> Self {
        Self { buffer: vec![0; BUFFER].into(), from: 0, to: 0, begun: None, place, ended: false }
    }

    /// Where the next bytes belong. Never empty, if [`next`](Self::next) has said that there is no request.
    pub fn space(&mut self) -> &mut [u8] {
        if self.reads_to_own_place()
            && let Some((incoming, held)) = &mut self.begun
        {
            return &mut incoming.payload[*held..];
        }
        if self.from > 0 {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        &mut self.buffer[self.to..]
    }

    /// So many bytes were put into [`space`](Self::space).
    pub fn filled(&mut self, bytes: usize) {
        if self.reads_to_own_place()
            && let Some((incoming, held)) = &mut self.begun
        {
            *held = (*held + bytes).min(incoming.payload.len());
        } else {
            self.to = (self.to + bytes).min(self.buffer.len());
        }
    }

    /// The next request; none if its bytes are not all here, and none after a request to disconnect.
    #[expect(clippy::should_implement_trait, reason = "it fails, and gives more after it gave none")]
    pub fn next(&mut self) -> Result<Option<Incoming>, Violation> {
        if self.ended {
            return Ok(None);
        }
        if self.begun.is_none() {
            let Some(header) = self.buffer[self.from..self.to].first_chunk::<HEADER>() else {
                return Ok(None);
            };
            let Some(request) = Request::decode(header) else {
                self.ended = true;
                return Err(Violation::Magic);
            };
            self.from += HEADER;
            let length = request.payload();
            if length > PAYLOAD_MAX {
                self.ended = true;
                return Err(Violation::TooLong(length));
            }
            self.ended = request.command == Command::Disconnect;
            let place = self.place;
            self.place += HEADER as u64 + u64::from(length);
            if length == 0 {
                return Ok(Some(Incoming { request, place, payload: Vec::new() }));
            }
            self.begun = Some((Incoming { request, place, payload: vec![0; length as usize] }, 0));
        }
        let Some((mut incoming, mut held)) = self.begun.take() else { return Ok(None) };
        let rest = &mut incoming.payload[held..];
        let here = rest.len().min(self.to - self.from);
        rest[..here].copy_from_slice(&self.buffer[self.from..][..here]);
        self.from += here;
        held += here;
        if held == incoming.payload.len() {
            return Ok(Some(incoming));
        }
        self.begun = Some((incoming, held));
        Ok(None)
    }

    /// Then the buffer is empty: what was in it has been copied.
    fn reads_to_own_place(&self) -> bool {
        self.begun.as_ref().is_some_and(|(incoming, held)| incoming.payload.len() - held >= OWN_PLACE)
            && self.from == self.to
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(command: u16, cookie: u64, length: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0; 2]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(0_u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// What comes out when the bytes come in pieces of these lengths, over and over.
    fn fed(mut bytes: &[u8], pieces: &[usize]) -> (Vec<Incoming>, Option<Violation>) {
        let (mut intake, mut out) = (Intake::default(), Vec::new());
        let mut pieces = pieces.iter().copied().cycle();
        loop {
            loop {
                match intake.next() {
                    Ok(Some(incoming)) => out.push(incoming),
                    Ok(None) => break,
                    Err(violation) => return (out, Some(violation)),
                }
            }
            if bytes.is_empty() || intake.ended {
                return (out, None);
            }
            let space = intake.space();
            assert!(!space.is_empty());
            let piece = pieces.next().unwrap_or(1).min(space.len()).min(bytes.len());
            space[..piece].copy_from_slice(&bytes[..piece]);
            intake.filled(piece);
            bytes = &bytes[piece..];
        }
    }

    /// Requests that a client may send: the number, the cookie, the data's length.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let data = prop_oneof![3 => 0..5_000_usize, 1 => 60_000..140_000_usize];
        let one = (0..9_u16, any::<u64>(), data);
        prop::collection::vec(one, 0..8).prop_map(|all| {
            let made = all.iter().map(|&(command, cookie, length)| {
                let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
                bytes_of(command, cookie, length as u32, if command == 1 { &data } else { &[] })
            });
            made.collect::<Vec<_>>().concat()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn cuts_make_no_difference(bytes in stream(), pieces in prop::collection::vec(1..100_000_usize, 1..8)) {
            let whole = fed(&bytes, &[usize::MAX]);
            prop_assert_eq!(whole.1, None);
            let mut place = 0;
            for Incoming { place: said, payload, .. } in &whole.0 {
                prop_assert_eq!(*said, place);
                place += (HEADER + payload.len()) as u64;
            }
            for incoming in &whole.0 {
                let expected = if incoming.request.command == Command::Write { incoming.request.length } else { 0 };
                prop_assert_eq!(incoming.payload.len() as u32, expected);
                prop_assert!(incoming.payload.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            }
            prop_assert_eq!(fed(&bytes, &pieces), whole);
        }

        #[test]
        fn any_bytes_are_requests_or_a_violation(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            kept in stream(),
            pieces in prop::collection::vec(1..50_usize, 1..4),
        ) {
            let bytes = [&kept[..kept.len().min(2_000)], &bytes[..]].concat();
            prop_assert_eq!(fed(&bytes, &pieces), fed(&bytes, &[usize::MAX]));
        }
    }

    #[test]
    fn a_length_is_not_believed() {
        let (none, violation) = fed(&bytes_of(1, 5, u32::MAX, &[]), &[7]);
        assert_eq!((none, violation), (vec![], Some(Violation::TooLong(u32::MAX))));
    }

    #[test]
    fn nothing_follows_a_disconnect() {
        let bytes = [bytes_of(2, 1, 0, &[]), bytes_of(0, 2, 512, &[])].concat();
        let (requests, violation) = fed(&bytes, &[usize::MAX]);
        assert_eq!((requests.len(), requests[0].request.command, violation), (1, Command::Disconnect, None));
    }
}
