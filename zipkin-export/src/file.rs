//! Spans to a file, behind a queue.
//!
//! *In*: spans. *Out*: a [`SpanFile`] that is published at the end, and a verdict on each span.
//! *Invariant*: a file under its final name holds everything that was accepted into it. When the disk is full,
//! or the time for draining was over, the file keeps its name `.partial`, is a valid list of what fitted, and
//! the rest is counted.

use std::path::Path;

use blkkin_wire::span::Span;

use crate::partial::FileError;
use crate::queue::{Hand, Queue, Settled};
use crate::span_file::SpanFile;

pub(crate) struct FileSink {
    file: SpanFile,
    health: Health,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// A write failed. No other is tried: one error is told, and what fitted stays as it is.
    Failed,
}

impl FileSink {
    pub(crate) fn open(target: &Path) -> Result<FileSink, FileError> {
        Ok(FileSink { file: SpanFile::open(target)?, health: Health::Good })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn send(&mut self, spans: &[Span], queue: &Queue) {
        if self.health == Health::Failed {
            return queue.settle(Settled::Undeliverable, spans.len());
        }
        if let Err(error) = self.file.append(spans, &mut Hand(queue)) {
            self.health = Health::Failed;
            let path = self.file.path().display();
            let sent = queue.accounts().sent;
            queue.set_fault(format!(
                "cannot write {path} any further: {error}; the {sent} spans before are in it, the rest is lost"
            ));
            // More than are left in hand are not settled.
            queue.settle(Settled::Undeliverable, spans.len());
        }
    }

    /// At the end: the final name, if the file is whole.
    pub(crate) fn finish(self, queue: &Queue) {
        let path = self.file.path().to_owned();
        if self.health == Health::Failed {
            return;
        }
        if queue.is_abandoned() {
            return queue.set_fault(format!("{} is not whole: its writing was broken off", path.display()));
        }
        match self.file.publish() {
            Ok(()) => queue.set_left_at(None),
            Err(error) => {
                queue.set_fault(format!("cannot put {} in its final place: {error}", path.display()));
            }
        }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
