//! A trace with the classification that several tables need, computed once.

use blkkin_aggregator::latency::io_kind::IoKind;
use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::SyscallEvent;

/// A trace, the kind of object that its call used, and the duration of its root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassifiedTrace<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) subject: IoKind,
    pub(crate) time: DurationNs,
}

impl<'a> ClassifiedTrace<'a> {
    /// Returns whether the root is a storage operation: a call, or asynchronous I/O.
    pub(crate) fn is_storage_operation(&self) -> bool {
        self.storage_call().is_some() || matches!(self.trace.root, Root::AsyncIo)
    }

    /// Returns the root call if it is a storage call.
    pub(crate) fn storage_call(&self) -> Option<&'a SyscallEvent> {
        self.trace.call().filter(|_| self.subject == IoKind::Storage)
    }
}

impl<'a> From<&'a Trace> for ClassifiedTrace<'a> {
    fn from(trace: &'a Trace) -> Self {
        ClassifiedTrace { trace, subject: IoKind::of(trace), time: trace.duration() }
    }
}
