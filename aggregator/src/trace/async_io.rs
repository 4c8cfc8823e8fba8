//! Asynchronous I/O within a trace: submissions of io_uring and libaio.
//!
//! *In*: a [`Trace`]. *Out*: its submissions, and the bios that each queued.
//!
//! A submission is a child of the call that submitted it. Without a call (a thread of the kernel
//! polls the ring) it is the root of its trace, and the trace's only submission.
//!
//! *Invariant*: a bio of a submission names it as its submitter, and the call counts the submission,
//! not the bio.

use std::sync::Arc;

use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::ids::SpanId;
use serde::{Deserialize, Serialize};

use crate::trace::Trace;
use crate::trace::interned_file::InternedFile;

/// A submission with the name of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AsyncIo {
    /// Event.
    pub event: AsyncIoEvent,
    /// File.
    pub file: Option<Arc<InternedFile>>,
}

impl Trace {
    /// Returns the submission with this span.
    pub fn async_io(&self, span: SpanId) -> Option<&AsyncIo> {
        self.async_ios.iter().find(|io| io.event.span == span)
    }

    /// Returns the submission that is the root.
    pub fn root_async_io(&self) -> Option<&AsyncIo> {
        self.async_io(self.root_span)
    }

    /// Returns the bios that a submission queued.
    pub fn bios_of(&self, io: &AsyncIoEvent) -> impl Iterator<Item = &BioEvent> {
        let submitter = Submitter::Span(io.span);
        self.bios.iter().filter(move |bio| bio.submitter == submitter)
    }
}
