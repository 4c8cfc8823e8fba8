//! What is not in the report, and why: counted by those who lost it, said at the end of every report.
//!
//! Plain numbers, so that the report depends on no exporter; the counters of the tracer, which travel with the
//! events, are filled in by `From<&SourceStats>`.

use blkkin_wire::batch::{RecordStats, SourceStats};

/// Counters of everything between a hook and the reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that were due: one for each call, bio, request, commit and name that ended or was first met.
    pub fired: u64,
    /// Records that arrived.
    pub recorded: u64,
    /// Calls for which a ring had no room.
    pub calls_dropped: u64,
    /// Bios for which a ring had no room.
    pub bios_dropped: u64,
    /// Requests for which a ring had no room.
    pub requests_dropped: u64,
    /// Commits for which a ring had no room.
    pub commits_dropped: u64,
    /// Names for which a ring had no room.
    pub names_dropped: u64,
    /// Bios and requests whose end was never seen.
    pub ends_missed: u64,
    /// Bios and requests that had no room in the kernel's tables.
    pub untracked: u64,
    /// Tasks that should have been followed and were not.
    pub tasks_missed: u64,
    /// Runs of a program that the kernel skipped.
    pub recursion_misses: u64,
    /// Records that could not be decoded.
    pub malformed: u64,
    /// Requests with more bios than are walked.
    pub walk_overflow: u64,
    /// Flushes that served more requests than are looked at.
    pub flush_overflow: u64,
    /// Batches that never reached the join.
    pub batches_missed: u64,
    /// Events that the join gave out without their root.
    pub orphaned: u64,
    /// Spans that exporters could not deliver.
    pub spans_dropped: u64,

    /// Calls whose task ended inside them.
    pub incomplete: u64,
    /// Calls with a path argument cut, and files with their path cut.
    pub truncated: u64,
    /// Calls, bios and requests that had not ended when tracing did.
    pub in_flight: u64,
    /// Calls by 32-bit programs: seen, not followed.
    pub compat: u64,
    /// Calls left out because a filter asked for it.
    pub filtered: u64,
    /// Files whose path could not be found.
    pub paths_failed: u64,
    /// Of programs' own spans.
    pub contexts: Contexts,
    /// Of what processes say of themselves.
    pub resources: Resources,
}

/// What became of looks for who processes are in their own words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Processes that say so and were understood, at the end.
    pub publishing: u64,
    /// Times that it was not what the standard has.
    pub malformed: u64,
    /// Times that it was being written at each attempt.
    pub unread: u64,
    /// Times that there was no room for it.
    pub no_room: u64,
}

/// What became of looks for the spans that programs work for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// Calls at whose entry it could not be read.
    pub faulted: u64,
    /// Of these, those at whose return it could not either.
    pub unread: u64,
    /// Calls whose thread published none: a trace or a span of zeros.
    pub invalid: u64,
    /// Processes that published when tracing ended.
    pub publishing: u64,
    /// Processes that could not be looked at for want of rights.
    pub denied: u64,
    /// Times that there was no room for a process that publishes.
    pub no_room: u64,
    /// Calls whose thread said more attributes than are read.
    pub attributes_cut: u64,
    /// Calls whose thread's attributes could not be read.
    pub attributes_unread: u64,
}

impl From<&SourceStats> for Losses {
    fn from(accounts: &SourceStats) -> Self {
        let kinds = [accounts.calls, accounts.bios, accounts.requests, accounts.commits, accounts.names];
        let sum = |of: fn(&RecordStats) -> u64| kinds.iter().map(of).sum();
        Losses {
            fired: sum(|account| account.fired),
            recorded: sum(|account| account.recorded),
            calls_dropped: accounts.calls.dropped,
            bios_dropped: accounts.bios.dropped,
            requests_dropped: accounts.requests.dropped,
            commits_dropped: accounts.commits.dropped,
            names_dropped: accounts.names.dropped,
            ends_missed: accounts.ends_missed,
            untracked: accounts.untracked,
            tasks_missed: accounts.tasks_missed,
            recursion_misses: accounts.recursion_misses,
            malformed: accounts.malformed,
            walk_overflow: accounts.walk_overflow,
            flush_overflow: accounts.flush_overflow,
            incomplete: accounts.calls_incomplete,
            truncated: accounts.calls_truncated + accounts.files_truncated,
            compat: accounts.calls_compat,
            filtered: accounts.calls_filtered,
            paths_failed: accounts.paths_failed,
            contexts: Contexts {
                faulted: accounts.contexts_faulted,
                unread: accounts.contexts_unread,
                invalid: accounts.contexts_invalid,
                publishing: accounts.contexts_publishing,
                denied: accounts.contexts_denied,
                no_room: accounts.contexts_no_room,
                attributes_cut: accounts.attributes_cut,
                attributes_unread: accounts.attributes_unread,
            },
            resources: Resources {
                publishing: accounts.resources_publishing,
                malformed: accounts.resources_malformed,
                unread: accounts.resources_unread,
                no_room: accounts.resources_no_room,
            },
            ..Losses::default()
        }
    }
}

impl Losses {
    /// Records for which a ring had no room.
    pub fn dropped(&self) -> u64 {
        self.calls_dropped
            + self.bios_dropped
            + self.requests_dropped
            + self.commits_dropped
            + self.names_dropped
    }

    /// Everything that should be known and is not.
    pub fn total(&self) -> u64 {
        self.lost().iter().map(|(_, number)| number).sum()
    }

    /// Whether fired = recorded + dropped.
    pub fn balances(&self) -> bool {
        self.fired == self.recorded + self.dropped()
    }

    /// What was lost, kind by kind, in words that go with any number; nothing of which there was none.
    pub fn lost(&self) -> Vec<(&'static str, u64)> {
        named([
            ("calls dropped (ring full)", self.calls_dropped),
            ("bios dropped (ring full)", self.bios_dropped),
            ("requests dropped (ring full)", self.requests_dropped),
            ("commits dropped (ring full)", self.commits_dropped),
            ("names dropped (ring full)", self.names_dropped),
            ("bio or request ends missed", self.ends_missed),
            ("bios or requests untracked (kernel table full)", self.untracked),
            ("tasks missed", self.tasks_missed),
            ("probe runs skipped by the kernel", self.recursion_misses),
            ("records malformed", self.malformed),
            ("requests with more bios than are walked", self.walk_overflow),
            ("flushes that served more requests than are looked at", self.flush_overflow),
            ("batches missed", self.batches_missed),
            ("events without their root", self.orphaned),
            ("spans not exported", self.spans_dropped),
        ])
    }

    /// What is not lost but not whole either, or was not asked for.
    pub fn beside(&self) -> Vec<(&'static str, u64)> {
        named([
            ("incomplete (no exit seen)", self.incomplete),
            ("truncated (path cut)", self.truncated),
            ("still in flight at the end", self.in_flight),
            ("calls by 32-bit programs, not followed", self.compat),
            ("calls left out by filters", self.filtered),
            ("files without a path", self.paths_failed),
            ("calls whose program's span could not be read", self.contexts.unread),
            ("calls whose program's span is none", self.contexts.invalid),
            ("calls whose thread says more attributes than are read", self.contexts.attributes_cut),
            ("calls whose thread's attributes could not be read", self.contexts.attributes_unread),
            ("processes not looked at for their spans (no right)", self.contexts.denied),
            ("processes not looked at for their spans (no room)", self.contexts.no_room),
            ("times that a process says who it is and is not understood", self.resources.malformed),
            ("times that a process was saying who it is whenever looked at", self.resources.unread),
            ("times that a process says who it is (no room)", self.resources.no_room),
        ])
    }
}

fn named<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<(&'static str, u64)> {
    counts.into_iter().filter(|(_, number)| *number > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tracer_counts_as_lost_is_lost_here() {
        let accounts = SourceStats {
            calls: RecordStats { fired: 10, recorded: 7, dropped: 3 },
            bios: RecordStats { fired: 5, recorded: 4, dropped: 1 },
            ends_missed: 2,
            untracked: 4,
            tasks_missed: 8,
            recursion_misses: 16,
            malformed: 32,
            walk_overflow: 64,
            flush_overflow: 128,
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
        let losses = Losses::from(&accounts);
        assert_eq!(losses.total(), accounts.lost());
        assert_eq!((losses.fired, losses.recorded, losses.dropped()), (15, 11, 4));
        assert!(losses.balances());
        let beside = [
            ("incomplete (no exit seen)", 1_000),
            ("calls whose program's span could not be read", 5),
            ("calls whose thread says more attributes than are read", 3),
            ("calls whose thread's attributes could not be read", 4),
            ("processes not looked at for their spans (no right)", 7),
            ("times that a process says who it is and is not understood", 9),
        ];
        let publishing = (losses.contexts.publishing, losses.resources.publishing);
        assert_eq!((losses.beside(), publishing), (beside.to_vec(), (6, 8)));
    }
}
