//! Sink that writes spans from a queue to a file.
//!
//! *In*: spans. *Out*: a [`SpanFile`], published at the end, and a result for each span.
//! *Invariant*: a file under its final name holds every accepted span. If the disk is full, or the
//! drain deadline passed, the file keeps its name `.partial` and is a valid list of the spans that
//! fitted; the rest is counted.

use std::path::Path;

use blkkin_wire::span::Span;

use crate::atomic_json_file::FileError;
use crate::queue::{Queue, QueueObserver, SpanOutcome};
use crate::span_file::SpanFile;

pub(crate) struct FileSink {
    file: SpanFile,
    state: FileState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileState {
    Writable,
    /// A write failed. No further write is attempted: one error is reported, and the written spans
    /// stay.
    Failed,
}

impl FileSink {
    pub(crate) fn open(target: &Path) -> Result<FileSink, FileError> {
        Ok(FileSink { file: SpanFile::open(target)?, state: FileState::Writable })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn send(&mut self, spans: &[Span], queue: &Queue) {
        if self.state == FileState::Failed {
            return queue.settle(SpanOutcome::Undeliverable, spans.len());
        }
        if let Err(error) = self.file.append(spans, &mut QueueObserver(queue)) {
            self.state = FileState::Failed;
            let path = self.file.path().display();
            let sent = queue.stats().sent;
            queue.set_fault(format!(
                "cannot write {path} any further: {error}; the {sent} spans before are in it, the rest is lost"
            ));
            // The queue settles only spans that are still in flight.
            queue.settle(SpanOutcome::Undeliverable, spans.len());
        }
    }

    /// Gives the file its final name at the end, if it is whole.
    pub(crate) fn finish(self, queue: &Queue) {
        let path = self.file.path().to_owned();
        if self.state == FileState::Failed {
            return;
        }
        if queue.is_abandoned() {
            return queue.set_fault(format!("{} is incomplete: writing was aborted", path.display()));
        }
        match self.file.publish() {
            Ok(()) => queue.set_partial_path(None),
            Err(error) => {
                queue.set_fault(format!("cannot rename {} to its final name: {error}", path.display()));
            }
        }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
