//! Agents that send at the same time as one node: a cloned machine, or two agents on one machine.
//!
//! *In*: the log's time and the watermark of each batch. *Out*: the time in which a source was
//! *live*: its watermark advanced as fast as the log's time. Two sources of one node that were live
//! at the same time are two agents.
//!
//! *Invariant*: no clocks of two machines are compared, only how far each advanced.
//!
//! A batch of an earlier start that arrives between those of the current one proves nothing: an
//! agent sends the spool of a killed one so. But a spool is sent as fast as the network allows, and
//! what a killed agent had sent ends where its successor begins, within [`WINDOW`].
//!
//! *Rejected*: overlapping times of two sources. After a clone, the machines' monotonic clocks
//! differ by the time between their resumptions, and a wall clock may be set back between two
//! starts of one agent.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

/// Shortest time over which two clocks are compared, in ms: ten batches of an idle agent.
pub(super) const WINDOW: u64 = 10_000;

/// Longest time between two batches of a live agent, in ms. An idle one sends a batch each second.
const DELAY_MAX: u64 = 3_000;

/// Recent progress of a source.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct AgentLiveness {
    /// Begin of the current window.
    begin: Option<(LogTime, MonotonicNs)>,
    /// First and last time at which the source was live without interruption.
    live: Option<(LogTime, LogTime)>,
}

impl AgentLiveness {
    /// Adds a batch. Returns true if the source was live in a window that ends with it.
    pub(super) fn receive(&mut self, now: LogTime, watermark: MonotonicNs) -> bool {
        let (since, from) = *self.begin.get_or_insert((now, watermark));
        let elapsed = now.0.saturating_sub(since.0);
        if elapsed < WINDOW {
            return false;
        }
        let advanced = watermark.0.saturating_sub(from.0) / 1_000_000;
        self.begin = Some((now, watermark));
        // A longer silence is no window of a live agent: the mean of a burst and of a pause proves nothing.
        let is_live = elapsed <= WINDOW + DELAY_MAX && (elapsed / 2..=elapsed * 2).contains(&advanced);
        let live_since = self.live.filter(|(_, until)| *until == since).map_or(since, |(since, _)| since);
        self.live = if is_live { Some((live_since, now)) } else { None };
        is_live
    }

    /// Returns how long both were live at the same time, in ms.
    pub(super) fn overlap(&self, other: &AgentLiveness) -> u64 {
        let (Some((since, until)), Some((other_since, other_until))) = (self.live, other.live) else {
            return 0;
        };
        until.min(other_until).0.saturating_sub(since.max(other_since).0)
    }

    /// Returns how long the source was live without interruption, in ms.
    pub(super) fn duration(&self) -> u64 {
        self.live.map_or(0, |(since, until)| until.0.saturating_sub(since.0))
    }
}
