//! View of a decoded event, borrowed from its reader until the next event.

use std::borrow::Cow;

use crate::ctf::metadata::{EventClass, StreamClass, Trace};
use crate::ctf::packet::{Event, PacketHeader};
use crate::ctf::plan::Value;

/// Event with its trace and packet.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    /// Event's trace.
    pub trace: &'a Trace,
    /// Index of the trace in its reader.
    pub trace_index: usize,
    /// Index of the stream in its reader.
    pub stream_index: usize,
    /// Header and context of the packet.
    pub header: &'a PacketHeader,
    /// Bytes of the packet.
    pub packet: &'a [u8],
    /// Decoded event.
    pub event: &'a Event,
    /// Time in ns, comparable across the reader's streams.
    pub time_ns: i64,
    /// Losses found since the previous event. No later event is earlier than these.
    pub gap: Option<Gap>,
}

/// Interval with lost events, of one stream or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Begin of the interval in ns.
    pub from_ns: i64,
    /// End of the interval in ns.
    pub until_ns: i64,
    /// Number of lost events, as far as it is known. Lost packets have an unknown number of events.
    pub events: u64,
}

impl Gap {
    /// Returns the interval that covers both gaps.
    pub fn merge(self, other: Option<Gap>) -> Gap {
        let Some(other) = other else { return self };
        Gap {
            from_ns: self.from_ns.min(other.from_ns),
            until_ns: self.until_ns.max(other.until_ns),
            events: self.events + other.events,
        }
    }
}

impl<'a> EventView<'a> {
    /// Returns the class of the event's stream.
    pub fn stream(&self) -> &'a StreamClass {
        &self.trace.streams[self.event.stream]
    }

    /// Returns the event's class.
    pub fn class(&self) -> &'a EventClass {
        &self.stream().events[self.event.class as usize]
    }

    /// Returns the event's name, in the form `provider:event`.
    pub fn name(&self) -> &'a str {
        &self.class().name
    }

    /// Returns the bytes of a text.
    #[inline]
    pub fn bytes(&self, at: u32, length: u32) -> &'a [u8] {
        &self.packet[at as usize..at as usize + length as usize]
    }

    /// Returns the text of `value`; `None` for other types.
    pub fn text(&self, value: Value) -> Option<Cow<'a, str>> {
        match value {
            Value::Text { at, length } => Some(String::from_utf8_lossy(self.bytes(at, length))),
            _ => None,
        }
    }

    /// Returns the field with this name by search. For fields of every event, a caller
    /// rather resolves their indexes once.
    pub fn field(&self, name: &str) -> Option<Value> {
        let (index, _) = self.class().payload.as_ref()?.field(name)?;
        self.event.payload.at(index)
    }
}
