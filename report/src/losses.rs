//! Losses: counters of what is missing from the report, printed at its end.
//!
//! The counters are plain numbers, so that the report depends on no exporter. `From<&SourceStats>`
//! fills in the tracer's counters, which travel with the events.

use blkkin_wire::batch::{RecordStats, SourceStats};

/// Loss counters of every stage between a kernel hook and the reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that programs were due to write: one for each ended call, bio, request and commit,
    /// and for each new name.
    pub fired: u64,
    /// Records that reached user space.
    pub recorded: u64,
    /// Call records dropped because a ring was full.
    pub calls_dropped: u64,
    /// Bio records dropped because a ring was full.
    pub bios_dropped: u64,
    /// Request records dropped because a ring was full.
    pub requests_dropped: u64,
    /// Commit records dropped because a ring was full.
    pub commits_dropped: u64,
    /// Name records dropped because a ring was full.
    pub names_dropped: u64,
    /// Page fault records dropped because a ring was full.
    pub faults_dropped: u64,
    /// Records of what calls waited for, dropped because a ring was full.
    pub waits_dropped: u64,
    /// Records of where calls slept, dropped because a ring was full.
    pub sleeps_dropped: u64,
    /// Bios and requests whose end no program observed.
    pub ends_missed: u64,
    /// Bios and requests for which an eBPF table was full.
    pub untracked: u64,
    /// Tasks that should have been traced and were not.
    pub tasks_missed: u64,
    /// Program runs that the kernel skipped.
    pub recursion_misses: u64,
    /// Records that could not be decoded.
    pub malformed: u64,
    /// Requests with more bios than the program walks.
    pub walk_overflow: u64,
    /// Flushes that served more requests than the program examines.
    pub flush_overflow: u64,
    /// Files whose path could not be read, counted at each attempt.
    pub paths_failed: u64,
    /// Requests and replies of NBD clients that were not recorded.
    pub nbd_messages: u64,
    /// Events of USDT probes dropped because a ring was full.
    pub usdt_events: u64,
    /// Batches that did not reach the join.
    pub batches_missed: u64,
    /// Events that the join emitted without their root.
    pub orphaned: u64,
    /// Spans that exporters could not deliver.
    pub spans_dropped: u64,

    /// Calls whose task ended during the call.
    pub incomplete: u64,
    /// Calls with a truncated path argument, and files with a truncated path.
    pub truncated: u64,
    /// Calls, bios and requests in flight when tracing ended.
    pub in_flight: u64,
    /// Calls by 32-bit programs: counted, not traced.
    pub compat: u64,
    /// Origins of bios' pages dropped because a ring was full.
    pub page_origins_dropped: u64,
    /// Writes of dirty data that were forgotten for lack of room.
    pub dirty_writes_evicted: u64,
    /// Calls excluded by a filter.
    pub filtered: u64,
    /// Calls that head sampling dropped.
    pub unsampled: u64,
    /// Operations that were kept at their end: because they were slow, had failed, or were too large to be deferred.
    pub kept: [u64; 3],
    /// Files whose path was to be sent again.
    pub names_displaced: u64,
    /// Counters of thread contexts.
    pub contexts: ContextStats,
    /// Counters of process contexts.
    pub process_contexts: ProcessContextStats,
}

/// Counters of process contexts (OTEP 4719).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessContextStats {
    /// Processes with a decoded process context when tracing ended.
    pub publishing: u64,
    /// Process contexts that violate the specification.
    pub malformed: u64,
    /// Process contexts that changed during every attempt to read them.
    pub unread: u64,
    /// Process contexts for which the table was full.
    pub no_room: u64,
}

/// Counters of thread contexts (OTEP 4947).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextStats {
    /// Calls whose thread context could not be read at entry.
    pub faulted: u64,
    /// Calls whose thread context could not be read at exit either.
    pub unread: u64,
    /// Calls with an invalid thread context: a trace or span id of zeros.
    pub invalid: u64,
    /// Processes that published thread contexts when tracing ended.
    pub publishing: u64,
    /// Processes that blkkin had no permission to scan.
    pub denied: u64,
    /// Publishing processes for which the table was full.
    pub no_room: u64,
    /// Calls with more thread attributes than the program reads.
    pub attributes_cut: u64,
    /// Calls whose thread attributes could not be read.
    pub attributes_unread: u64,
}

impl From<&SourceStats> for Losses {
    fn from(stats: &SourceStats) -> Self {
        let sum = |of: fn(&RecordStats) -> u64| stats.kinds().iter().map(|(_, records)| of(records)).sum();
        Losses {
            fired: sum(|records| records.fired),
            recorded: sum(|records| records.recorded),
            calls_dropped: stats.calls.dropped,
            bios_dropped: stats.bios.dropped,
            requests_dropped: stats.requests.dropped,
            commits_dropped: stats.commits.dropped,
            names_dropped: stats.names.dropped,
            page_origins_dropped: stats.page_origins.dropped,
            dirty_writes_evicted: stats.dirty_writes_evicted,
            faults_dropped: stats.faults.dropped,
            waits_dropped: stats.waits.dropped,
            sleeps_dropped: stats.sleeps.dropped,
            ends_missed: stats.ends_missed,
            untracked: stats.untracked,
            tasks_missed: stats.tasks_missed,
            recursion_misses: stats.recursion_misses,
            malformed: stats.malformed,
            walk_overflow: stats.walk_overflow,
            flush_overflow: stats.flush_overflow,
            incomplete: stats.calls_incomplete,
            truncated: stats.calls_truncated + stats.files_truncated,
            compat: stats.calls_compat,
            filtered: stats.calls_filtered,
            unsampled: stats.calls_unsampled,
            kept: [stats.kept_slow, stats.kept_failed, stats.kept_large],
            names_displaced: stats.names_displaced,
            paths_failed: stats.paths_failed,
            contexts: ContextStats {
                faulted: stats.contexts_faulted,
                unread: stats.contexts_unread,
                invalid: stats.contexts_invalid,
                publishing: stats.contexts_publishing,
                denied: stats.contexts_denied,
                no_room: stats.contexts_no_room,
                attributes_cut: stats.attributes_cut,
                attributes_unread: stats.attributes_unread,
            },
            process_contexts: ProcessContextStats {
                publishing: stats.resources_publishing,
                malformed: stats.resources_malformed,
                unread: stats.resources_unread,
                no_room: stats.resources_no_room,
            },
            ..Losses::default()
        }
    }
}

impl Losses {
    /// Returns the number of records dropped because a ring was full.
    pub fn dropped(&self) -> u64 {
        self.calls_dropped
            + self.bios_dropped
            + self.requests_dropped
            + self.commits_dropped
            + self.names_dropped
            + self.page_origins_dropped
            + self.faults_dropped
            + self.waits_dropped
            + self.sleeps_dropped
    }

    /// Returns the sum of all losses.
    pub fn total(&self) -> u64 {
        self.lost().iter().map(|(_, number)| number).sum()
    }

    /// Returns whether fired = recorded + dropped.
    pub fn balances(&self) -> bool {
        self.fired == self.recorded + self.dropped()
    }

    /// Returns the nonzero loss counters with descriptions that fit any number.
    pub fn lost(&self) -> Vec<(&'static str, u64)> {
        nonzero([
            ("calls dropped (ring full)", self.calls_dropped),
            ("bios dropped (ring full)", self.bios_dropped),
            ("requests dropped (ring full)", self.requests_dropped),
            ("commits dropped (ring full)", self.commits_dropped),
            ("names dropped (ring full)", self.names_dropped),
            ("origins of pages dropped (ring full)", self.page_origins_dropped),
            ("writers of dirty data forgotten (table full)", self.dirty_writes_evicted),
            ("page faults dropped (ring full)", self.faults_dropped),
            ("waits of calls dropped (ring full)", self.waits_dropped),
            ("sleeps of calls dropped (ring full)", self.sleeps_dropped),
            ("bio or request ends missed", self.ends_missed),
            ("bios or requests untracked (kernel table full)", self.untracked),
            ("tasks missed", self.tasks_missed),
            ("probe runs skipped by the kernel", self.recursion_misses),
            ("records malformed", self.malformed),
            ("requests with more bios than are walked", self.walk_overflow),
            ("flushes that served more requests than are examined", self.flush_overflow),
            ("calls by 32-bit programs, not traced", self.compat),
            ("file paths unread", self.paths_failed),
            ("NBD messages missed", self.nbd_messages),
            ("USDT events dropped (ring full)", self.usdt_events),
            ("batches missed", self.batches_missed),
            ("events without their root", self.orphaned),
            ("spans not exported", self.spans_dropped),
        ])
    }

    /// Returns the nonzero counters of incomplete, excluded and unreadable data, which are no
    /// losses.
    pub fn notes(&self) -> Vec<(&'static str, u64)> {
        nonzero([
            ("incomplete (no exit seen)", self.incomplete),
            ("truncated (path cut)", self.truncated),
            ("still in flight at the end", self.in_flight),
            ("calls filtered", self.filtered),
            ("calls not sampled", self.unsampled),
            ("operations kept for their time", self.kept[0]),
            ("operations kept for their error", self.kept[1]),
            ("operations kept for their size", self.kept[2]),
            ("calls whose thread context could not be read", self.contexts.unread),
            ("calls with an invalid thread context", self.contexts.invalid),
            ("calls with more thread attributes than are read", self.contexts.attributes_cut),
            ("calls whose thread attributes could not be read", self.contexts.attributes_unread),
            ("processes not scanned for thread contexts (no permission)", self.contexts.denied),
            ("processes not scanned for thread contexts (table full)", self.contexts.no_room),
            ("process contexts malformed", self.process_contexts.malformed),
            ("process contexts changing at every read", self.process_contexts.unread),
            ("process contexts not read (table full)", self.process_contexts.no_room),
        ])
    }
}

fn nonzero<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<(&'static str, u64)> {
    counts.into_iter().filter(|(_, number)| *number > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracer_losses_are_report_losses() {
        let stats = SourceStats {
            calls: RecordStats { fired: 10, recorded: 7, dropped: 3 },
            bios: RecordStats { fired: 5, recorded: 4, dropped: 1 },
            ends_missed: 2,
            untracked: 4,
            tasks_missed: 8,
            recursion_misses: 16,
            malformed: 32,
            walk_overflow: 64,
            flush_overflow: 128,
            calls_compat: 256,
            paths_failed: 512,
            page_origins: RecordStats { fired: 5, recorded: 3, dropped: 2 },
            dirty_writes_evicted: 1_024,
            calls_incomplete: 1_000,
            contexts_unread: 5,
            contexts_publishing: 6,
            contexts_denied: 7,
            attributes_cut: 3,
            attributes_unread: 4,
            resources_publishing: 8,
            resources_malformed: 9,
            ..SourceStats::default()
        };
        let losses = Losses::from(&stats);
        assert_eq!(losses.total(), stats.lost());
        assert_eq!((losses.fired, losses.recorded, losses.dropped()), (20, 14, 6));
        assert!(losses.balances());
        let notes = [
            ("incomplete (no exit seen)", 1_000),
            ("calls whose thread context could not be read", 5),
            ("calls with more thread attributes than are read", 3),
            ("calls whose thread attributes could not be read", 4),
            ("processes not scanned for thread contexts (no permission)", 7),
            ("process contexts malformed", 9),
        ];
        let publishing = (losses.contexts.publishing, losses.process_contexts.publishing);
        assert_eq!((losses.notes(), publishing), (notes.to_vec(), (6, 8)));
    }
}
