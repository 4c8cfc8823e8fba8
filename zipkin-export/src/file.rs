//! Spans to a file: one JSON list, which Zipkin takes as a whole by upload or POST.
//!
//! *In*: spans. *Out*: a [`PartialFile`] that grows and is published at the end, and a verdict on each span.
//! *Invariant*: a file under its final name holds everything that was accepted into it. When the disk is full,
//! or the time for draining was over, the file keeps its name `.partial`, is a valid list of what fitted, and
//! the rest is counted.
//!
//! There is no server to say what is wrong with a span, so the rule that Zipkin has is applied here: one bad
//! span would spoil the whole file.

use std::path::Path;

use blkkin_wire::span::Span;

use crate::batch::Batch;
use crate::json;
use crate::partial::{FileError, PartialFile};
use crate::queue::{Queue, Verdict};

pub(crate) struct FileSink {
    file: PartialFile,
    health: Health,
    batch: Batch,
    one: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// A write failed. No other is tried: one error is told, and what fitted stays as it is.
    Failed,
}

impl FileSink {
    pub(crate) fn open(target: &Path) -> Result<FileSink, FileError> {
        let file = PartialFile::open(target)?;
        Ok(FileSink { file, health: Health::Good, batch: Batch::default(), one: Vec::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn send(&mut self, spans: &[Span], queue: &Queue) {
        self.batch.clear();
        for span in spans {
            match json::check(span) {
                Ok(()) => self.encode(span),
                Err(unfit) => {
                    queue.set_fault(format!("a span was left out that Zipkin would refuse: {unfit}"));
                    queue.settle(Verdict::Rejected, 1);
                }
            }
        }
        let verdict = if self.batch.is_empty() { Verdict::Sent } else { self.write(queue) };
        queue.settle(verdict, self.batch.len());
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

    fn encode(&mut self, span: &Span) {
        self.one.clear();
        json::encode(span, &mut self.one);
        self.batch.push(&self.one);
    }

    fn write(&mut self, queue: &Queue) -> Verdict {
        if self.health == Health::Failed {
            return Verdict::Undeliverable;
        }
        match self.file.append(self.batch.inner()) {
            Ok(()) => Verdict::Sent,
            Err(error) => {
                self.health = Health::Failed;
                let path = self.file.path().display();
                let sent = queue.accounts().sent;
                queue.set_fault(format!(
                    "cannot write {path} any further: {error}; the {sent} spans before are in it, the rest is lost"
                ));
                Verdict::Undeliverable
            }
        }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
