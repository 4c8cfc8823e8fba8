//! Columns of asynchronous I/O. They are stored outside of `kinds`, with their own times and the
//! number of other events that precede them, so an older reader skips the field and misreads
//! nothing.

use super::Malformed;
use super::column::Delta;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::{IdWriter, head_sampling};
use super::message::AsyncIoEvents;
use crate::async_io::{AsyncDescriptor, AsyncInterface, AsyncIoEvent, AsyncIoOutcome};
use crate::clock::MonotonicNs;
use crate::event::LayerEvent;
use crate::head_sampling::HeadSampling;
use crate::ids::SpanId;

const SUBMITTER: u32 = 1 << 0;
const LIBAIO: u32 = 1 << 1;
const RETURNED: u32 = 1 << 2;
const NO_END: u32 = 1 << 3;
const FILE: u32 = 1 << 4;
const DESCRIPTOR: u32 = 1 << 5;
const REGISTERED: u32 = 1 << 6;
const OFFSET: u32 = 1 << 7;
const LENGTH: u32 = 1 << 8;
const QUEUED: u32 = 1 << 9;
const WRITES_PAGE_CACHE: u32 = 1 << 10;
const SAMPLING: u32 = 1 << 11;

/// Writer of the columns.
#[derive(Default)]
pub(super) struct AsyncIoWriter {
    columns: AsyncIoEvents,
    span: IdWriter,
    submitter: IdWriter,
    before: u32,
    time: Delta,
    user_data: Delta,
    offset: Delta,
}

impl AsyncIoWriter {
    /// Appends an event that follows `before` events of `kinds`, process contexts and page origins.
    pub(super) fn put(&mut self, io: &AsyncIoEvent, before: usize, tables: &mut EncodeTables<'_>) {
        let columns = &mut self.columns;
        columns.before.push((before as u32).wrapping_sub(self.before));
        self.before = before as u32;
        columns.time.push(self.time.encode(io.end.0));
        tables.origins.put(&mut self.span, io.span.0);
        let mut flags = 0;
        if let Some(submitter) = io.submitter {
            flags |= SUBMITTER;
            tables.origins.put(&mut self.submitter, submitter.0);
        }
        if io.interface == AsyncInterface::Libaio {
            flags |= LIBAIO;
        }
        columns.task.push(tables.tasks.intern(io.task));
        columns.duration.push(io.end.0.wrapping_sub(io.start.0));
        columns.operation.push(io.opcode.into());
        columns.user_data.push(self.user_data.encode(io.user_data));
        match io.outcome {
            AsyncIoOutcome::Returned(result) => {
                flags |= RETURNED;
                columns.result.push(result);
            }
            AsyncIoOutcome::Ended => {}
            AsyncIoOutcome::NoEnd => flags |= NO_END,
        }
        if let Some(file) = io.file {
            flags |= FILE;
            columns.file.push(tables.files.intern(file));
        }
        if let Some(descriptor) = io.descriptor {
            let (flag, number) = match descriptor {
                AsyncDescriptor::Descriptor(fd) => (DESCRIPTOR, fd),
                AsyncDescriptor::Registered(index) => (REGISTERED, index),
            };
            flags |= flag;
            columns.descriptor.push(number);
        }
        if let Some(offset) = io.offset {
            flags |= OFFSET;
            columns.offset.push(self.offset.encode(offset as u64));
        }
        if let Some(length) = io.length {
            flags |= LENGTH;
            columns.length.push(length);
        }
        if let Some(queued) = io.queued {
            flags |= QUEUED;
            columns.queued.push(queued.0.wrapping_sub(io.start.0));
        }
        if io.writes_page_cache {
            flags |= WRITES_PAGE_CACHE;
        }
        if io.sampling != HeadSampling::ALL {
            columns.sampling.push(io.sampling.code().into());
            flags |= SAMPLING;
        }
        columns.flags.push(flags);
        columns.bios.push(io.bios);
        columns.ring_flags.push(io.ring_flags);
        columns.sqe_flags.push(io.sqe_flags.into());
    }

    /// Returns the columns; none if there is no event, so that the field is absent.
    pub(super) fn end(self) -> Option<AsyncIoEvents> {
        let columns =
            AsyncIoEvents { span: self.span.end(), submitter: self.submitter.end(), ..self.columns };
        (!columns.flags.is_empty()).then_some(columns)
    }
}

columns! {
    AsyncIoColumns of AsyncIoEvents {
        time: i64, flags: u32, task: u32, duration: u64, operation: u32, user_data: i64, result: i32,
        file: u32, descriptor: i32, offset: i64, length: u32, bios: u32, queued: u64, ring_flags: u32, sqe_flags: u32,
        sampling: u32,
    } ids { span, submitter }
}

/// Differences of delta columns.
#[derive(Default)]
struct Deltas {
    time: Delta,
    user_data: Delta,
    offset: Delta,
}

/// Reader of asynchronous I/O, in order.
pub(super) struct AsyncIoReader<'a> {
    before: std::iter::Peekable<std::slice::Iter<'a, u32>>,
    /// Number of events that precede the previous one.
    before_last: u64,
    columns: AsyncIoColumns<'a>,
    deltas: Deltas,
}

impl<'a> AsyncIoReader<'a> {
    pub(super) fn new(message: &'a AsyncIoEvents) -> Self {
        AsyncIoReader {
            before: message.before.iter().peekable(),
            before_last: 0,
            columns: AsyncIoColumns::new(message),
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
        let last = self.before_last;
        let Some(more) = self.before.next_if(|more| last + u64::from(**more) <= before as u64) else {
            return Ok(false);
        };
        self.before_last += u64::from(*more);
        events.push(LayerEvent::AsyncIo(self.columns.next(tables, &mut self.deltas)?));
        Ok(true)
    }

    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        if let Some(more) = self.before.next() {
            return Err(Malformed::Value { column: "AsyncIoEvents.before", value: (*more).into() });
        }
        self.columns.end()
    }
}

impl AsyncIoColumns<'_> {
    fn next(&mut self, tables: &DecodeTables<'_>, deltas: &mut Deltas) -> Result<AsyncIoEvent, Malformed> {
        let flags = *self.flags.next()?;
        let has = |flag| flags & flag != 0;
        let end = deltas.time.decode(*self.time.next()?);
        let start = end.wrapping_sub(*self.duration.next()?);
        let opcode = *self.operation.next()?;
        let sqe_flags = *self.sqe_flags.next()?;
        let descriptor = self.descriptor.next_if(has(DESCRIPTOR) || has(REGISTERED))?.copied();
        let file = self.file.next_if(has(FILE))?;
        let offset = self.offset.next_if(has(OFFSET))?;
        let sampling = match self.sampling.next_if(has(SAMPLING))? {
            Some(code) => head_sampling(*code).ok_or_else(|| self.sampling.refuse((*code).into()))?,
            None => HeadSampling::ALL,
        };
        Ok(AsyncIoEvent {
            span: SpanId(self.span.next(&tables.ids)?),
            submitter: self.submitter.next_if(has(SUBMITTER), &tables.ids)?.map(SpanId),
            task: tables.task(self.task.next()?, "AsyncIoEvents.task")?,
            interface: if has(LIBAIO) { AsyncInterface::Libaio } else { AsyncInterface::IoUring },
            opcode: u8::try_from(opcode).map_err(|_| self.operation.refuse(opcode.into()))?,
            start: MonotonicNs(start),
            end: MonotonicNs(end),
            queued: self.queued.next_if(has(QUEUED))?.map(|after| MonotonicNs(start.wrapping_add(*after))),
            user_data: deltas.user_data.decode(*self.user_data.next()?),
            outcome: match self.result.next_if(has(RETURNED))? {
                Some(result) => AsyncIoOutcome::Returned(*result),
                None if has(NO_END) => AsyncIoOutcome::NoEnd,
                None => AsyncIoOutcome::Ended,
            },
            file: file.map(|index| tables.file(index, "AsyncIoEvents.file")).transpose()?,
            descriptor: descriptor.map(|number| match has(REGISTERED) {
                true => AsyncDescriptor::Registered(number),
                false => AsyncDescriptor::Descriptor(number),
            }),
            offset: offset.map(|difference| deltas.offset.decode(*difference) as i64),
            length: self.length.next_if(has(LENGTH))?.copied(),
            bios: *self.bios.next()?,
            ring_flags: *self.ring_flags.next()?,
            sqe_flags: u8::try_from(sqe_flags).map_err(|_| self.sqe_flags.refuse(sqe_flags.into()))?,
            writes_page_cache: has(WRITES_PAGE_CACHE),
            sampling,
        })
    }
}
