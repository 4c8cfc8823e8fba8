//! What became of what came in.

use blkkin_wire::event::LayerEvent;
use serde::{Deserialize, Serialize};

use crate::trace::{FragmentKind, Root, Trace};

/// Counters of the join, totals since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAccounts {
    /// System calls.
    pub calls: JoinAccount,
    /// Bios.
    pub bios: JoinAccount,
    /// Requests.
    pub requests: JoinAccount,
    /// Commits.
    pub commits: JoinAccount,
    /// Ends of requests between nodes.
    pub meetings: JoinAccount,
    /// Operations of daemons.
    pub operations: JoinAccount,
    /// Name events taken in.
    pub names: u64,
    /// Traces given out of which nothing is missing.
    pub traces_complete: u64,
    /// Traces given out that miss something.
    pub traces_incomplete: u64,
    /// Traces closed because too many were open.
    pub closed_for_room: u64,
    /// Events earlier than a watermark that had been announced: the source broke its word.
    pub behind_watermark: u64,
    /// Events that could not wait for the watermark, as too many did.
    pub ahead_of_window: u64,
    /// Batches that had been seen before, left out.
    pub batches_repeated: u64,
    /// Batches that never came, by the gaps in their numbers.
    pub batches_missed: u64,
    /// Batches of a start of a tracer that came after batches of another start of the same boot: a machine was cloned with its
    /// ids, or an agent sends what an earlier one had left.
    pub starts_interleaved: u64,
    /// Times that a source's wall clock was behind what it had been, by more than either was uncertain.
    pub clock_set_back: u64,
    /// Task names for which there was no room.
    pub names_dropped: u64,
}

/// received = joined + late + orphaned + pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAccount {
    /// Events taken in.
    pub received: u64,
    /// Given out in a trace with the root that they name.
    pub joined: u64,
    /// Given out without their root, which had been closed and given out before.
    pub late: u64,
    /// Given out without their root, whose record never came.
    pub orphaned: u64,
    /// Not given out yet.
    pub pending: u64,
}

impl JoinAccount {
    /// Whether the books agree.
    pub fn balances(&self) -> bool {
        self.received == self.joined + self.late + self.orphaned + self.pending
    }

    fn receive(&mut self) {
        self.received += 1;
        self.pending += 1;
    }

    fn settle(&mut self, count: usize, fate: Fate) {
        let count = count as u64;
        self.pending -= count;
        match fate {
            Fate::Joined => self.joined += count,
            Fate::Late => self.late += count,
            Fate::Orphaned => self.orphaned += count,
        }
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Joined,
    Late,
    Orphaned,
}

impl JoinAccounts {
    /// Whether all books agree.
    pub fn balances(&self) -> bool {
        self.all().iter().all(JoinAccount::balances)
    }

    /// Events that no trace was given out of.
    pub fn pending(&self) -> u64 {
        self.all().iter().map(|account| account.pending).sum()
    }

    fn all(&self) -> [JoinAccount; 6] {
        [self.calls, self.bios, self.requests, self.commits, self.meetings, self.operations]
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
            LayerEvent::Commit(_) => self.commits.receive(),
            LayerEvent::RpcEndpoint(_) => self.meetings.receive(),
            LayerEvent::DaemonSpan(_) => self.operations.receive(),
            LayerEvent::Task(_)
            | LayerEvent::File(_)
            | LayerEvent::Device(_)
            | LayerEvent::ProcessContext(_) => self.names += 1,
        }
    }

    pub(super) fn settle(&mut self, trace: &Trace) {
        let fate = match (&trace.root, trace.part) {
            (Root::Missing, FragmentKind::Late) => Fate::Late,
            (Root::Missing, FragmentKind::First) => Fate::Orphaned,
            _ => Fate::Joined,
        };
        match &trace.root {
            Root::Call(_) => self.calls.settle(1, fate),
            Root::Commit(_) => self.commits.settle(1, fate),
            Root::Operation(_) => self.operations.settle(1, fate),
            Root::Kernel | Root::Missing => {}
        }
        self.bios.settle(trace.bios.len(), fate);
        self.requests.settle(trace.requests.len(), fate);
        if !trace.meetings.is_empty() {
            self.meetings.settle(trace.meetings.len(), fate);
        }
        if trace.missing.nothing() {
            self.traces_complete += 1;
        } else {
            self.traces_incomplete += 1;
        }
    }
}
