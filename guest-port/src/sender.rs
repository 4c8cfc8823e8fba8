//! The guest's end of the stream.

use std::collections::VecDeque;

use crate::frame::{Decoder, Frame, Kind, PAYLOAD_MAX, encode};
use crate::guest_time::GuestTime;

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Events of the records that the host has acknowledged.
    pub acknowledged: u64,
    /// Events of the records that wait for it.
    pub waiting: u64,
    /// Records that were sent again because the host's end had been away.
    pub repeated: u64,
    /// Times that the host's end asked to resume.
    pub resumed: u64,
}

/// Record that the host has not acknowledged.
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    events: u64,
}

/// Maximum number of resume requests of one process that may be lost between two that arrive.
const REQUESTS_MAX: u64 = 1 << 32;

/// Records in order, until the host acknowledges them.
#[derive(Debug)]
pub struct Sender {
    bytes_max: usize,
    /// Oldest first. The oldest has the number `first`.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    first: u64,
    /// Number of the next record to send; none while the host's end is away.
    next: Option<u64>,
    /// Number after the last one that was ever sent.
    sent: u64,
    /// Resume request that has no answer yet.
    request: Option<u64>,
    /// Number of the last resume request.
    last_request: Option<u64>,
    /// True if a process of the host asked for the first time, after another one had acknowledged records.
    has_new_host: bool,
    /// Ping that has no answer yet, and the answer to one.
    ping: Option<u64>,
    pong: Option<(u64, GuestTime)>,
    /// Frame that is being written.
    output: Vec<u8>,
    /// Bytes of it that were written.
    written: usize,
    decoder: Decoder,
    stats: SenderStats,
}

impl Sender {
    /// Creates a sender that holds records of up to `bytes_max` bytes in total, or one longer one.
    pub fn new(bytes_max: usize) -> Sender {
        Sender {
            bytes_max,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            first: 0,
            next: None,
            sent: 0,
            request: None,
            last_request: None,
            has_new_host: false,
            ping: None,
            pong: None,
            output: Vec::new(),
            written: 0,
            decoder: Decoder::default(),
            stats: SenderStats::default(),
        }
    }

    /// Adds a record with this number of events. Returns false if there is no room now; a record of more
    /// than [`PAYLOAD_MAX`] bytes never has room.
    pub fn add(&mut self, bytes: &[u8], events: u64) -> bool {
        let fits = self.waiting.is_empty() || self.waiting_bytes + bytes.len() <= self.bytes_max;
        if !fits || bytes.len() > PAYLOAD_MAX {
            return false;
        }
        self.waiting_bytes += bytes.len();
        self.stats.waiting += events;
        self.waiting.push_back(Waiting { bytes: bytes.to_vec(), events });
        true
    }

    /// Returns bytes to write to the port; none if there is nothing to send now.
    pub fn output(&mut self) -> &[u8] {
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
            self.begin_next();
        }
        &self.output[self.written..]
    }

    /// Counts bytes of [`Sender::output`] that were written.
    pub fn wrote(&mut self, bytes: usize) {
        self.written = (self.written + bytes).min(self.output.len());
    }

    /// Takes bytes that were read from the port.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.decoder.add(bytes);
        while let Some(Frame { kind, number, .. }) = self.decoder.next_frame() {
            match kind {
                // A frame that is being written is completed: the host may have its beginning.
                Kind::Resume => {
                    // A process counts its requests up from a random number.
                    let is_same = |last: u64| number.wrapping_sub(last) <= REQUESTS_MAX;
                    self.has_new_host |= self.first > 0 && !self.last_request.is_some_and(is_same);
                    self.last_request = Some(number);
                    (self.next, self.request) = (Some(self.first), Some(number));
                    self.stats.resumed += 1;
                }
                Kind::Acknowledged => {
                    while self.first < number.min(self.sent) {
                        self.drop_first();
                    }
                }
                Kind::Ping => self.ping = Some(number),
                Kind::Record | Kind::Resumed | Kind::Pong => {}
            }
        }
    }

    /// Returns whether another process of the host than before asked for the records, once. Records that the former one had
    /// acknowledged are not sent to it.
    pub fn take_new_host(&mut self) -> bool {
        std::mem::take(&mut self.has_new_host)
    }

    /// Returns whether the host asks for the time.
    pub fn has_ping(&self) -> bool {
        self.ping.is_some()
    }

    /// Answers the host's last ping with a time that was read after [`Sender::has_ping`] returned true.
    pub fn answer_ping(&mut self, now: GuestTime) {
        self.pong = self.ping.take().map(|number| (number, now));
    }

    /// Forgets the host's end, which is away. It has to ask to resume.
    pub fn host_left(&mut self) {
        (self.next, self.request, self.ping, self.pong) = (None, None, None, None);
        self.output.clear();
        self.written = 0;
        self.decoder = Decoder::default();
    }

    /// Returns whether the host's end is there.
    pub fn has_host(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the counters.
    pub fn stats(&self) -> SenderStats {
        self.stats
    }

    fn begin_next(&mut self) {
        if let Some(number) = self.request.take() {
            return encode(Frame { kind: Kind::Resumed, number, payload: &[] }, &mut self.output);
        }
        if let Some((number, time)) = self.pong.take() {
            return encode(Frame { kind: Kind::Pong, number, payload: &time.encode() }, &mut self.output);
        }
        let Some(next) = self.next else { return };
        // A record that was acknowledged meanwhile is not sent.
        let number = next.max(self.first);
        let Some(record) = self.waiting.get((number - self.first) as usize) else { return };
        encode(Frame { kind: Kind::Record, number, payload: &record.bytes }, &mut self.output);
        self.next = Some(number + 1);
        if number < self.sent {
            self.stats.repeated += 1;
        }
        self.sent = self.sent.max(number + 1);
    }

    fn drop_first(&mut self) {
        // `first` is below `sent`, so there is one.
        if let Some(record) = self.waiting.pop_front() {
            self.waiting_bytes -= record.bytes.len();
            self.stats.waiting -= record.events;
            self.stats.acknowledged += record.events;
        }
        self.first += 1;
    }
}
