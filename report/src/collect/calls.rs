//! Table of system calls and of asynchronous I/O.

use std::collections::BTreeMap;

pub use blkkin_aggregator::latency::io_kind::IoKind;
use blkkin_aggregator::latency::io_kind::is_storage;
use blkkin_aggregator::trace::async_io::AsyncIo;
use blkkin_wire::event::{SyscallEvent, SyscallOutcome};
use blkkin_wire::syscalls::{SyscallId, errno_of};

use super::classified::ClassifiedTrace;
use super::latency::Latency;

/// Returns the bytes of file data that a call transferred.
pub fn moved_bytes(call: &SyscallEvent) -> u64 {
    match call.outcome {
        SyscallOutcome::Returned(ret) => call.call.spec().bytes(ret).unwrap_or(0),
        SyscallOutcome::NoExit => 0,
    }
}

/// Subject of a row: a system call, or an operation of asynchronous I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// System call.
    Call(SyscallId),
    /// Operation of io_uring or libaio, by name. Its time overlaps with that of calls.
    AsyncIo(&'static str),
}

impl Operation {
    /// Returns the printed name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Call(call) => call.name(),
            Operation::AsyncIo(name) => name,
        }
    }
}

/// Counters of one operation on one kind of subject.
#[derive(Clone, Debug, Default)]
pub struct CallRow {
    /// Durations, one for each call.
    pub times: Latency,
    /// Failed calls.
    pub errors: u64,
    /// Bytes transferred.
    pub bytes: u64,
}

/// Rows of all system calls, up to two for each entry of the system call table.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    rows: BTreeMap<(IoKind, Operation), CallRow>,
}

impl Calls {
    /// Adds the root call of a trace, if it has one.
    pub(crate) fn add<'a>(&mut self, classified: impl Into<ClassifiedTrace<'a>>) {
        let ClassifiedTrace { trace, subject, time } = classified.into();
        trace.async_ios.iter().for_each(|io| self.add_async_io(io));
        let Some(call) = trace.call() else { return };
        let row = self.rows.entry((subject, Operation::Call(call.call))).or_default();
        row.times.record(time);
        row.errors +=
            u64::from(matches!(call.outcome, SyscallOutcome::Returned(ret) if errno_of(ret).is_some()));
        row.bytes = row.bytes.saturating_add(moved_bytes(call));
    }

    fn add_async_io(&mut self, io: &AsyncIo) {
        let (event, on_storage) = (&io.event, io.file.as_deref().is_none_or(|file| is_storage(file)));
        let subject = if on_storage { IoKind::Storage } else { IoKind::NotStorage };
        let row = self.rows.entry((subject, Operation::AsyncIo(event.operation().name))).or_default();
        row.times.record(event.end.since(event.start));
        row.errors += u64::from(event.errno().is_some());
        row.bytes = row.bytes.saturating_add(event.bytes().unwrap_or(0).into());
    }

    /// Returns the rows of `subject`, ordered by total time, the longest first.
    pub fn by_time(&self, subject: IoKind) -> Vec<(Operation, &CallRow)> {
        let rows = self.rows.iter().filter(|((of, _), _)| *of == subject);
        let mut rows: Vec<_> = rows.map(|((_, call), row)| (*call, row)).collect();
        rows.sort_by_key(|(call, row)| (std::cmp::Reverse(row.times.total()), *call));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{call, on_file, with_call};

    #[test]
    fn calls_on_pipes_are_counted_separately() {
        let mut calls = Calls::default();
        calls.add(&on_file(call(1, "read", 1_000_000), "pipe:[1]", 0o010_600));
        calls.add(&on_file(call(2, "read", 10), "/a", 0o100_644));
        calls.add(&call(3, "read", 20));
        let count = |subject| calls.by_time(subject).iter().map(|(_, row)| row.times.count()).sum::<u64>();
        assert_eq!((count(IoKind::Storage), count(IoKind::NotStorage)), (2, 1));
    }

    #[test]
    fn interrupted_calls_are_not_errors() {
        let mut calls = Calls::default();
        for ret in [-512, -516, -4, 0] {
            let mut trace = call(1, "read", 10);
            with_call(&mut trace, |call| call.outcome = SyscallOutcome::Returned(ret));
            calls.add(&trace);
        }
        let rows = calls.by_time(IoKind::Storage);
        assert_eq!((rows[0].1.times.count(), rows[0].1.errors, rows[0].1.bytes), (4, 1, 0));
    }

    #[test]
    fn rows_are_ordered_by_total_time() {
        let mut calls = Calls::default();
        for (name, time) in [("close", 5), ("fsync", 50), ("read", 20), ("close", 30)] {
            calls.add(&call(1, name, time));
        }
        let names: Vec<&str> = calls.by_time(IoKind::Storage).iter().map(|(call, _)| call.name()).collect();
        assert_eq!(names, ["fsync", "close", "read"]);
    }
}
