//! What the join may be told.

use blkkin_wire::clock::DurationNs;
use serde::{Deserialize, Serialize};

/// Bounds of the join. Every one has a default that fits a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinConfig {
    /// A trace that gave no sign of life for so long, in event time, is closed with what it has. SCSI disks have a
    /// command timeout of 30 s by default (SD_TIMEOUT, drivers/scsi/sd.h): what takes longer is in trouble, and
    /// its rest still comes, under the same id.
    pub quiet_after: DurationNs,
    /// Most traces open at once; the one without a sign of life for longest is closed to make room. 65,536 is
    /// all of the tags of 64 queues of 1,024, and about 64 MiB.
    pub open_max: usize,
    /// How long after a commit's end its waiters are collected, in event time, before one is chosen to show it.
    /// Waiters are woken by the commit's end and return within scheduling latency: milliseconds, tens of them on
    /// a machine that has too much to do. Who returns later is linked all the same.
    pub commit_grace: DurationNs,
    /// Most commits remembered for calls that return late. A commit is made every few milliseconds at worst.
    pub commits_max: usize,
    /// Most file names kept, those used last. As many as one process may have open under a common limit
    /// (`LimitNOFILE=65536`), 16 MiB.
    pub files_max: usize,
    /// Most task names kept, those of ended tasks for `quiet_after`. A node's usual limit is 32,768 pids
    /// (kernel.pid_max) at once.
    pub tasks_max: usize,
    /// Most events held back because the watermark has not passed them. A tracer that drains its rings every few
    /// milliseconds at 500,000 events/s is some thousands ahead; this is half a second of them. Beyond it
    /// events go on without waiting, and that is counted.
    pub window_max: usize,
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
