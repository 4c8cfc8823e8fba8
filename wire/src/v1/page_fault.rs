//! Columns of page faults. They are outside of `kinds` and `times`, so an older reader skips the
//! field and misreads nothing.

use super::Malformed;
use super::column::Delta;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::IdWriter;
use super::message::FaultEvents;
use crate::clock::MonotonicNs;
use crate::event::LayerEvent;
use crate::ids::SpanId;
use crate::page_fault::FaultEvent;

const MAJOR: u32 = 1 << 0;
const ADDRESS: u32 = 1 << 1;
const FILE: u32 = 1 << 2;
const OFFSET: u32 = 1 << 3;
const BEGIN_UNSEEN: u32 = 1 << 4;
const END_UNSEEN: u32 = 1 << 5;
const CONTEXT: u32 = 1 << 6;
const LATE: u32 = 1 << 7;

/// Writer of page fault columns.
#[derive(Default)]
pub(super) struct FaultWriter {
    columns: FaultEvents,
    span: IdWriter,
    time: Delta,
}

impl FaultWriter {
    /// Appends a fault that follows `before` other events.
    pub(super) fn put(&mut self, fault: &FaultEvent, before: usize, tables: &mut EncodeTables<'_>) {
        let columns = &mut self.columns;
        columns.before.push(before as u32);
        columns.time.push(self.time.encode(fault.time.0));
        tables.origins.put(&mut self.span, fault.span.0);
        columns.task.push(tables.tasks.intern(fault.task));
        let late = (fault.time != fault.end).then(|| fault.time.0.wrapping_sub(fault.end.0));
        columns.late.extend(late);
        columns.duration.push(fault.end.0.wrapping_sub(fault.begin.0));
        columns.address.extend(fault.address);
        columns.file.extend(fault.file.map(|file| tables.files.intern(file)));
        columns.offset.extend(fault.offset);
        columns.bios.push(fault.bios);
        columns.context.extend(fault.context.as_deref().map(|context| tables.contexts.intern(*context)));
        let flags = [
            (fault.major, MAJOR),
            (fault.address.is_some(), ADDRESS),
            (fault.file.is_some(), FILE),
            (fault.offset.is_some(), OFFSET),
            (!fault.begin_seen, BEGIN_UNSEEN),
            (!fault.end_seen, END_UNSEEN),
            (fault.context.is_some(), CONTEXT),
            (late.is_some(), LATE),
        ];
        columns.flags.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
    }

    /// Returns the columns; none without a fault, so that the field is absent.
    pub(super) fn end(self) -> Option<FaultEvents> {
        let columns = FaultEvents { span: self.span.end(), ..self.columns };
        (!columns.flags.is_empty()).then_some(columns)
    }
}

columns! {
    FaultColumns of FaultEvents {
        flags: u32, before: u32, time: i64, task: u32, late: u64, duration: u64, address: u64, file: u32, offset: u64,
        bios: u32, context: u32
    } ids { span }
}

/// Reader of page faults, in order.
pub(super) struct FaultReader<'a> {
    rows: std::iter::Peekable<std::slice::Iter<'a, u32>>,
    columns: FaultColumns<'a>,
    time: Delta,
}

impl<'a> FaultReader<'a> {
    pub(super) fn new(message: &'a FaultEvents) -> Self {
        FaultReader {
            rows: message.before.iter().peekable(),
            columns: FaultColumns::new(message),
            time: Delta::default(),
        }
    }

    /// Appends the next fault if it follows the first `before` events or fewer. A position beyond the
    /// last event is no error: the writer may know further kinds of events that this reader skips.
    pub(super) fn next_if_due(
        &mut self,
        before: usize,
        tables: &DecodeTables<'_>,
        events: &mut Vec<LayerEvent>,
    ) -> Result<bool, Malformed> {
        if self.rows.next_if(|row| **row as usize <= before).is_none() {
            return Ok(false);
        }
        events.push(LayerEvent::Fault(self.read(tables)?));
        Ok(true)
    }

    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        self.columns.end()
    }

    fn read(&mut self, tables: &DecodeTables<'_>) -> Result<FaultEvent, Malformed> {
        let columns = &mut self.columns;
        columns.before.next()?;
        let flags = *columns.flags.next()?;
        let has = |flag| flags & flag != 0;
        let time = self.time.decode(*columns.time.next()?);
        let end = time.wrapping_sub(columns.late.next_if(has(LATE))?.copied().unwrap_or(0));
        Ok(FaultEvent {
            span: SpanId(columns.span.next(&tables.ids)?),
            task: tables.task(columns.task.next()?, "FaultEvents.task")?,
            major: has(MAJOR),
            address: columns.address.next_if(has(ADDRESS))?.copied(),
            file: match columns.file.next_if(has(FILE))? {
                Some(file) => Some(tables.file(file, "FaultEvents.file")?),
                None => None,
            },
            offset: columns.offset.next_if(has(OFFSET))?.copied(),
            begin: MonotonicNs(end.wrapping_sub(*columns.duration.next()?)),
            begin_seen: !has(BEGIN_UNSEEN),
            end: MonotonicNs(end),
            end_seen: !has(END_UNSEEN),
            time: MonotonicNs(time),
            bios: *columns.bios.next()?,
            context: match columns.context.next_if(has(CONTEXT))? {
                Some(context) => Some(tables.context(context, "FaultEvents.context")?.into()),
                None => None,
            },
        })
    }
}
