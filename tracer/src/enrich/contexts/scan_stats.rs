//! Counters of the context scanner.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use blkkin_wire::batch::SourceStats;

/// Counters, written by the scanner thread.
#[derive(Debug, Default)]
pub(crate) struct ScanStats {
    /// Live processes with a thread context.
    pub(crate) publishing: AtomicU64,
    /// Processes without access.
    pub(crate) denied: AtomicU64,
    /// Slots dropped because the map was full.
    pub(crate) no_room: AtomicU64,
    /// Live processes with a process context.
    pub(crate) resources_publishing: AtomicU64,
    /// Process contexts that could not be decoded.
    pub(crate) resources_malformed: AtomicU64,
    /// Reads of a process context that was being written at every attempt.
    pub(crate) resources_unread: AtomicU64,
    /// Process contexts dropped because a limit was reached.
    pub(crate) resources_no_room: AtomicU64,
}

impl ScanStats {
    /// Copies the counters into the source's counters, which have those of the kernel side.
    pub(crate) fn fill(&self, stats: &mut SourceStats) {
        stats.contexts_publishing = self.publishing.load(Relaxed);
        stats.contexts_denied = self.denied.load(Relaxed);
        stats.contexts_no_room += self.no_room.load(Relaxed);
        stats.resources_publishing = self.resources_publishing.load(Relaxed);
        stats.resources_malformed = self.resources_malformed.load(Relaxed);
        stats.resources_unread = self.resources_unread.load(Relaxed);
        stats.resources_no_room = self.resources_no_room.load(Relaxed);
    }
}
