//! Losses of a tracer start that crashed, as the next start determines them.
//!
//! *Invariant*: fired = persisted + lost, for each kind. An unknown loss is reported as unknown,
//! not as 0.

use crate::event::LayerEvent;
use crate::ids::StartEpoch;

/// Record counts by kind. A pair counts as a bio and as a request; names are task and file events.
/// Events that user space adds (device names) are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// System calls and submissions of asynchronous I/O.
    pub calls: u64,
    /// Bios.
    pub bios: u64,
    /// Block requests.
    pub requests: u64,
    /// Journal commits.
    pub commits: u64,
    /// Task and file events.
    pub names: u64,
}

impl RecordCounts {
    /// Returns the counts in a fixed order.
    pub fn to_array(&self) -> [u64; 5] {
        [self.calls, self.bios, self.requests, self.commits, self.names]
    }

    /// Creates counts from the order of [`RecordCounts::to_array`].
    pub fn from_array([calls, bios, requests, commits, names]: [u64; 5]) -> RecordCounts {
        RecordCounts { calls, bios, requests, commits, names }
    }

    /// Counts `events` by kind.
    pub fn of(events: &[LayerEvent]) -> RecordCounts {
        let mut counts = RecordCounts::default();
        for event in events {
            match event {
                LayerEvent::Syscall(_) | LayerEvent::AsyncIo(_) => counts.calls += 1,
                LayerEvent::Bio(_) => counts.bios += 1,
                LayerEvent::Request(_) => counts.requests += 1,
                LayerEvent::Pair(_) => {
                    counts.bios += 1;
                    counts.requests += 1;
                }
                LayerEvent::Commit(_) => counts.commits += 1,
                LayerEvent::Task(_) | LayerEvent::File(_) => counts.names += 1,
                // User space reads device names, process contexts and virtual machines; no eBPF program emits links
                // or daemon spans. A page origin is a part of its bio's record. Page faults are not
                // counted by kind.
                LayerEvent::Device(_)
                | LayerEvent::RpcEndpoint(_)
                | LayerEvent::DaemonSpan(_)
                | LayerEvent::ProcessContext(_)
                | LayerEvent::VirtualMachine(_)
                | LayerEvent::PageOrigin(_)
                | LayerEvent::Fault(_)
                | LayerEvent::Dirty(_) => {}
            }
        }
        counts
    }

    /// Returns the sum over all kinds.
    pub fn total(&self) -> u64 {
        self.to_array().iter().sum()
    }

    /// Adds kind by kind.
    pub fn saturating_add(&self, other: &RecordCounts) -> RecordCounts {
        self.zip_with(other, u64::saturating_add)
    }

    /// Subtracts kind by kind, saturating at 0.
    pub fn saturating_sub(&self, other: &RecordCounts) -> RecordCounts {
        self.zip_with(other, u64::saturating_sub)
    }

    fn zip_with(&self, other: &RecordCounts, op: fn(u64, u64) -> u64) -> RecordCounts {
        let (own, other) = (self.to_array(), other.to_array());
        RecordCounts::from_array(std::array::from_fn(|kind| op(own[kind], other[kind])))
    }
}

/// A tracer start that crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashedRun {
    /// Epoch of the start; none if unknown.
    pub epoch: Option<StartEpoch>,
    /// Fate of its records; none if unknown.
    pub losses: Option<LossReport>,
}

/// Record counts of a crashed start by fate: fired = persisted + lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossReport {
    /// Records due, counted by the eBPF programs.
    pub fired: RecordCounts,
    /// Records dropped because the ring was full, counted by the eBPF programs.
    pub dropped: RecordCounts,
    /// Records read from the rings. Records neither dropped nor read were in the rings at the
    /// crash.
    pub read: RecordCounts,
    /// Records in the topic or in the spool.
    pub persisted: RecordCounts,
    /// Records not persisted that were sent without acknowledgement. The topic may hold them.
    pub unacknowledged: RecordCounts,
}

impl LossReport {
    /// Returns the lost records. Of these, [`LossReport::unacknowledged`] may be in the topic.
    pub fn lost(&self) -> RecordCounts {
        self.fired.saturating_sub(&self.persisted)
    }
}
