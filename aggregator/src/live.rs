//! What goes on now, in numbers: how many, how long, how much and how many failed, by node, layer, device and operation.
//!
//! *In*: traces as they are given out. *Out*: [`Row`]s for a monitoring system, each with a trace to look at for every range of
//! times. *Invariant*: at most [`SERIES_MAX`] rows; what finds none left is counted in one for all others, so the sums are
//! those of all traces.
//!
//! It is not state: whoever takes a partition over begins at zero, as counters may, and counts what is read again after a
//! crash again. Traces are exact; these are for watching.
//!
//! *Rejected*: a row for each path, program or call (their number has no bound), quantiles (those of many members cannot be
//! put together; ranges can).

use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::SyscallOutcome;
use blkkin_wire::ids::{DeviceId, NodeId, TraceId};
use blkkin_wire::syscalls::{SyscallClass, errno_of};

use crate::account::subject::Subject;
use crate::trace::{Root, Trace};

/// Rows of all nodes together: some 30 of a node that has four devices. A row takes 900 bytes.
pub const SERIES_MAX: usize = 4_096;

/// Upper ends of the ranges of times, ns; beyond the last there is one more.
pub const BOUNDS: [u64; 19] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

const RANGES: usize = BOUNDS.len() + 1;

/// Where in the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// System calls on storage; the device is the one that their file's file system is on.
    Call,
    /// Journal commits.
    Commit,
    /// Bios.
    Bio,
    /// Block requests.
    Request,
}

impl Layer {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Call => "call",
            Layer::Commit => "commit",
            Layer::Bio => "bio",
            Layer::Request => "request",
        }
    }
}

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Series {
    /// The machine.
    pub node: NodeId,
    /// Where in the stack.
    pub layer: Layer,
    /// Of the kernel of that machine; none where a call's file is not known.
    pub device: Option<DeviceId>,
    /// What was asked for.
    pub operation: &'static str,
}

/// What happened of one kind.
#[derive(Clone, Debug)]
pub struct Row {
    /// So many took no longer than each of [`BOUNDS`], and longer than the one before.
    pub ranges: [u64; RANGES],
    /// A trace of each range that has any: the last.
    examples: [(TraceId, DurationNs); RANGES],
    /// All times together.
    pub time: DurationNs,
    /// Bytes moved.
    pub bytes: u64,
    /// How many failed.
    pub errors: u64,
}

impl Default for Row {
    fn default() -> Row {
        let nothing = (TraceId(0), DurationNs(0));
        let (ranges, examples) = ([0; RANGES], [nothing; RANGES]);
        Row { ranges, examples, time: DurationNs(0), bytes: 0, errors: 0 }
    }
}

impl Row {
    /// The last trace whose time lies in a range, and that time.
    pub fn example(&self, range: usize) -> Option<(TraceId, DurationNs)> {
        (self.ranges.get(range).copied()? > 0).then(|| self.examples[range])
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.ranges.iter().sum()
    }

    fn note(&mut self, trace: TraceId, time: DurationNs, bytes: u64, failed: bool) {
        let range = BOUNDS.partition_point(|bound| *bound < time.0);
        self.ranges[range] += 1;
        self.examples[range] = (trace, time);
        self.time = DurationNs(self.time.0.saturating_add(time.0));
        self.bytes = self.bytes.saturating_add(bytes);
        self.errors += u64::from(failed);
    }
}

/// All rows.
#[derive(Clone, Debug, Default)]
pub struct Live {
    rows: BTreeMap<Series, Row>,
    names: BTreeMap<(NodeId, DeviceId), Arc<str>>,
    others: Row,
}

impl Live {
    /// Takes a trace in.
    pub fn note(&mut self, trace: &Trace) {
        let id = trace.id;
        match &trace.root {
            Root::Call(call) if Subject::of(trace) == Subject::Storage => {
                let spec = call.call.spec();
                let (moved, failed) = match call.outcome {
                    SyscallOutcome::Returned(ret) => (spec.bytes(ret).unwrap_or(0), errno_of(ret).is_some()),
                    SyscallOutcome::NoExit => (0, false),
                };
                let device = call.file.map(|file| file.file.device);
                self.row(trace, Layer::Call, device, operation(spec.class)).note(
                    id,
                    trace.duration(),
                    moved,
                    failed,
                );
            }
            Root::Commit(commit) => {
                let row = self.row(trace, Layer::Commit, Some(commit.device), "commit");
                row.note(id, trace.duration(), 0, false);
            }
            Root::Call(_) | Root::Operation(_) | Root::Kernel | Root::Missing => {}
        }
        for bio in &trace.bios {
            let row = self.row(trace, Layer::Bio, Some(bio.device), bio.op.name_for(bio.bytes));
            row.note(id, bio.end.since(bio.queue), bio.bytes.into(), !bio.status.is_ok());
        }
        for request in &trace.requests {
            let operation = request.op.name_for(request.bytes);
            let row = self.row(trace, Layer::Request, Some(request.device), operation);
            let time = request.complete.since(request.start);
            row.note(id, time, request.bytes.into(), !request.status.is_ok());
        }
    }

    /// Each row, with its device's name, or its numbers where that is not known.
    pub fn rows(&self) -> impl Iterator<Item = (Series, String, &Row)> {
        self.rows.iter().map(|(series, row)| {
            let device = series.device.map_or_else(
                || "unknown".to_owned(),
                |device| {
                    let name = self.names.get(&(series.node, device));
                    name.map_or_else(|| device.to_string(), |name| name.to_string())
                },
            );
            (*series, device, row)
        })
    }

    /// What had no row left.
    pub fn others(&self) -> &Row {
        &self.others
    }

    fn row(
        &mut self,
        trace: &Trace,
        layer: Layer,
        device: Option<DeviceId>,
        operation: &'static str,
    ) -> &mut Row {
        let series = Series { node: trace.source.node, layer, device, operation };
        if !self.rows.contains_key(&series) {
            if self.rows.len() >= SERIES_MAX {
                return &mut self.others;
            }
            let name = device.and_then(|device| Some((device, trace.names.devices.0.get(&device)?)));
            if let Some((device, name)) = name {
                self.names.insert((series.node, device), Arc::clone(name));
            }
        }
        self.rows.entry(series).or_default()
    }
}

/// Few words for many calls.
fn operation(class: SyscallClass) -> &'static str {
    match class {
        SyscallClass::Read => "read",
        SyscallClass::Write => "write",
        SyscallClass::Sync => "sync",
        SyscallClass::Async => "async",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_the_range_that_ends_at_it() {
        let mut row = Row::default();
        for (n, time) in [0, 10_000, 10_001, 10_000_000_000, 10_000_000_001].into_iter().enumerate() {
            row.note(TraceId(n as u128), DurationNs(time), 512, n == 2);
        }
        assert_eq!((row.ranges[0], row.ranges[1], row.ranges[18], row.ranges[19]), (2, 1, 1, 1));
        assert_eq!((row.count(), row.bytes, row.errors), (5, 2_560, 1));
        assert_eq!(row.example(0), Some((TraceId(1), DurationNs(10_000))), "the last");
        assert_eq!(row.example(2), None);
        assert_eq!(row.example(RANGES), None);
    }

    #[test]
    fn a_row_takes_what_the_documentation_says() {
        assert!(size_of::<Row>() <= 900, "{}", size_of::<Row>());
    }
}
