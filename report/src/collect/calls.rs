//! Table of system calls.

use std::collections::BTreeMap;

pub use blkkin_aggregator::latency::io_kind::IoKind;
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

/// Counters of one system call on one kind of subject.
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
    rows: BTreeMap<(IoKind, SyscallId), CallRow>,
}

impl Calls {
    /// Adds the root call of a trace, if it has one.
    pub(crate) fn add<'a>(&mut self, classified: impl Into<ClassifiedTrace<'a>>) {
        let ClassifiedTrace { trace, subject, time } = classified.into();
        let Some(call) = trace.call() else { return };
        let row = self.rows.entry((subject, call.call)).or_default();
        row.times.record(time);
        row.errors +=
            u64::from(matches!(call.outcome, SyscallOutcome::Returned(ret) if errno_of(ret).is_some()));
        row.bytes = row.bytes.saturating_add(moved_bytes(call));
    }

    /// Returns the rows of `subject`, ordered by total time, the longest first.
    pub fn by_time(&self, subject: IoKind) -> Vec<(SyscallId, &CallRow)> {
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
