//! Configuration of the join.

use blkkin_wire::clock::DurationNs;
use serde::{Deserialize, Serialize};

/// Limits of the join. Each has a default that suits a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinConfig {
    /// Inactivity timeout of a trace, in event time. A trace without a new event for this long is
    /// closed as it is. SCSI disks have a command timeout of 30 s by default (SD_TIMEOUT,
    /// drivers/scsi/sd.h). Parts that arrive later are emitted under the same trace id.
    pub quiet_after: DurationNs,
    /// Maximum number of open traces. Beyond it the trace that was inactive for longest is closed.
    /// 65,536 is the number of tags of 64 queues of 1,024, and takes about 64 MiB.
    pub open_max: usize,
    /// Time after a commit's end during which its waiters are collected, in event time, before one
    /// is chosen to show the commit. The commit's end wakes the waiters, and they return within
    /// scheduling latency: milliseconds, or tens of them on an overloaded machine. A call that
    /// returns later still gets a span link.
    pub commit_grace: DurationNs,
    /// Maximum number of commits retained for calls that return late. A journal commits every few
    /// milliseconds at worst.
    pub commits_max: usize,
    /// Maximum number of file names, the most recently used ones. One process may have this many
    /// files open under a common limit (`LimitNOFILE=65536`). They take 16 MiB.
    pub files_max: usize,
    /// Maximum number of task names. Those of ended tasks are retained for a time, while there is room
    /// ([`JoinConfig::name_retention`]). A node's usual limit is 32,768 pids (kernel.pid_max) at a
    /// time.
    pub tasks_max: usize,
    /// Maximum number of events that wait for the watermark. A tracer that drains its rings every
    /// few milliseconds at 500,000 events/s is some thousands ahead; this is half a second of them.
    /// Beyond it events are processed without waiting, and are counted.
    pub window_max: usize,
}

/// Time in which data that a task wrote is written back: dirty_expire_centisecs (30 s) and
/// dirty_writeback_centisecs (5 s) have passed, and a slow device has had a minute.
const WRITEBACK: DurationNs = DurationNs(120_000_000_000);

impl JoinConfig {
    /// Returns the time for which the names of an ended task are retained: events that are under way
    /// refer to it, and the origins of the data that it wrote.
    pub fn name_retention(&self) -> DurationNs {
        self.quiet_after.max(WRITEBACK)
    }
}

impl Default for JoinConfig {
    fn default() -> Self {
        JoinConfig {
            quiet_after: DurationNs(30_000_000_000),
            open_max: 65_536,
            commit_grace: DurationNs(100_000_000),
            commits_max: 4_096,
            files_max: 65_536,
            tasks_max: 65_536,
            window_max: 262_144,
        }
    }
}
