//! The host's end of the stream, for one connection to the port.

use crate::frame::{Decoder, Frame, Kind, encode};
use crate::guest_time::GuestTime;

/// A record of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number to acknowledge, when it and all before it are safe: see [`Receiver::acknowledge`].
    pub number: u64,
    /// Record.
    pub bytes: Vec<u8>,
}

/// Answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// Number of the ping.
    pub number: u64,
    /// Clock of the guest between the ping and now.
    pub guest: GuestTime,
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Records that were given out.
    pub records: u64,
    /// Records that the guest sent twice for one request, which were not given out again.
    pub repeated: u64,
    /// Records that the guest skipped, by their numbers.
    pub missing: u64,
    /// Bytes that were in no frame.
    pub skipped_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The answer to the resume request. Records before it belong to another request.
    Answer,
    /// The first record after it.
    First,
    /// The record with this number.
    Record(u64),
}

/// Receiver of one connection. A new connection gets a new one.
#[derive(Debug)]
pub struct Receiver {
    decoder: Decoder,
    /// Number of the last resume request.
    request: u64,
    /// Next frame that is due.
    expected: Expected,
    output: Vec<u8>,
    /// Last answer to a ping that was not taken.
    pong: Option<Pong>,
    stats: ReceiverStats,
}

impl Receiver {
    /// Creates the receiver of a new connection, which asks the guest to resume. No earlier connection to
    /// the port may have used a number near `request`: a random one serves.
    pub fn new(request: u64) -> Receiver {
        let (decoder, stats) = (Decoder::default(), ReceiverStats::default());
        let expected = Expected::Answer;
        let mut receiver = Receiver { decoder, request, expected, output: Vec::new(), pong: None, stats };
        receiver.resume();
        receiver
    }

    /// Takes bytes of the guest, and passes on the records in them.
    pub fn receive(&mut self, bytes: &[u8], mut out: impl FnMut(Received)) {
        self.decoder.add(bytes);
        while let Some(Frame { kind, number, payload }) = self.decoder.next_frame() {
            let expected = match (kind, self.expected) {
                (Kind::Pong, _) => {
                    self.pong = GuestTime::decode(payload).map(|guest| Pong { number, guest });
                    continue;
                }
                (Kind::Resumed, Expected::Answer) if number == self.request => {
                    self.expected = Expected::First;
                    continue;
                }
                (Kind::Record, Expected::First) => number,
                (Kind::Record, Expected::Record(expected)) => expected,
                // The guest sends it again after its answer.
                _ => continue,
            };
            if number < expected {
                self.stats.repeated += 1;
                continue;
            }
            self.stats.missing = self.stats.missing.saturating_add(number - expected);
            self.stats.records += 1;
            // No record follows the last number, before another request.
            self.expected = number.checked_add(1).map_or(Expected::Answer, Expected::Record);
            out(Received { number, bytes: payload.to_vec() });
        }
        self.stats.skipped_bytes = self.decoder.skipped();
    }

    /// Acknowledges the record with this number and all before it.
    pub fn acknowledge(&mut self, number: u64) {
        let number = number.saturating_add(1);
        encode(Frame { kind: Kind::Acknowledged, number, payload: &[] }, &mut self.output);
    }

    /// Asks the guest to send every record again that is not acknowledged. Also for a guest that has been
    /// silent: it may have missed the last request, or have a new agent.
    pub fn resume(&mut self) {
        self.request = self.request.wrapping_add(1);
        self.expected = Expected::Answer;
        encode(Frame { kind: Kind::Resume, number: self.request, payload: &[] }, &mut self.output);
    }

    /// Asks for the guest's time.
    pub fn ping(&mut self, number: u64) {
        encode(Frame { kind: Kind::Ping, number, payload: &[] }, &mut self.output);
    }

    /// Takes the last answer to a ping.
    pub fn take_pong(&mut self) -> Option<Pong> {
        self.pong.take()
    }

    /// Takes the bytes for the guest.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the counters.
    pub fn stats(&self) -> ReceiverStats {
        self.stats
    }
}
