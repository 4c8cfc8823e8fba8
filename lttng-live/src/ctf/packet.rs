//! Decoder of packets and events.
//!
//! *In*: a packet's bytes and the trace's plans. *Out*: one reused [`Event`] at a time.
//!
//! A [`Decoder`] belongs to one stream. It extends the clock from packet to packet, because events
//! contain only the clock's lowest bits. It also counts the stream's losses. An event's fields are
//! in lists that the next event overwrites, and texts stay in the packet. Decoding therefore
//! allocates nothing once the lists have grown.
//!
//! *Invariant*: if a clock's lowest bits decrease, they have wrapped once. If they may have wrapped
//! more often, LTTng writes the whole time into the event (`extended` in its header).

use super::cursor::{Cursor, ReadError};
use super::metadata::{CtfTrace, EventClass, StreamClass};
use super::plan::{Item, Value};
use header::{read_context, read_header};
use plan_runner::PlanRunner;

mod header;
mod plan_runner;

/// Maximum size of a packet in bytes. LTTng's packets are as large as its sub-buffers.
pub const PACKET_MAX: u64 = 256 << 20;
/// Maximum number of items, or steps without items, per scope. It bounds the cost of corrupt
/// lengths (24 bytes each).
const ITEMS_MAX: usize = 1 << 20;

/// Reason why a packet cannot be decoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PacketError {
    /// The packet does not match the metadata.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The data is not a CTF packet.
    #[error("invalid packet: magic number {0:#010x}")]
    Magic(u64),
    /// The packet belongs to another trace.
    #[error("invalid packet: UUID of another trace")]
    Uuid,
    /// The packet's class of streams is not declared yet.
    #[error("invalid packet: stream {0:?} is not declared in the metadata")]
    UnknownStream(Option<u64>),
    /// The event's class is not declared yet.
    #[error("event {id} of stream {stream} is not declared in the metadata")]
    UnknownEvent {
        /// Class of streams.
        stream: u64,
        /// Event's id.
        id: u64,
    },
    /// The sizes contradict each other or the number of bytes.
    #[error("invalid packet: {content} bits of content in {packet} bits")]
    Sizes {
        /// Size of the packet in bits.
        packet: u64,
        /// Size of the content in bits.
        content: u64,
    },
    /// No option matches the value of a variant's tag.
    #[error("a variant has no option for the tag {0}")]
    NoOption(i128),
    /// An event without bits, which would repeat without end.
    #[error("an event has no bits")]
    Empty,
    /// More than ITEMS_MAX fields.
    #[error("an event has more than {ITEMS_MAX} fields")]
    TooMany,
    /// The trace has no metadata yet.
    #[error("a packet arrived before the trace's metadata")]
    NoMetadata,
}

/// Header and context of a packet.
#[derive(Clone, Default, Debug)]
pub struct PacketHeader {
    /// Index in [`CtfTrace::streams`].
    pub stream: usize,
    /// Number of the stream within its class, if packets contain it.
    pub instance: Option<u64>,
    /// Size of the packet in bits; `None` for all available bits.
    pub packet_bits: Option<u64>,
    /// Size of the content in bits; `None` for the whole packet.
    pub content_bits: Option<u64>,
    /// Time of the packet's begin.
    pub begin: Option<u64>,
    /// Time of the packet's end.
    pub end: Option<u64>,
    /// Events lost since the stream's begin, and the counter's width in bits.
    pub discarded: Option<(u64, u32)>,
    /// Number of the packet in its stream, and the counter's width in bits.
    pub sequence: Option<(u64, u32)>,
    /// CPU that wrote the packet.
    pub cpu: Option<u64>,
    /// Fields of the packet context.
    pub context: Items,
}

/// Fields of one scope of an event.
#[derive(Clone, Default, Debug)]
pub struct Items {
    /// Items; the parts of a field follow it.
    pub list: Vec<Item>,
    /// Indexes of the top-level fields in the list.
    pub top: Vec<u32>,
}

impl Items {
    fn clear(&mut self) {
        self.list.clear();
        self.top.clear();
    }

    /// Returns the value of a top-level field.
    #[inline]
    pub fn at(&self, index: usize) -> Option<Value> {
        self.list.get(*self.top.get(index)? as usize).map(|item| item.value)
    }

    /// Returns the elements of a top-level array or sequence of scalars.
    pub fn elements(&self, index: usize) -> impl Iterator<Item = Value> {
        let begin = self.top.get(index).map_or(self.list.len(), |begin| *begin as usize);
        let (first, rest) =
            self.list[begin..].split_first().map_or((None, &[][..]), |(first, rest)| (Some(first), rest));
        let count = match first {
            Some(Item { value: Value::Begin(count), .. }) => *count as usize,
            _ => 0,
        };
        rest[..count.min(rest.len())].iter().map(|item| item.value)
    }
}

/// Last decoded event.
#[derive(Clone, Default, Debug)]
pub struct Event {
    /// Time in ticks of the stream's clock; 0 without a clock.
    pub time: u64,
    /// Index in [`CtfTrace::streams`].
    pub stream: usize,
    /// Index in [`StreamClass::events`].
    pub class: u32,
    /// Context that all events of the stream have.
    pub stream_context: Items,
    /// Context of this class of events.
    pub context: Items,
    /// Fields of the event.
    pub payload: Items,
}

impl Event {
    /// Returns the event's class in its trace.
    pub fn class<'t>(&self, trace: &'t CtfTrace) -> Option<&'t EventClass> {
        trace.streams.get(self.stream)?.events.get(self.class as usize)
    }
}

/// Position of the next event in a packet.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PacketPosition {
    stream: usize,
    at: u64,
    end: u64,
}

/// Losses of a stream, as its packets report them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Events that the tracer discarded because its buffers were full.
    pub events: u64,
    /// Packets that were written and not received.
    pub packets: u64,
}

impl Losses {
    /// Adds two counts. A sum saturates, because a corrupt stream can report any count.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            events: self.events.saturating_add(more.events),
            packets: self.packets.saturating_add(more.packets),
        }
    }
}

/// Value that the first packet's counters are compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterBaseline {
    /// Zero, for a stream that is read from its begin.
    Zero,
    /// The first packet's own values, because earlier losses do not count if reading starts later.
    FirstPacket,
}

/// State of a stream between packets.
#[derive(Clone, Debug)]
pub struct Decoder {
    baseline: CounterBaseline,
    clock: u64,
    event_id: u64,
    registers: Vec<u64>,
    discarded: Option<u64>,
    sequence: Option<u64>,
    /// Losses so far.
    pub losses: Losses,
}

impl Decoder {
    /// Creates a decoder for a stream's first packet.
    pub fn new(baseline: CounterBaseline) -> Self {
        let (registers, losses) = (Vec::new(), Losses::default());
        Self { baseline, clock: 0, event_id: 0, registers, discarded: None, sequence: None, losses }
    }

    /// Reads the header and context of the packet at the begin of `bytes`. Counts no losses, so the
    /// call can be repeated with more bytes.
    pub fn header(
        &mut self,
        trace: &CtfTrace,
        bytes: &[u8],
    ) -> Result<(PacketHeader, PacketPosition), PacketError> {
        let order = trace.order.ok_or(PacketError::NoMetadata)?;
        let (mut header, mut stream_id) = (PacketHeader::default(), None);
        let mut run = self.run(Cursor::new(bytes, 0, u64::MAX, order));
        let mut items = Items::default();
        if let Some(plan) = &trace.packet_header {
            run.plan(plan, &mut items)?;
            stream_id = read_header(plan, &items, trace, &mut header)?;
        }
        let stream = trace.stream_index(stream_id).ok_or(PacketError::UnknownStream(stream_id))?;
        header.stream = stream;
        if let Some(plan) = &trace.streams[stream].packet_context {
            run.plan(plan, &mut items)?;
            read_context(plan, &items, &mut header);
            header.context = items;
        }
        let at = run.cursor.at;
        let all = header.packet_bits.unwrap_or(bytes.len() as u64 * 8);
        let end = header.content_bits.unwrap_or(all);
        if end > all || at > end || all > PACKET_MAX * 8 {
            return Err(PacketError::Sizes { packet: all, content: end });
        }
        Ok((header, PacketPosition { stream, at, end }))
    }

    /// Reads the header and context like [`Self::header`], and adds the reported losses to
    /// [`Self::losses`].
    pub fn open(
        &mut self,
        trace: &CtfTrace,
        bytes: &[u8],
    ) -> Result<(PacketHeader, PacketPosition), PacketError> {
        let (header, position) = self.header(trace, bytes)?;
        if position.end > bytes.len() as u64 * 8 {
            return Err(ReadError::Truncated(bytes.len() as u64 * 8).into());
        }
        if let Some((discarded, bits)) = header.discarded {
            let before =
                self.discarded.unwrap_or(if self.baseline == CounterBaseline::Zero { 0 } else { discarded });
            let (more, highest) = counter_advance(before, discarded, bits);
            self.losses = self.losses.plus(Losses { events: more, packets: 0 });
            self.discarded = Some(highest);
        }
        if let Some((sequence, bits)) = header.sequence {
            let first = if self.baseline == CounterBaseline::Zero { 0 } else { sequence };
            let expected = self.sequence.map_or(first, |last| last.wrapping_add(1) & mask(bits));
            self.losses =
                self.losses.plus(Losses { events: 0, packets: counter_distance(expected, sequence, bits) });
            self.sequence = Some(sequence);
        }
        Ok((header, position))
    }

    /// Decodes the next event at `position` into `event`; returns false at the packet's end.
    pub fn next(
        &mut self,
        trace: &CtfTrace,
        bytes: &[u8],
        position: &mut PacketPosition,
        event: &mut Event,
    ) -> Result<bool, PacketError> {
        if position.at >= position.end {
            return Ok(false);
        }
        let order = trace.order.ok_or(PacketError::NoMetadata)?;
        let stream: &StreamClass =
            trace.streams.get(position.stream).ok_or(PacketError::UnknownStream(None))?;
        self.event_id = 0;
        let mut run = self.run(Cursor::new(bytes, position.at, position.end, order));
        if let Some(plan) = &stream.event_header {
            run.plan_without_items(plan)?;
        }
        let id = run.decoder.event_id;
        let class = stream.event(id).ok_or(PacketError::UnknownEvent { stream: stream.id, id })?;
        for (plan, items) in [
            (&stream.event_context, &mut event.stream_context),
            (&class.context, &mut event.context),
            (&class.payload, &mut event.payload),
        ] {
            match plan {
                Some(plan) => run.plan(plan, items)?,
                None => items.clear(),
            }
        }
        let at = run.cursor.at;
        if at == position.at {
            return Err(PacketError::Empty);
        }
        position.at = at;
        event.time = self.clock;
        event.stream = position.stream;
        event.class = class.index;
        Ok(true)
    }

    fn run<'d, 'p>(&'d mut self, cursor: Cursor<'p>) -> PlanRunner<'d, 'p> {
        PlanRunner { decoder: self, cursor, steps: 0 }
    }
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits.clamp(1, 64))
}

/// Returns the difference of two states of a counter that may have wrapped once. A small decrease
/// is a repeated state, without a loss.
fn counter_distance(before: u64, after: u64, bits: u32) -> u64 {
    let forward = after.wrapping_sub(before) & mask(bits);
    if forward > mask(bits) / 2 { 0 } else { forward }
}

/// Returns the increase of a packet counter, and its highest state so far. Threads that end packets
/// at the same time may write their states in reverse order; an increase is counted once.
fn counter_advance(highest: u64, now: u64, bits: u32) -> (u64, u64) {
    match counter_distance(highest, now, bits) {
        0 => (0, highest),
        more => (more, now),
    }
}

#[cfg(test)]
mod tests {
    use super::{Losses, counter_advance};

    fn events_counted(first: u64, states: &[u64], bits: u32) -> u64 {
        let step = |(sum, highest), &now| {
            let (more, highest) = counter_advance(highest, now, bits);
            (sum + more, highest)
        };
        states.iter().fold((0, first), step).0
    }

    #[test]
    fn discarded_events_are_counted_once_in_any_packet_order() {
        assert_eq!(events_counted(0, &[100, 98, 105, 105], 64), 105);
        assert_eq!(events_counted(250, &[4, 2, 10], 8), 16);
        assert_eq!(events_counted(7, &[7, 6, 7], 32), 0);
    }

    #[test]
    fn sum_of_losses_saturates() {
        let most = Losses { events: u64::MAX / 2 + 1, packets: u64::MAX / 2 + 1 };
        assert_eq!(most.plus(most), Losses { events: u64::MAX, packets: u64::MAX });
    }
}
