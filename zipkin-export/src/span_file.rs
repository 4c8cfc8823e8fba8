//! File of spans as one JSON list, which Zipkin accepts as a whole by upload or POST.
//!
//! *In*: spans. *Out*: an [`AtomicJsonFile`], and a result for each span. *Invariant*: spans
//! settled as sent are in the file. After an error the file is the list that it was before.
//!
//! No server checks the spans, so Zipkin's rule is applied here: one invalid span would invalidate
//! the whole file.

use std::io;
use std::path::Path;

use blkkin_wire::span::Span;

use crate::atomic_json_file::{AtomicJsonFile, FileError};
use crate::batch::Batch;
use crate::delivery::{DeliveryObserver, DeliveryResult};
use blkkin_span_encoding::Format;
use blkkin_span_encoding::json;

/// Writer of spans to a JSON file, with a result for each span.
pub struct SpanFile {
    pub(crate) file: AtomicJsonFile,
    batch: Batch,
    encoded: Vec<u8>,
}

impl SpanFile {
    /// Creates a file, which replaces another of that name when it is published.
    pub fn open(target: &Path) -> Result<SpanFile, FileError> {
        AtomicJsonFile::open(target).map(SpanFile::of)
    }

    /// Opens a file to append to it. Settled spans are on disk, because a caller that resumes has
    /// discarded them.
    pub fn resume(target: &Path) -> Result<SpanFile, FileError> {
        AtomicJsonFile::resume(target).map(SpanFile::of)
    }

    fn of(file: AtomicJsonFile) -> SpanFile {
        SpanFile { file, batch: Batch::new(Format::Json), encoded: Vec::new() }
    }

    /// Returns the path while the file grows.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Appends spans and settles each. After an error only rejected spans are settled. Returns the
    /// number of bytes written.
    pub fn append(&mut self, spans: &[Span], observer: &mut impl DeliveryObserver) -> io::Result<usize> {
        self.batch.clear();
        let mut accepted = Vec::<std::ops::Range<usize>>::new();
        let mut rejected = Vec::new();
        for (at, span) in spans.iter().enumerate() {
            if let Err(invalid) = json::check(span) {
                rejected.push((at, invalid));
                continue;
            }
            self.encoded.clear();
            json::encode(span, &mut self.encoded);
            self.batch.push(&self.encoded, &span.service);
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
        for (at, invalid) in rejected {
            let why = format!("dropped a span that Zipkin would reject: {invalid}");
            observer.settle(at..at + 1, DeliveryResult::Rejected(why));
        }
        accepted.into_iter().for_each(|range| observer.settle(range, DeliveryResult::Sent));
        Ok(list.len())
    }

    /// Gives the file its final name.
    pub fn publish(self) -> io::Result<()> {
        self.file.publish()
    }
}
