//! A trace with what every table asks of it, found out once.

use blkkin_aggregator::account::subject::Subject;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::SyscallEvent;

/// A trace, what its call was about, and how long its root took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) subject: Subject,
    pub(crate) time: DurationNs,
}

impl<'a> Seen<'a> {
    /// The call at its root, if it asked storage for something.
    pub(crate) fn storage_call(&self) -> Option<&'a SyscallEvent> {
        self.trace.call().filter(|_| self.subject == Subject::Storage)
    }
}

impl<'a> From<&'a Trace> for Seen<'a> {
    fn from(trace: &'a Trace) -> Self {
        Seen { trace, subject: Subject::of(trace), time: trace.duration() }
    }
}
