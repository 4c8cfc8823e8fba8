//! Reconciliation of the kernel side's counters with the records that the reader decoded.

use blkkin_probe_abi::counters as slot;
use blkkin_probe_abi::record as raw;
use blkkin_wire::async_io::AsyncIoOutcome;
use blkkin_wire::batch::{RecordStats, SourceStats};
use blkkin_wire::crash_report::RecordCounts;
use blkkin_wire::event::{Captured, LayerEvent, SyscallOutcome};

/// Counters of decoded records.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeStats {
    by_tag: [u64; slot::TAGS],
    /// Records of asynchronous I/O, whose tag has no slot in `by_tag`.
    async_ios: u64,
    incomplete: u64,
    files_truncated: u64,
    faults: u64,
    dirty: u64,
    /// Calls that the path filter dropped after they were decoded.
    pub(crate) calls_excluded: u64,
    /// Entries that could not be decoded.
    pub malformed: u64,
}

impl DecodeStats {
    /// Returns the number of decoded records by kind.
    pub fn counts(&self) -> RecordCounts {
        let stats = reconcile(&[0; slot::COUNTERS], self, 0);
        let kinds = [stats.calls, stats.bios, stats.requests, stats.commits, stats.names];
        RecordCounts::from_array(kinds.map(|kind| kind.recorded))
    }

    /// Combines the counters of dirty pages, which are not part of the source's.
    pub fn dirty_pages(&self, kernel: &[u64; slot::COUNTERS]) -> RecordStats {
        let (fired, dropped) = (kernel[slot::DIRTY_FIRED], kernel[slot::DIRTY_DROPPED]);
        RecordStats { fired, recorded: self.dirty, dropped }
    }

    /// Counts a record whose event is the last of `events`.
    pub fn count(&mut self, tag: u8, events: &[LayerEvent]) {
        if let Some(count) = self.by_tag.get_mut(usize::from(tag)) {
            *count += 1;
        }
        self.async_ios += u64::from(tag == raw::TAG_ASYNC_IO);
        match events.last() {
            Some(LayerEvent::AsyncIo(io)) => {
                self.incomplete += u64::from(io.outcome == AsyncIoOutcome::NoEnd);
            }
            Some(LayerEvent::Syscall(call)) => {
                self.incomplete += u64::from(call.outcome == SyscallOutcome::NoExit)
            }
            Some(LayerEvent::File(file)) => {
                self.files_truncated += u64::from(file.captured == Captured::Truncated)
            }
            Some(LayerEvent::Fault(_)) => self.faults += 1,
            Some(LayerEvent::Dirty(_)) => self.dirty += 1,
            _ => {}
        }
    }
}

/// Combines the kernel side's counters and the reader's into those of the source.
pub fn reconcile(
    kernel: &[u64; slot::COUNTERS],
    recorded: &DecodeStats,
    recursion_misses: u64,
) -> SourceStats {
    let stats = |tags: &[u8]| {
        let sum = |of: &dyn Fn(usize) -> u64| tags.iter().map(|tag| of(usize::from(*tag))).sum();
        RecordStats {
            fired: sum(&|tag| kernel[slot::FIRED + tag]),
            recorded: sum(&|tag| recorded.by_tag[tag]),
            dropped: sum(&|tag| kernel[slot::DROPPED + tag]),
        }
    };
    let calls = stats(&[raw::TAG_SYSCALL]);
    SourceStats {
        // A submission of asynchronous I/O counts as a call: it replaces one.
        calls: RecordStats {
            fired: calls.fired + kernel[slot::ASYNC_FIRED],
            recorded: calls.recorded + recorded.async_ios,
            dropped: calls.dropped + kernel[slot::ASYNC_DROPPED],
        },
        bios: stats(&[raw::TAG_BIO, raw::TAG_BIO_REQUEST]),
        requests: stats(&[raw::TAG_REQUEST, raw::TAG_BIO_REQUEST]),
        commits: stats(&[raw::TAG_COMMIT]),
        names: stats(&[raw::TAG_TASK, raw::TAG_FILE]),
        calls_entered: kernel[slot::SYSCALLS_ENTERED] + kernel[slot::ASYNC_SUBMITTED],
        calls_filtered: kernel[slot::SYSCALLS_FILTERED] + kernel[slot::ASYNC_FILTERED],
        calls_unsampled: kernel[slot::CALLS_UNSAMPLED],
        kept_slow: kernel[slot::KEPT_SLOW],
        kept_failed: kernel[slot::KEPT_FAILED],
        kept_large: kernel[slot::KEPT_LARGE],
        calls_excluded: recorded.calls_excluded,
        calls_incomplete: recorded.incomplete,
        calls_truncated: kernel[slot::SYSCALLS_TRUNCATED],
        files_truncated: recorded.files_truncated,
        calls_compat: kernel[slot::SYSCALLS_COMPAT],
        // Those of operations that were deferred and dropped are as if they had not been queued.
        bios_queued: kernel[slot::BIOS_QUEUED].saturating_sub(kernel[slot::BIOS_UNSAMPLED]),
        requests_started: kernel[slot::REQUESTS_STARTED]
            .saturating_sub(kernel[slot::REQUESTS_MERGED] + kernel[slot::REQUESTS_UNSAMPLED]),
        requests_merged: kernel[slot::REQUESTS_MERGED],
        ends_missed: kernel[slot::BIOS_STALE] + kernel[slot::REQUESTS_STALE] + kernel[slot::DEFERRED_EXPIRED],
        untracked: [
            slot::BIOS_UNTRACKED,
            slot::REQUESTS_UNTRACKED,
            slot::ASYNC_UNTRACKED,
            slot::DEFERRED_UNTRACKED,
        ]
        .iter()
        .map(|counter| kernel[*counter])
        .sum(),
        tasks_missed: kernel[slot::TASKS_MISSED],
        recursion_misses,
        malformed: recorded.malformed,
        requests_foreign: kernel[slot::REQUESTS_FOREIGN],
        paths_failed: kernel[slot::PATHS_FAILED],
        names_displaced: kernel[slot::NAMES_DISPLACED],
        // The agent's flight recorder counts them.
        events_overwritten: 0,
        walk_overflow: kernel[slot::WALK_OVERFLOW],
        flushes_served: kernel[slot::FLUSHES_SERVED],
        flush_overflow: kernel[slot::FLUSH_OVERFLOW],
        contexts_faulted: kernel[slot::CONTEXTS_FAULTED],
        contexts_unread: kernel[slot::CONTEXTS_UNREAD],
        contexts_invalid: kernel[slot::CONTEXTS_INVALID],
        // Filled in by the context scanner (`scan_stats.rs`).
        contexts_publishing: 0,
        contexts_denied: 0,
        // The scanner adds its own.
        contexts_no_room: kernel[slot::CONTEXTS_NO_ROOM],
        resources_publishing: 0,
        resources_malformed: 0,
        resources_unread: 0,
        resources_no_room: 0,
        attributes_cut: kernel[slot::ATTRIBUTES_TOO_LONG],
        attributes_unread: kernel[slot::ATTRIBUTES_UNREAD],
        page_origins: RecordStats {
            fired: kernel[slot::PAGES_FIRED] + kernel[slot::DIRTY_FIRED],
            // `page_origins` adds the records of bios, and sets the two counters below.
            recorded: recorded.dirty,
            dropped: kernel[slot::PAGES_DROPPED] + kernel[slot::DIRTY_DROPPED],
        },
        dirty_writes_evicted: 0,
        dirty_bytes: 0,
        faults: RecordStats {
            fired: kernel[slot::FAULTS_FIRED],
            recorded: recorded.faults,
            dropped: kernel[slot::FAULTS_DROPPED],
        },
        faults_filtered: kernel[slot::FAULTS_FILTERED],
        waits: RecordStats {
            fired: kernel[slot::WAITS_FIRED],
            // The reader of waits sets it.
            recorded: 0,
            dropped: kernel[slot::WAITS_DROPPED],
        },
        sleeps: RecordStats {
            fired: kernel[slot::SLEEPS_FIRED],
            // The reader of sleeps sets it.
            recorded: 0,
            dropped: kernel[slot::SLEEPS_DROPPED],
        },
    }
}
