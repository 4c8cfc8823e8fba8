//! View of a decoded event, borrowed from its reader until the next event.

use std::borrow::Cow;

use crate::ctf::metadata::{CtfTrace, EventClass, StreamClass};
use crate::ctf::packet::{Event, PacketHeader};
use crate::ctf::plan::Value;

/// Id that no user has (`(uid_t) -1`).
pub const UNKNOWN_USER: u32 = u32::MAX;

/// Returns the owner of a trace's buffers from the trace's path. LTTng's session daemon names the
/// folder of buffers per user `ust/uid/UID/BITS-bit`, after the credentials of the program's socket.
/// The folder of buffers per process ends with a time, whatever the program's name is.
pub fn buffer_owner(path: &str) -> u32 {
    let owner = || {
        let (rest, bits) = path.trim_end_matches('/').rsplit_once('/')?;
        let (rest, user) = rest.rsplit_once('/')?;
        let per_user = rest == "ust/uid" || rest.ends_with("/ust/uid");
        if per_user && bits.ends_with("-bit") { user.parse().ok() } else { None }
    };
    owner().unwrap_or(UNKNOWN_USER)
}

/// Event with its trace and packet.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    /// Event's trace.
    pub trace: &'a CtfTrace,
    /// Owner of the buffer: the user whose programs can write the event, with any content.
    /// [`UNKNOWN_USER`] if the trace does not name one.
    pub user: u32,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_of_buffers_per_user_names_their_owner() {
        assert_eq!(buffer_owner("host/blkkin-1-2-0-20261125-070102/ust/uid/1000/64-bit"), 1000);
        assert_eq!(buffer_owner("ust/uid/0/32-bit/"), 0);
        for path in [
            "",
            "host/session/ust/pid/uid/0/64-bit-77-20261125-070102",
            "host/session/ust/pid/ust/uid/0/64-bit-77-20261125-070102",
            "host/session/uid/0/64-bit",
            "ust/uid/root/64-bit",
            "ust/uid/-1/64-bit",
        ] {
            assert_eq!(buffer_owner(path), UNKNOWN_USER, "{path}");
        }
    }
}
