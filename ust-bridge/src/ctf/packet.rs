//! Packets and their events: bytes in, one reused [`Event`] at a time out.
//!
//! A [`Decoder`] belongs to one stream: it carries the clock from packet to packet (events have only its lowest bits) and
//! counts what the stream lost. The fields of an event lie in lists that the next event overwrites; texts stay in the
//! packet and are only pointed at. So an event costs no allocation once the lists have grown.
//!
//! A clock's lowest bits that went back have wrapped once: where more may have passed, LTTng writes the whole time into
//! the event (its header's `extended`).

use super::cursor::{Cursor, ReadError};
use super::metadata::{EventClass, StreamClass, Trace};
use super::plan::{Item, Value};
use head::{context, header};
use run::Run;

mod head;
mod run;

/// The largest packet that is read: LTTng's are as large as its sub-buffers.
pub const PACKET_MAX: u64 = 256 << 20;
/// Items of one scope of one event, and steps without any: what corrupt lengths can cost (24 bytes each).
const ITEMS_MAX: usize = 1 << 20;

/// Why a packet cannot be read on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PacketError {
    /// Its bytes do not hold what the metadata says.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is of another format, or its begin is not where it should be.
    #[error("a packet begins with {0:#010x}, not with CTF's magic number")]
    Magic(u64),
    /// It belongs to another trace.
    #[error("a packet has another trace's uuid")]
    Uuid,
    /// The metadata, as far as it has come, does not know its stream.
    #[error("a packet is of stream {0:?}, which the metadata does not declare")]
    UnknownStream(Option<u64>),
    /// The metadata, as far as it has come, does not know this event.
    #[error("event {id} of stream {stream} is not declared in the metadata")]
    UnknownEvent {
        /// The stream's class.
        stream: u64,
        /// As the event says.
        id: u64,
    },
    /// Sizes that contradict each other or the bytes.
    #[error("a packet of {packet} bits says that it has {content} bits of content")]
    Sizes {
        /// Its size.
        packet: u64,
        /// What is in it.
        content: u64,
    },
    /// A variant's tag has a value that no option is for.
    #[error("no option of a variant is for the value {0}")]
    NoOption(i128),
    /// An event takes no space: there would be endlessly many.
    #[error("an event of no bits")]
    Empty,
    /// More than ITEMS_MAX fields.
    #[error("an event has more than {ITEMS_MAX} fields")]
    TooMany,
    /// The trace's metadata has not come yet.
    #[error("a packet before the trace's metadata")]
    NoMetadata,
}

/// What a packet says of itself.
#[derive(Clone, Default, Debug)]
pub struct PacketHead {
    /// Which of [`Trace::streams`].
    pub stream: usize,
    /// Which of the streams of that class, where packets say it.
    pub instance: Option<u64>,
    /// In bits; none: all that there is.
    pub packet_bits: Option<u64>,
    /// In bits; none: all of the packet.
    pub content_bits: Option<u64>,
    /// When its writing began.
    pub begin: Option<u64>,
    /// When it was closed.
    pub end: Option<u64>,
    /// How many events the stream has lost since it began, and how many bits that counter has.
    pub discarded: Option<(u64, u32)>,
    /// Which of its stream's packets it is, and how many bits that counter has.
    pub sequence: Option<(u64, u32)>,
    /// The processor that wrote it.
    pub cpu: Option<u64>,
    /// All of its context, as it stands in the packet.
    pub context: Items,
}

/// Fields of one scope of an event.
#[derive(Clone, Default, Debug)]
pub struct Items {
    /// All of them, parts after their whole.
    pub list: Vec<Item>,
    /// Where in the list the fields at the top begin.
    pub top: Vec<u32>,
}

impl Items {
    fn clear(&mut self) {
        self.list.clear();
        self.top.clear();
    }

    /// The value of the field that is `index`th at the top.
    #[inline]
    pub fn at(&self, index: usize) -> Option<Value> {
        self.list.get(*self.top.get(index)? as usize).map(|item| item.value)
    }

    /// The elements of the array or sequence that is `index`th at the top, as far as they have no parts.
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

/// The event that was decoded last.
#[derive(Clone, Default, Debug)]
pub struct Event {
    /// In ticks of the stream's clock; 0 if it has none.
    pub time: u64,
    /// Which of [`Trace::streams`].
    pub stream: usize,
    /// Which of [`StreamClass::events`].
    pub class: u32,
    /// The context that all events of the stream have.
    pub stream_context: Items,
    /// The context of this class of events.
    pub context: Items,
    /// Its fields.
    pub payload: Items,
}

impl Event {
    /// Its class, in the trace that it was decoded with.
    pub fn class<'t>(&self, trace: &'t Trace) -> Option<&'t EventClass> {
        trace.streams.get(self.stream)?.events.get(self.class as usize)
    }
}

/// Where in a packet the next event begins.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Place {
    stream: usize,
    at: u64,
    end: u64,
}

/// What one stream has lost, as its own packets tell.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Events for which the tracer found no room.
    pub events: u64,
    /// Packets that were written and never came.
    pub packets: u64,
}

impl Losses {
    /// Both together. What no counter of 64 bits holds is that much: a stream may say anything.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            events: self.events.saturating_add(more.events),
            packets: self.packets.saturating_add(more.packets),
        }
    }
}

/// What the first packet's counters are compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// With nothing lost: the stream is read from its begin.
    Begin,
    /// With themselves: reading began in the middle, and what was lost before is not ours to tell.
    Attached,
}

/// The state of one stream between its packets.
#[derive(Clone, Debug)]
pub struct Decoder {
    since: Since,
    clock: u64,
    event_id: u64,
    registers: Vec<u64>,
    discarded: Option<u64>,
    sequence: Option<u64>,
    /// What was lost so far.
    pub losses: Losses,
}

impl Decoder {
    /// For a stream from its first packet on.
    pub fn new(since: Since) -> Self {
        let (registers, losses) = (Vec::new(), Losses::default());
        Self { since, clock: 0, event_id: 0, registers, discarded: None, sequence: None, losses }
    }

    /// Reads the head of the packet that `bytes` begins with; counts nothing, so that it may be repeated with more bytes.
    pub fn head(&mut self, trace: &Trace, bytes: &[u8]) -> Result<(PacketHead, Place), PacketError> {
        let order = trace.order.ok_or(PacketError::NoMetadata)?;
        let (mut head, mut stream_id) = (PacketHead::default(), None);
        let mut run = self.run(Cursor::new(bytes, 0, u64::MAX, order));
        let mut items = Items::default();
        if let Some(plan) = &trace.packet_header {
            run.plan(plan, &mut items)?;
            stream_id = header(plan, &items, trace, &mut head)?;
        }
        let stream = trace.stream_index(stream_id).ok_or(PacketError::UnknownStream(stream_id))?;
        head.stream = stream;
        if let Some(plan) = &trace.streams[stream].packet_context {
            run.plan(plan, &mut items)?;
            context(plan, &items, &mut head);
            head.context = items;
        }
        let at = run.cursor.at;
        let all = head.packet_bits.unwrap_or(bytes.len() as u64 * 8);
        let end = head.content_bits.unwrap_or(all);
        if end > all || at > end || all > PACKET_MAX * 8 {
            return Err(PacketError::Sizes { packet: all, content: end });
        }
        Ok((head, Place { stream, at, end }))
    }

    /// The same, and what its counters say was lost before it is added to [`Self::losses`].
    pub fn open(&mut self, trace: &Trace, bytes: &[u8]) -> Result<(PacketHead, Place), PacketError> {
        let (head, place) = self.head(trace, bytes)?;
        if place.end > bytes.len() as u64 * 8 {
            return Err(ReadError::Truncated(bytes.len() as u64 * 8).into());
        }
        if let Some((discarded, bits)) = head.discarded {
            let before = self.discarded.unwrap_or(if self.since == Since::Begin { 0 } else { discarded });
            let (more, furthest) = advance(before, discarded, bits);
            self.losses = self.losses.and(Losses { events: more, packets: 0 });
            self.discarded = Some(furthest);
        }
        if let Some((sequence, bits)) = head.sequence {
            let first = if self.since == Since::Begin { 0 } else { sequence };
            let due = self.sequence.map_or(first, |last| last.wrapping_add(1) & mask(bits));
            self.losses = self.losses.and(Losses { events: 0, packets: distance(due, sequence, bits) });
            self.sequence = Some(sequence);
        }
        Ok((head, place))
    }

    /// Decodes the next event at `place` into `event`; false at the packet's end.
    pub fn next(
        &mut self,
        trace: &Trace,
        bytes: &[u8],
        place: &mut Place,
        event: &mut Event,
    ) -> Result<bool, PacketError> {
        if place.at >= place.end {
            return Ok(false);
        }
        let order = trace.order.ok_or(PacketError::NoMetadata)?;
        let stream: &StreamClass = trace.streams.get(place.stream).ok_or(PacketError::UnknownStream(None))?;
        self.event_id = 0;
        let mut run = self.run(Cursor::new(bytes, place.at, place.end, order));
        if let Some(plan) = &stream.event_header {
            run.silent(plan)?;
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
        if at == place.at {
            return Err(PacketError::Empty);
        }
        place.at = at;
        event.time = self.clock;
        event.stream = place.stream;
        event.class = class.index;
        Ok(true)
    }

    fn run<'d, 'p>(&'d mut self, cursor: Cursor<'p>) -> Run<'d, 'p> {
        Run { decoder: self, cursor, steps: 0 }
    }
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits.clamp(1, 64))
}

/// From one state of a counter to a later one that may have wrapped once. A counter that went back by a little was
/// repeated: nothing was lost then.
fn distance(before: u64, after: u64, bits: u32) -> u64 {
    let forward = after.wrapping_sub(before) & mask(bits);
    if forward > mask(bits) / 2 { 0 } else { forward }
}

/// By how much a counter that packets carry went on, and the furthest that it was. Threads that end packets at the same time may
/// write its states in the other order: what was counted is not counted again when it comes back from there.
fn advance(furthest: u64, now: u64, bits: u32) -> (u64, u64) {
    match distance(furthest, now, bits) {
        0 => (0, furthest),
        more => (more, now),
    }
}

#[cfg(test)]
mod tests {
    use super::{Losses, advance};

    fn counted(first: u64, states: &[u64], bits: u32) -> u64 {
        let step = |(sum, furthest), &now| {
            let (more, furthest) = advance(furthest, now, bits);
            (sum + more, furthest)
        };
        states.iter().fold((0, first), step).0
    }

    #[test]
    fn what_was_discarded_is_counted_once_in_whatever_order_packets_say_it() {
        assert_eq!(counted(0, &[100, 98, 105, 105], 64), 105);
        assert_eq!(counted(250, &[4, 2, 10], 8), 16);
        assert_eq!(counted(7, &[7, 6, 7], 32), 0);
    }

    #[test]
    fn a_stream_that_says_it_lost_more_than_there_can_be_lost_that_much() {
        let most = Losses { events: u64::MAX / 2 + 1, packets: u64::MAX / 2 + 1 };
        assert_eq!(most.and(most), Losses { events: u64::MAX, packets: u64::MAX });
    }
}
