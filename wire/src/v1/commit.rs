//! Columns of journal commits.

use super::Malformed;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::IdWriter;
use super::message::CommitEvents;
use crate::clock::MonotonicNs;
use crate::event::CommitEvent;
use crate::ids::SpanId;

/// Writer of commit columns.
#[derive(Default)]
pub(super) struct CommitWriter {
    columns: CommitEvents,
    span: IdWriter,
}

impl CommitWriter {
    pub(super) fn put(&mut self, commit: &CommitEvent, tables: &mut EncodeTables<'_>) {
        let columns = &mut self.columns;
        tables.origins.put(&mut self.span, commit.span.0);
        columns.task.push(tables.tasks.intern(commit.task));
        columns.duration.push(commit.end.0.wrapping_sub(commit.start.0));
        columns.device.push(tables.devices.intern(commit.device.to_kernel()));
        columns.tid.push(commit.tid);
        columns.bios.push(commit.bios);
    }

    pub(super) fn end(self) -> CommitEvents {
        CommitEvents { span: self.span.end(), ..self.columns }
    }
}

columns! {
    /// Reader of commit columns.
    CommitReader of CommitEvents {
        task: u32, duration: u64, device: u32, tid: u32, bios: u32,
    } ids { span }
}

impl CommitReader<'_> {
    /// Reads the next commit.
    pub(super) fn next(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<CommitEvent, Malformed> {
        Ok(CommitEvent {
            span: SpanId(self.span.next(&tables.ids)?),
            task: tables.task(self.task.next()?, "CommitEvents.task")?,
            start: MonotonicNs(time.0.wrapping_sub(*self.duration.next()?)),
            end: time,
            device: tables.device(self.device.next()?, "CommitEvents.device")?,
            tid: *self.tid.next()?,
            bios: *self.bios.next()?,
        })
    }
}
