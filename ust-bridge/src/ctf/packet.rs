//! Packets and their events: bytes in, one reused [`Event`] at a time out.
//!
//! A [`Decoder`] belongs to one stream: it carries the clock from packet to packet (events have only its lowest bits) and
//! counts what the stream lost. The fields of an event lie in lists that the next event overwrites; texts stay in the
//! packet and are only pointed at. So an event costs no allocation once the lists have grown.
//!
//! A clock's lowest bits that went back have wrapped once: where more may have passed, LTTng writes the whole time into
//! the event (its header's `extended`).

use super::cursor::{Cursor, ReadError, sign};
use super::metadata::{EventClass, StreamClass, Trace};
use super::plan::{IntNode, Item, Node, Plan, Role, Value};
use super::types::Order;

/// The largest packet that is read: LTTng's are as large as its sub-buffers.
pub const PACKET_MAX: u64 = 256 << 20;
/// Items of one scope of one event, and steps without any: what corrupt lengths can cost (24 bytes each).
const ITEMS_MAX: usize = 1 << 20;

const MAGIC: u64 = 0xc1fc_1fc1;

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
            self.losses.events += distance(before, discarded, bits);
            self.discarded = Some(discarded);
        }
        if let Some((sequence, bits)) = head.sequence {
            let first = if self.since == Since::Begin { 0 } else { sequence };
            let due = self.sequence.map_or(first, |last| last.wrapping_add(1) & mask(bits));
            self.losses.packets += distance(due, sequence, bits);
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

/// The number at the top called `name`, with its bits.
fn number(plan: &Plan, items: &Items, name: &str) -> Option<(u64, u32)> {
    use super::plan::What;
    let (index, info) = plan.field(name)?;
    let (What::Int { bits, .. } | What::Enum { bits, .. }) = info.what else { return None };
    match items.at(index)? {
        Value::Unsigned(number) => Some((number, bits)),
        Value::Signed(number) => Some((number as u64, bits)),
        _ => None,
    }
}

/// Checks whose packet it is; says of which class of streams.
fn header(
    plan: &Plan,
    items: &Items,
    trace: &Trace,
    head: &mut PacketHead,
) -> Result<Option<u64>, PacketError> {
    if let Some((magic, _)) = number(plan, items, "magic")
        && magic != MAGIC
    {
        return Err(PacketError::Magic(magic));
    }
    if let (Some(ours), Some((index, _))) = (trace.uuid, plan.field("uuid")) {
        let from = items.top[index] as usize + 1;
        let theirs = items.list[from..].iter().take(16).map(|item| item.value);
        if !theirs.eq(ours.iter().map(|byte| Value::Unsigned(u64::from(*byte)))) {
            return Err(PacketError::Uuid);
        }
    }
    head.instance = number(plan, items, "stream_instance_id").map(|(id, _)| id);
    Ok(number(plan, items, "stream_id").map(|(id, _)| id))
}

fn context(plan: &Plan, items: &Items, head: &mut PacketHead) {
    let find = |name| number(plan, items, name);
    let value = |name| find(name).map(|(value, _)| value);
    head.packet_bits = value("packet_size");
    head.content_bits = value("content_size");
    head.begin = value("timestamp_begin");
    head.end = value("timestamp_end");
    head.discarded = find("events_discarded");
    head.sequence = find("packet_seq_num");
    head.cpu = value("cpu_id");
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

/// One pass over a packet's bits.
struct Run<'d, 'p> {
    decoder: &'d mut Decoder,
    cursor: Cursor<'p>,
    steps: usize,
}

impl Run<'_, '_> {
    fn begin(&mut self, plan: &Plan) -> Result<(), PacketError> {
        if self.decoder.registers.len() < plan.registers {
            self.decoder.registers.resize(plan.registers, 0);
        }
        self.steps = 0;
        Ok(self.cursor.align(plan.align)?)
    }

    #[inline]
    fn plan(&mut self, plan: &Plan, items: &mut Items) -> Result<(), PacketError> {
        self.begin(plan)?;
        items.clear();
        for field in &plan.fields {
            items.top.push(items.list.len() as u32);
            self.node::<true>(field, &mut items.list)?;
        }
        Ok(())
    }

    /// A header: what the decoder wants of it goes to the decoder.
    #[inline]
    fn silent(&mut self, plan: &Plan) -> Result<(), PacketError> {
        self.begin(plan)?;
        let mut none = Vec::new();
        plan.fields.iter().try_for_each(|field| self.node::<false>(field, &mut none))
    }

    fn node<const SHOW: bool>(&mut self, node: &Node, out: &mut Vec<Item>) -> Result<(), PacketError> {
        match node {
            Node::Int(int) => {
                let value = self.int(int)?;
                put::<SHOW>(out, int.info, value);
            }
            Node::Text { info } => {
                self.cursor.align(8)?;
                let (at, length) = self.cursor.text()?;
                put::<SHOW>(out, *info, Value::Text { at, length });
            }
            Node::TextArray { info, length } => self.text::<SHOW>(*info, *length, out)?,
            Node::TextSequence { info, register } => {
                let length = self.decoder.registers[usize::from(*register)];
                self.text::<SHOW>(*info, length, out)?;
            }
            Node::Float { info, bits, align, order } => {
                self.cursor.align(*align)?;
                let value = self.float(*bits, *order)?;
                put::<SHOW>(out, *info, Value::Float(value));
            }
            Node::Struct { info, align, fields } => {
                self.cursor.align(*align)?;
                self.step(out.len())?;
                put::<SHOW>(out, *info, Value::Begin(fields.len() as u32));
                for field in fields {
                    self.node::<SHOW>(field, out)?;
                }
                put::<SHOW>(out, *info, Value::End);
            }
            Node::Variant { info, register, signed, ranges, options } => {
                let tag = self.decoder.registers[usize::from(*register)];
                let tag = if *signed { i128::from(tag as i64) } else { i128::from(tag) };
                let chosen = ranges.iter().find(|(low, high, _)| (*low..=*high).contains(&tag));
                let (_, _, option) = chosen.ok_or(PacketError::NoOption(tag))?;
                put::<SHOW>(out, *info, Value::Begin(1));
                self.node::<SHOW>(&options[*option], out)?;
                put::<SHOW>(out, *info, Value::End);
            }
            Node::Array { info, align, length, element } => {
                self.elements::<SHOW>(*info, *align, *length, element, out)?;
            }
            Node::Sequence { info, align, register, element } => {
                let length = self.decoder.registers[usize::from(*register)];
                self.elements::<SHOW>(*info, *align, length, element, out)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn int(&mut self, int: &IntNode) -> Result<Value, PacketError> {
        self.cursor.align(int.align)?;
        let raw = self.cursor.unsigned(int.bits, int.order)?;
        let value = if int.signed {
            let signed = sign(raw, int.bits);
            self.decoder.registers[usize::from(int.register)] = signed as u64;
            Value::Signed(signed)
        } else {
            self.decoder.registers[usize::from(int.register)] = raw;
            Value::Unsigned(raw)
        };
        match int.role {
            Role::None => {}
            Role::EventId => self.decoder.event_id = raw,
            Role::Clock => self.decoder.clock = onward(self.decoder.clock, raw, int.bits),
        }
        Ok(value)
    }

    fn float(&mut self, bits: u32, order: Order) -> Result<f64, PacketError> {
        let raw = self.cursor.unsigned(bits, order)?;
        Ok(if bits == 32 { f64::from(f32::from_bits(raw as u32)) } else { f64::from_bits(raw) })
    }

    fn text<const SHOW: bool>(
        &mut self,
        info: u32,
        length: u64,
        out: &mut Vec<Item>,
    ) -> Result<(), PacketError> {
        self.cursor.align(8)?;
        let (at, length) = self.cursor.text_of(length)?;
        put::<SHOW>(out, info, Value::Text { at, length });
        Ok(())
    }

    fn elements<const SHOW: bool>(
        &mut self,
        info: u32,
        align: u32,
        length: u64,
        element: &Node,
        out: &mut Vec<Item>,
    ) -> Result<(), PacketError> {
        self.cursor.align(align)?;
        let short = u32::try_from(length).map_err(|_| PacketError::TooMany)?;
        put::<SHOW>(out, info, Value::Begin(short));
        for _ in 0..length {
            self.step(out.len())?;
            self.node::<SHOW>(element, out)?;
        }
        put::<SHOW>(out, info, Value::End);
        Ok(())
    }

    /// One more element or structure: lengths that no packet has are stopped here.
    #[inline]
    fn step(&mut self, items: usize) -> Result<(), PacketError> {
        self.steps += 1;
        if self.steps > ITEMS_MAX || items > ITEMS_MAX { Err(PacketError::TooMany) } else { Ok(()) }
    }
}

#[inline]
fn put<const SHOW: bool>(out: &mut Vec<Item>, info: u32, value: Value) {
    if SHOW {
        out.push(Item { info, value });
    }
}

/// The time whose lowest `bits` are `low`, from `before` on.
#[inline]
fn onward(before: u64, low: u64, bits: u32) -> u64 {
    if bits >= 64 {
        return low;
    }
    let mask = mask(bits);
    let wrapped = if low < before & mask { mask + 1 } else { 0 };
    ((before & !mask) | low).wrapping_add(wrapped)
}
