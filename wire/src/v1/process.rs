//! What processes say of themselves: seldom, so rows. They lie beside the other events and say how many of these come before them:
//! a reader of before them skips the field and misreads nothing.

use super::Malformed;
use super::column::columns;
use super::message::ProcessEvent as Message;
use super::read::Known;
use super::write::Shared;
use crate::clock::MonotonicNs;
use crate::event::LayerEvent;
use crate::ids::Pid;
use crate::process::{Attribute, AttributeValue, ProcessEvent};

/// As a row, behind `before` other events.
pub(super) fn write<'a>(event: &'a ProcessEvent, before: usize, shared: &mut Shared<'a>) -> Message {
    let mut row = Message {
        before: before as u32,
        time: event.time.0,
        pid: event.pid.0,
        left_out: event.left_out,
        ..Message::default()
    };
    for Attribute { key, value } in &event.attributes {
        row.key.push(shared.words.place(key));
        row.value.push(match value {
            AttributeValue::Text(text) => shared.words.place(text) + 1,
            AttributeValue::Number(_) => 0,
        });
        row.number.extend(match value {
            AttributeValue::Text(_) => None,
            AttributeValue::Number(number) => Some(*number),
        });
    }
    row.thread_key.extend(event.thread_keys.iter().map(|key| shared.words.place(key)));
    row
}

columns! {
    Attributes of Message { key: u32, value: u32, number: i64 } ids {}
}

/// Those that lie behind no more than so many of the other events, and were not given before.
pub(super) struct ProcessReader<'a> {
    rows: std::iter::Peekable<std::slice::Iter<'a, Message>>,
}

impl<'a> ProcessReader<'a> {
    pub(super) fn new(rows: &'a [Message]) -> Self {
        ProcessReader { rows: rows.iter().peekable() }
    }

    pub(super) fn up_to(
        &mut self,
        before: usize,
        known: &Known<'_>,
        events: &mut Vec<LayerEvent>,
    ) -> Result<(), Malformed> {
        while let Some(row) = self.rows.next_if(|row| row.before as usize <= before) {
            events.push(LayerEvent::Process(read(row, known)?.into()));
        }
        Ok(())
    }

    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        let left = self.rows.next();
        left.map_or(Ok(()), |row| {
            Err(Malformed::Value { column: "ProcessEvent.before", value: row.before.into() })
        })
    }
}

fn read(row: &Message, known: &Known<'_>) -> Result<ProcessEvent, Malformed> {
    let mut columns = Attributes::new(row);
    let attributes = row.key.iter().map(|_| {
        let key = known.word(columns.key.next()?, "ProcessEvent.key")?;
        let value = match columns.value.next()?.checked_sub(1) {
            None => AttributeValue::Number(*columns.number.next()?),
            Some(place) => AttributeValue::Text(known.word(&place, "ProcessEvent.value")?),
        };
        Ok(Attribute { key, value })
    });
    let attributes = attributes.collect::<Result<_, Malformed>>()?;
    columns.end()?;
    let thread_keys = row.thread_key.iter().map(|place| known.word(place, "ProcessEvent.thread_key"));
    let thread_keys = thread_keys.collect::<Result<_, _>>()?;
    let (time, pid) = (MonotonicNs(row.time), Pid(row.pid));
    Ok(ProcessEvent { time, pid, attributes, left_out: row.left_out, thread_keys })
}
