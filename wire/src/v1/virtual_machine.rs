//! Virtual machine events: rare, so rows. They are stored outside of `kinds` with the number of all
//! events that precede them, so an older reader skips the field and misreads nothing.

use std::iter::Peekable;
use std::slice::Iter;

use prost::Message as _;

use super::message::{EventBatch, VirtualMachineEvent as Message};
use crate::clock::MonotonicNs;
use crate::event::LayerEvent;
use crate::ids::Pid;
use crate::virtual_machine::VirtualMachineEvent;

/// Encodes an event that follows `before` other events.
pub(super) fn write(event: &VirtualMachineEvent, before: usize) -> Message {
    Message {
        before: before as u32,
        time: event.time.0,
        pid: event.pid.0,
        name: event.name.to_string(),
        uuid: event.uuid.to_string(),
    }
}

/// Adds an event behind the last one of an encoded batch, without decoding it. Protobuf merges messages that
/// follow each other, and appends the rows of the second one.
pub fn append_virtual_machine(record: &mut Vec<u8>, event: &VirtualMachineEvent) {
    let rows = vec![write(event, u32::MAX as usize)];
    let last = EventBatch { virtual_machine_events: rows, ..EventBatch::default() };
    record.extend(last.encode_to_vec());
}

/// Reader of virtual machine rows, in order.
pub(super) struct VirtualMachineReader<'a> {
    rows: Peekable<Iter<'a, Message>>,
}

impl<'a> VirtualMachineReader<'a> {
    pub(super) fn new(rows: &'a [Message]) -> Self {
        VirtualMachineReader { rows: rows.iter().peekable() }
    }

    /// Appends the next event if it follows the first `before` events or fewer. A position beyond the
    /// last event is no error, as for page faults.
    pub(super) fn next_if_due(&mut self, before: usize, events: &mut Vec<LayerEvent>) -> bool {
        let Some(row) = self.rows.next_if(|row| row.before as usize <= before) else { return false };
        let event = VirtualMachineEvent {
            time: MonotonicNs(row.time),
            pid: Pid(row.pid),
            name: row.name.as_str().into(),
            uuid: row.uuid.as_str().into(),
        };
        events.push(LayerEvent::VirtualMachine(event.into()));
        true
    }
}
