//! Counters of the join.

use blkkin_wire::event::LayerEvent;
use serde::{Deserialize, Serialize};

use crate::trace::{FragmentKind, Root, Trace};

/// Counters of the join since it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinStats {
    /// System calls.
    pub calls: EventStats,
    /// Bios.
    pub bios: EventStats,
    /// Block requests.
    pub requests: EventStats,
    /// Submissions of asynchronous I/O.
    pub async_ios: EventStats,
    /// Journal commits.
    pub commits: EventStats,
    /// Page faults.
    pub faults: EventStats,
    /// Endpoints of RPCs between nodes.
    pub rpc_endpoints: EventStats,
    /// Daemon spans.
    pub daemon_spans: EventStats,
    /// Origins of bios' pages.
    pub page_origins: EventStats,
    /// Name events received.
    pub names: u64,
    /// Traces emitted complete.
    pub traces_complete: u64,
    /// Traces emitted with parts missing.
    pub traces_incomplete: u64,
    /// Traces closed early because too many were open.
    pub closed_for_room: u64,
    /// Events earlier than a watermark that had been announced. The source violated its watermark.
    pub behind_watermark: u64,
    /// Events processed before the watermark passed them, because the window was full.
    pub ahead_of_window: u64,
    /// Duplicate batches, dropped.
    pub batches_repeated: u64,
    /// Batches that never arrived, by the gaps in their numbers.
    pub batches_missed: u64,
    /// Batches of a tracer's start that arrived after batches of another start of the same boot.
    /// Either a machine was cloned with its ids, or an agent sends the spool of an earlier one.
    pub starts_interleaved: u64,
    /// Batches of a source that two agents claim, each joined alone.
    pub batches_contested: u64,
    /// Times that a source's wall clock went back by more than the uncertainty of both readings.
    pub clock_set_back: u64,
    /// Names of tasks and devices dropped because the table was full.
    pub names_dropped: u64,
    /// Sources finished and forgotten because there were too many: their later events have no names
    /// and no open traces.
    pub sources_evicted: u64,
}

/// Counters of one kind of event: received = joined + late + orphaned + pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStats {
    /// Events received.
    pub received: u64,
    /// Events emitted in a trace with the root that they name.
    pub joined: u64,
    /// Events emitted without their root, which had been emitted before.
    pub late: u64,
    /// Events emitted without their root, whose record never arrived.
    pub orphaned: u64,
    /// Events not emitted yet.
    pub pending: u64,
}

impl EventStats {
    /// Returns whether received = joined + late + orphaned + pending.
    pub fn balances(&self) -> bool {
        self.received == self.joined + self.late + self.orphaned + self.pending
    }

    fn receive(&mut self) {
        self.received += 1;
        self.pending += 1;
    }

    fn settle(&mut self, count: usize, outcome: Outcome) {
        let count = count as u64;
        self.pending -= count;
        match outcome {
            Outcome::Joined => self.joined += count,
            Outcome::Late => self.late += count,
            Outcome::Orphaned => self.orphaned += count,
        }
    }
}

#[derive(Clone, Copy)]
enum Outcome {
    Joined,
    Late,
    Orphaned,
}

impl JoinStats {
    /// Returns whether the counters of all kinds balance.
    pub fn balances(&self) -> bool {
        self.all().iter().all(EventStats::balances)
    }

    /// Returns the number of events that are not emitted yet.
    pub fn pending(&self) -> u64 {
        self.all().iter().map(|event_stats| event_stats.pending).sum()
    }

    fn all(&self) -> [EventStats; 9] {
        let JoinStats {
            calls,
            bios,
            requests,
            async_ios,
            commits,
            faults,
            rpc_endpoints,
            daemon_spans,
            page_origins,
            ..
        } = *self;
        [calls, bios, requests, async_ios, commits, faults, rpc_endpoints, daemon_spans, page_origins]
    }

    pub(super) fn receive(&mut self, event: &LayerEvent) {
        match event {
            LayerEvent::Syscall(_) => self.calls.receive(),
            LayerEvent::Bio(_) => self.bios.receive(),
            LayerEvent::Request(_) => self.requests.receive(),
            LayerEvent::Pair(_) => {
                self.bios.receive();
                self.requests.receive();
            }
            LayerEvent::AsyncIo(_) => self.async_ios.receive(),
            LayerEvent::Commit(_) => self.commits.receive(),
            LayerEvent::Fault(_) => self.faults.receive(),
            // No trace has them.
            LayerEvent::Dirty(_) => {}
            LayerEvent::RpcEndpoint(_) => self.rpc_endpoints.receive(),
            LayerEvent::DaemonSpan(_) => self.daemon_spans.receive(),
            LayerEvent::PageOrigin(_) => self.page_origins.receive(),
            LayerEvent::Task(_)
            | LayerEvent::File(_)
            | LayerEvent::Device(_)
            | LayerEvent::ProcessContext(_)
            | LayerEvent::VirtualMachine(_) => self.names += 1,
        }
    }

    pub(super) fn settle(&mut self, trace: &Trace) {
        let outcome = match (&trace.root, trace.kind) {
            (Root::Missing, FragmentKind::Late) => Outcome::Late,
            (Root::Missing, FragmentKind::First) => Outcome::Orphaned,
            _ => Outcome::Joined,
        };
        match &trace.root {
            Root::Call(_) => self.calls.settle(1, outcome),
            Root::Commit(_) => self.commits.settle(1, outcome),
            Root::Fault(_) => self.faults.settle(1, outcome),
            Root::DaemonSpan(_) => self.daemon_spans.settle(1, outcome),
            Root::AsyncIo | Root::Kernel | Root::Missing => {}
        }
        if !trace.async_ios.is_empty() {
            self.async_ios.settle(trace.async_ios.len(), outcome);
        }
        self.bios.settle(trace.bios.len(), outcome);
        self.requests.settle(trace.requests.len(), outcome);
        if !trace.rpc_endpoints.is_empty() {
            self.rpc_endpoints.settle(trace.rpc_endpoints.len(), outcome);
        }
        if !trace.page_origins.is_empty() {
            self.page_origins.settle(trace.page_origins.len(), outcome);
        }
        if trace.has_only_page_origins() {
            return;
        }
        if trace.incomplete.is_empty() {
            self.traces_complete += 1;
        } else {
            self.traces_incomplete += 1;
        }
    }
}
