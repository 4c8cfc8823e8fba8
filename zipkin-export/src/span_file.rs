//! A file of spans that is one JSON list, which Zipkin takes as a whole by upload or POST.
//!
//! *In*: spans. *Out*: a [`PartialFile`] that grows, and a verdict on each span. *Invariant*: what was settled as sent is in
//! the file; after an error the file is the list that it was.
//!
//! There is no server to say what is wrong with a span, so the rule that Zipkin has is applied here: one bad
//! span would spoil the whole file.

use std::io;
use std::path::Path;

use blkkin_wire::span::Span;

use crate::batch::Batch;
use crate::delivery::{Ledger, Verdict};
use crate::format::Format;
use crate::json;
use crate::partial::{FileError, PartialFile};

/// A file of spans.
pub struct SpanFile {
    pub(crate) file: PartialFile,
    batch: Batch,
    one: Vec<u8>,
}

impl SpanFile {
    /// A new one, in the place of any other of that name once it is published.
    pub fn open(target: &Path) -> Result<SpanFile, FileError> {
        PartialFile::open(target).map(SpanFile::of)
    }

    /// One that goes on behind what it holds. What is settled is on the disk by then: who goes on with a file forgets what is
    /// in it.
    pub fn resume(target: &Path) -> Result<SpanFile, FileError> {
        PartialFile::resume(target).map(SpanFile::of)
    }

    fn of(file: PartialFile) -> SpanFile {
        SpanFile { file, batch: Batch::new(Format::Json), one: Vec::new() }
    }

    /// Where it is while it grows.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Adds spans and settles each; after an error none is settled but those that are refused. Bytes that were written.
    pub fn append(&mut self, spans: &[Span], ledger: &mut impl Ledger) -> io::Result<usize> {
        self.batch.clear();
        let mut accepted = Vec::<std::ops::Range<usize>>::new();
        let mut rejected = Vec::new();
        for (at, span) in spans.iter().enumerate() {
            if let Err(unfit) = json::check(span) {
                rejected.push((at, unfit));
                continue;
            }
            self.one.clear();
            json::encode(span, &mut self.one);
            self.batch.push(&self.one, &span.service);
            match accepted.last_mut() {
                Some(range) if range.end == at => range.end += 1,
                _ => accepted.push(at..at + 1),
            }
        }
        let mut list = Vec::new();
        if !self.batch.is_empty() {
            self.batch.join(&(0..self.batch.len()), &mut list);
            self.file.append(&list)?;
        }
        for (at, unfit) in rejected {
            let why = format!("a span was left out that Zipkin would refuse: {unfit}");
            ledger.settle(at..at + 1, Verdict::Rejected(why));
        }
        accepted.into_iter().for_each(|range| ledger.settle(range, Verdict::Sent));
        Ok(list.len())
    }

    /// Gives it its final name.
    pub fn publish(self) -> io::Result<()> {
        self.file.publish()
    }
}
