//! Commits as columns.

use super::Malformed;
use super::column::columns;
use super::ids::IdWriter;
use super::message::CommitEvents;
use super::read::Known;
use super::write::Shared;
use crate::clock::MonotonicNs;
use crate::event::CommitEvent;
use crate::ids::SpanId;

/// Columns while they are written.
#[derive(Default)]
pub(super) struct CommitWriter {
    columns: CommitEvents,
    span: IdWriter,
}

impl CommitWriter {
    pub(super) fn put(&mut self, commit: &CommitEvent, shared: &mut Shared<'_>) {
        let columns = &mut self.columns;
        shared.origins.put(&mut self.span, commit.span.0);
        columns.task.push(shared.tasks.place(commit.task));
        columns.took.push(commit.end.0.wrapping_sub(commit.start.0));
        columns.device.push(shared.devices.place(commit.device.to_kernel()));
        columns.tid.push(commit.tid);
        columns.bios.push(commit.bios);
    }

    pub(super) fn end(self) -> CommitEvents {
        CommitEvents { span: self.span.end(), ..self.columns }
    }
}

columns! {
    /// Columns while they are read.
    CommitReader of CommitEvents {
        task: u32, took: u64, device: u32, tid: u32, bios: u32,
    } ids { span }
}

impl CommitReader<'_> {
    /// The next.
    pub(super) fn next(&mut self, time: MonotonicNs, known: &Known<'_>) -> Result<CommitEvent, Malformed> {
        Ok(CommitEvent {
            span: SpanId(self.span.next(&known.ids)?),
            task: known.task(self.task.next()?, "CommitEvents.task")?,
            start: MonotonicNs(time.0.wrapping_sub(*self.took.next()?)),
            end: time,
            device: known.device(self.device.next()?, "CommitEvents.device")?,
            tid: *self.tid.next()?,
            bios: *self.bios.next()?,
        })
    }
}
