//! An event as its reader sees it: borrowed from where it was decoded, and gone with the next one.

use std::borrow::Cow;

use crate::ctf::metadata::{EventClass, StreamClass, Trace};
use crate::ctf::packet::{Event, PacketHead};
use crate::ctf::plan::Value;

/// One event, its trace and its packet.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// What its trace says of itself.
    pub trace: &'a Trace,
    /// Which of the reader's traces.
    pub trace_index: usize,
    /// Which of the reader's streams.
    pub stream_index: usize,
    /// Its packet's head.
    pub head: &'a PacketHead,
    /// Its packet's bytes.
    pub packet: &'a [u8],
    /// What was decoded.
    pub event: &'a Event,
    /// Its time in ns, on the reader's time line.
    pub time_ns: i64,
    /// What was found to be lost since the event before this; nothing that is given later is of before it.
    pub gap: Option<Gap>,
}

/// Events that are known to be lost, of one stream or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// None of them was before, in ns on the reader's time line.
    pub from_ns: i64,
    /// None was after.
    pub until_ns: i64,
    /// How many, as far as that is known: of a packet that never came it is not.
    pub events: u64,
}

impl Gap {
    /// Both together.
    pub fn and(self, other: Option<Gap>) -> Gap {
        let Some(other) = other else { return self };
        Gap {
            from_ns: self.from_ns.min(other.from_ns),
            until_ns: self.until_ns.max(other.until_ns),
            events: self.events + other.events,
        }
    }
}

impl<'a> View<'a> {
    /// Its class of streams.
    pub fn stream(&self) -> &'a StreamClass {
        &self.trace.streams[self.event.stream]
    }

    /// Its class of events.
    pub fn class(&self) -> &'a EventClass {
        &self.stream().events[self.event.class as usize]
    }

    /// `provider:event`
    pub fn name(&self) -> &'a str {
        &self.class().name
    }

    /// The bytes of a text.
    #[inline]
    pub fn bytes(&self, at: u32, length: u32) -> &'a [u8] {
        &self.packet[at as usize..at as usize + length as usize]
    }

    /// The text that `value` is, if it is one.
    pub fn text(&self, value: Value) -> Option<Cow<'a, str>> {
        match value {
            Value::Text { at, length } => Some(String::from_utf8_lossy(self.bytes(at, length))),
            _ => None,
        }
    }

    /// The field called `name`, by search: what is asked for each event is bound once instead (`crate::mapping`).
    pub fn field(&self, name: &str) -> Option<Value> {
        let (index, _) = self.class().payload.as_ref()?.field(name)?;
        self.event.payload.at(index)
    }
}
