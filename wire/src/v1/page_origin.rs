//! Columns of page origins. They are stored outside of `kinds` with the number of events that
//! precede them, so an older reader skips the field and misreads nothing. Random write-back of small
//! pages makes one for each bio, hence columns and no rows.

use super::Malformed;
use super::column::Delta;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::IdWriter;
use super::message::PageOriginEvents;
use crate::clock::MonotonicNs;
use crate::event::LayerEvent;
use crate::ids::{SpanId, TraceId};
use crate::page_origin::{
    PageKind, PageOriginEvent, PagePart, PageWriter, Unattributed, WritebackReason, WriterEvidence,
};

/// Maximum of a number of four bits.
const NIBBLE: u32 = 0b1111;
const REASON_SHIFT: u32 = 4;
const UNATTRIBUTED_SHIFT: u32 = 8;
const UNATTRIBUTED_MAX: u32 = 0b111;
const ROOT_IS_BIO: u32 = 1 << 11;
const FILE: u32 = 1 << 12;
const BYTES_UNATTRIBUTED: u32 = 1 << 13;
const PARTS: u32 = 1 << 14;

const NO_SPAN: u32 = 1 << 4;
const TRACE_LOW: u32 = 1 << 5;
const NO_TRACE: u32 = 1 << 6;
const WRITER_BYTES: u32 = 1 << 7;

/// Encoded values; the index is the number.
const KINDS: [PageKind; 5] =
    [PageKind::File, PageKind::Device, PageKind::Metadata, PageKind::Log, PageKind::Swap];
/// The number 0 is no reason.
const REASONS: [WritebackReason; 7] = [
    WritebackReason::Background,
    WritebackReason::MemoryPressure,
    WritebackReason::Sync,
    WritebackReason::Periodic,
    WritebackReason::FreeSpace,
    WritebackReason::ForeignCgroup,
    WritebackReason::Other,
];
/// The number 0 is no reason.
const UNATTRIBUTED: [Unattributed; 3] =
    [Unattributed::NotRecorded, Unattributed::Evicted, Unattributed::NotConsecutive];
const EVIDENCE: [WriterEvidence; 6] = [
    WriterEvidence::EndedBefore,
    WriterEvidence::UnderWay,
    WriterEvidence::MappedStore,
    WriterEvidence::DuringTransfer,
    WriterEvidence::UnderWayEarlier,
    WriterEvidence::LoopDevice,
];

/// Returns the number of a value; every value is in its list.
fn number<T: PartialEq>(values: &[T], value: T) -> u32 {
    values.iter().position(|known| *known == value).unwrap_or_default() as u32
}

/// Returns the number of an optional value; 0 is none.
fn number_of_optional<T: PartialEq>(values: &[T], value: Option<T>) -> u32 {
    value.map_or(0, |value| number(values, value) + 1)
}

/// Previous values of the delta columns.
#[derive(Default)]
struct Deltas {
    time: Delta,
    /// End of the previous range.
    end: u64,
    dirtied: Delta,
    trace_high: Delta,
}

/// Writer of page origin columns.
#[derive(Default)]
pub(super) struct PageOriginWriter {
    columns: PageOriginEvents,
    bio: IdWriter,
    root: IdWriter,
    writer_span: IdWriter,
    deltas: Deltas,
}

impl PageOriginWriter {
    /// Appends an event that follows `before` other events.
    pub(super) fn put(&mut self, event: &PageOriginEvent, before: usize, tables: &mut EncodeTables<'_>) {
        let (columns, deltas) = (&mut self.columns, &mut self.deltas);
        let mut flags = number(&KINDS, event.kind)
            | number_of_optional(&REASONS, event.reason) << REASON_SHIFT
            | number_of_optional(&UNATTRIBUTED, event.unattributed) << UNATTRIBUTED_SHIFT;
        columns.before.push(before as u32);
        columns.time.push(deltas.time.encode(event.time.0));
        tables.origins.put(&mut self.bio, event.bio.0);
        match event.root == event.bio {
            true => flags |= ROOT_IS_BIO,
            false => tables.origins.put(&mut self.root, event.root.0),
        }
        if let Some(file) = event.file {
            flags |= FILE;
            columns.file.push(tables.files.intern(file));
        }
        columns.offset.push(event.offset.wrapping_sub(deltas.end) as i64);
        deltas.end = event.offset.wrapping_add(event.bytes.into());
        columns.bytes.push(event.bytes);
        if event.bytes_unattributed != 0 {
            flags |= BYTES_UNATTRIBUTED;
            columns.bytes_unattributed.push(event.bytes_unattributed);
        }
        if !event.parts.is_empty() {
            flags |= PARTS;
            columns.parts.push(event.parts.len() as u32);
            let mut end = event.offset;
            for part in &event.parts {
                columns.part_offset.push(part.offset.wrapping_sub(end) as i64);
                columns.part_bytes.push(part.bytes);
                end = part.offset.wrapping_add(part.bytes.into());
            }
        }
        columns.flags.push(flags);
        columns.writers.push(event.writers.len() as u32);
        event.writers.iter().for_each(|writer| self.put_writer(writer, event.bytes, tables));
    }

    fn put_writer(&mut self, writer: &PageWriter, range: u32, tables: &mut EncodeTables<'_>) {
        let (columns, deltas) = (&mut self.columns, &mut self.deltas);
        let mut flags = number(&EVIDENCE, writer.evidence);
        match writer.span.0 == 0 {
            true => flags |= NO_SPAN,
            false => tables.origins.put(&mut self.writer_span, writer.span.0),
        }
        match writer.trace.0 == 0 {
            true => flags |= NO_TRACE,
            false => {
                columns.trace_high.push(deltas.trace_high.encode((writer.trace.0 >> 64) as u64));
                if writer.trace.0 as u64 != writer.span.0 {
                    flags |= TRACE_LOW;
                    columns.trace_low.push(writer.trace.0 as u64);
                }
            }
        }
        columns.writer_task.push(tables.tasks.intern(writer.task));
        columns.dirtied.push(deltas.dirtied.encode(writer.dirtied.0));
        if writer.bytes != range {
            flags |= WRITER_BYTES;
            columns.writer_bytes.push(writer.bytes);
        }
        columns.writer_flags.push(flags);
    }

    /// Returns the message; none without events, so that such a batch has no bytes for them.
    pub(super) fn end(self) -> Option<PageOriginEvents> {
        let PageOriginWriter { columns, bio, root, writer_span, deltas: _ } = self;
        let any = !columns.flags.is_empty();
        any.then(|| PageOriginEvents {
            bio: bio.end(),
            root: root.end(),
            writer_span: writer_span.end(),
            ..columns
        })
    }
}

columns! {
    PageOriginColumns of PageOriginEvents {
        time: i64, flags: u32, file: u32, offset: i64, bytes: u32, bytes_unattributed: u32, parts: u32,
        part_offset: i64, part_bytes: u32, writers: u32,
        writer_flags: u32, trace_high: i64, trace_low: u64, writer_task: u32, dirtied: i64, writer_bytes: u32,
    } ids { bio, root, writer_span }
}

/// Reader of page origin columns, in order.
pub(super) struct PageOriginReader<'a> {
    before: std::iter::Peekable<std::slice::Iter<'a, u32>>,
    columns: PageOriginColumns<'a>,
    deltas: Deltas,
}

impl<'a> PageOriginReader<'a> {
    pub(super) fn new(message: &'a PageOriginEvents) -> Self {
        PageOriginReader {
            before: message.before.iter().peekable(),
            columns: PageOriginColumns::new(message),
            deltas: Deltas::default(),
        }
    }

    /// Appends the next event if it precedes or follows directly after the first `before` others.
    pub(super) fn next_if_due(
        &mut self,
        before: usize,
        tables: &DecodeTables<'_>,
        events: &mut Vec<LayerEvent>,
    ) -> Result<bool, Malformed> {
        if self.before.next_if(|at| **at as usize <= before).is_none() {
            return Ok(false);
        }
        events.push(LayerEvent::PageOrigin(self.next(tables)?.into()));
        Ok(true)
    }

    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        if let Some(before) = self.before.next() {
            return Err(Malformed::Value { column: "PageOriginEvents.before", value: (*before).into() });
        }
        self.columns.end()
    }

    fn next(&mut self, tables: &DecodeTables<'_>) -> Result<PageOriginEvent, Malformed> {
        let (columns, deltas) = (&mut self.columns, &mut self.deltas);
        let flags = *columns.flags.next()?;
        let refuse = || Malformed::Value { column: "PageOriginEvents.flags", value: flags.into() };
        let bio = SpanId(columns.bio.next(&tables.ids)?);
        let root = columns.root.next_if(flags & ROOT_IS_BIO == 0, &tables.ids)?.map_or(bio, SpanId);
        let file = match columns.file.next_if(flags & FILE != 0)? {
            Some(index) => Some(tables.file(index, "PageOriginEvents.file")?),
            None => None,
        };
        let offset = deltas.end.wrapping_add(*columns.offset.next()? as u64);
        let bytes = *columns.bytes.next()?;
        deltas.end = offset.wrapping_add(bytes.into());
        let unattributed = flags >> UNATTRIBUTED_SHIFT & UNATTRIBUTED_MAX;
        let bytes_unattributed = columns.bytes_unattributed.next_if(flags & BYTES_UNATTRIBUTED != 0)?;
        let parts = match columns.parts.next_if(flags & PARTS != 0)? {
            Some(number) => parts(columns, offset, *number)?,
            None => Vec::new(),
        };
        Ok(PageOriginEvent {
            time: MonotonicNs(deltas.time.decode(*columns.time.next()?)),
            bio,
            root,
            kind: value(&KINDS, flags & NIBBLE).ok_or_else(refuse)?,
            file,
            offset,
            bytes,
            parts,
            reason: optional_value(&REASONS, flags >> REASON_SHIFT & NIBBLE).ok_or_else(refuse)?,
            bytes_unattributed: bytes_unattributed.copied().unwrap_or(0),
            unattributed: optional_value(&UNATTRIBUTED, unattributed).ok_or_else(refuse)?,
            writers: (0..*columns.writers.next()?)
                .map(|_| self.writer(bytes, tables))
                .collect::<Result<_, _>>()?,
        })
    }

    fn writer(&mut self, range: u32, tables: &DecodeTables<'_>) -> Result<PageWriter, Malformed> {
        let (columns, deltas) = (&mut self.columns, &mut self.deltas);
        let flags = *columns.writer_flags.next()?;
        let span = columns.writer_span.next_if(flags & NO_SPAN == 0, &tables.ids)?.unwrap_or(0);
        let trace = match flags & NO_TRACE == 0 {
            true => {
                let high = deltas.trace_high.decode(*columns.trace_high.next()?);
                let low = columns.trace_low.next_if(flags & TRACE_LOW != 0)?.copied().unwrap_or(span);
                u128::from(high) << 64 | u128::from(low)
            }
            false => 0,
        };
        Ok(PageWriter {
            trace: TraceId(trace),
            span: SpanId(span),
            task: tables.task(columns.writer_task.next()?, "PageOriginEvents.writer_task")?,
            dirtied: MonotonicNs(deltas.dirtied.decode(*columns.dirtied.next()?)),
            bytes: columns.writer_bytes.next_if(flags & WRITER_BYTES != 0)?.copied().unwrap_or(range),
            evidence: value(&EVIDENCE, flags & NIBBLE)
                .ok_or_else(|| columns.writer_flags.refuse(flags.into()))?,
        })
    }
}

/// Reads the parts of an event; the first one begins at `offset`.
fn parts(columns: &mut PageOriginColumns<'_>, offset: u64, number: u32) -> Result<Vec<PagePart>, Malformed> {
    let mut end = offset;
    let mut next = || {
        let offset = end.wrapping_add(*columns.part_offset.next()? as u64);
        let bytes = *columns.part_bytes.next()?;
        end = offset.wrapping_add(bytes.into());
        Ok(PagePart { offset, bytes })
    };
    (0..number).map(|_| next()).collect()
}

fn value<T: Copy>(values: &[T], number: u32) -> Option<T> {
    values.get(number as usize).copied()
}

/// Returns an optional value; 0 is none. Returns none for an unknown number.
fn optional_value<T: Copy>(values: &[T], number: u32) -> Option<Option<T>> {
    match number.checked_sub(1) {
        None => Some(None),
        Some(index) => value(values, index).map(Some),
    }
}
