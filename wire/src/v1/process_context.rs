//! Process context events: rare, so rows. They are stored outside of `kinds` with the number of
//! events that precede them, so an older reader skips the field and misreads nothing.

use super::Malformed;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::message::ProcessContextEvent as Message;
use crate::clock::MonotonicNs;
use crate::event::LayerEvent;
use crate::ids::Pid;
use crate::process_context::{Attribute, AttributeValue, ProcessContextEvent};

/// Encodes an event that follows `before` other events.
pub(super) fn write<'a>(
    event: &'a ProcessContextEvent,
    before: usize,
    tables: &mut EncodeTables<'a>,
) -> Message {
    let mut row = Message {
        before: before as u32,
        time: event.time.0,
        pid: event.pid.0,
        dropped_attributes_count: event.dropped_attributes_count,
        ..Message::default()
    };
    for Attribute { key, value } in &event.attributes {
        row.key.push(tables.strings.intern(key));
        row.value.push(match value {
            AttributeValue::Text(text) => tables.strings.intern(text) + 1,
            AttributeValue::Number(_) => 0,
        });
        row.number.extend(match value {
            AttributeValue::Text(_) => None,
            AttributeValue::Number(number) => Some(*number),
        });
    }
    row.thread_key.extend(event.thread_keys.iter().map(|key| tables.strings.intern(key)));
    row
}

columns! {
    Attributes of Message { key: u32, value: u32, number: i64 } ids {}
}

/// Reader of process context rows, in order.
pub(super) struct ProcessContextReader<'a> {
    rows: std::iter::Peekable<std::slice::Iter<'a, Message>>,
}

impl<'a> ProcessContextReader<'a> {
    pub(super) fn new(rows: &'a [Message]) -> Self {
        ProcessContextReader { rows: rows.iter().peekable() }
    }

    /// Appends the next row if it follows the first `before` events or fewer.
    pub(super) fn next_if_due(
        &mut self,
        before: usize,
        tables: &DecodeTables<'_>,
        events: &mut Vec<LayerEvent>,
    ) -> Result<bool, Malformed> {
        let Some(row) = self.rows.next_if(|row| row.before as usize <= before) else { return Ok(false) };
        events.push(LayerEvent::ProcessContext(read(row, tables)?.into()));
        Ok(true)
    }

    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        let left = self.rows.next();
        left.map_or(Ok(()), |row| {
            Err(Malformed::Value { column: "ProcessContextEvent.before", value: row.before.into() })
        })
    }
}

fn read(row: &Message, tables: &DecodeTables<'_>) -> Result<ProcessContextEvent, Malformed> {
    let mut columns = Attributes::new(row);
    let attributes = row.key.iter().map(|_| {
        let key = tables.string(columns.key.next()?, "ProcessContextEvent.key")?;
        let value = match columns.value.next()?.checked_sub(1) {
            None => AttributeValue::Number(*columns.number.next()?),
            Some(index) => AttributeValue::Text(tables.string(&index, "ProcessContextEvent.value")?),
        };
        Ok(Attribute { key, value })
    });
    let attributes = attributes.collect::<Result<_, Malformed>>()?;
    columns.end()?;
    let thread_keys =
        row.thread_key.iter().map(|index| tables.string(index, "ProcessContextEvent.thread_key"));
    let thread_keys = thread_keys.collect::<Result<_, _>>()?;
    let (time, pid) = (MonotonicNs(row.time), Pid(row.pid));
    Ok(ProcessContextEvent {
        time,
        pid,
        attributes,
        dropped_attributes_count: row.dropped_attributes_count,
        thread_keys,
    })
}
