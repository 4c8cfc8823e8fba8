//! Events on their way: with where they come from, up to when they are complete, and what was lost.

use crate::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use crate::event::LayerEvent;
use crate::ids::Source;
use crate::killed::Killed;

/// Counters of one source since its start: totals, not differences, so that a batch that is seen twice or not
/// at all does not falsify them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// System calls.
    pub calls: Account,
    /// Bios.
    pub bios: Account,
    /// Requests.
    pub requests: Account,
    /// Commits.
    pub commits: Account,
    /// Names: tasks and files.
    pub names: Account,
    /// Calls entered by followed tasks: `calls.fired` + `calls_filtered` + those still open.
    pub calls_entered: u64,
    /// Calls left out by a rule that needs their end (threshold, errors only, block only).
    pub calls_filtered: u64,
    /// Calls written without an exit.
    pub calls_incomplete: u64,
    /// Calls with a path argument cut.
    pub calls_truncated: u64,
    /// Files whose path was cut: those of the deepest folders.
    pub files_truncated: u64,
    /// Calls by 32-bit programs: seen, not followed.
    pub calls_compat: u64,
    /// Bios that were followed from their submission on.
    pub bios_queued: u64,
    /// Requests that were followed from their allocation on, less those that were merged into another.
    pub requests_started: u64,
    /// Those: they have no record of their own, their bios went on in the other.
    pub requests_merged: u64,
    /// Bios and requests whose end was never seen.
    pub ends_missed: u64,
    /// Bios and requests that had no room in the kernel's tables.
    pub untracked: u64,
    /// Tasks that should have been followed and were not.
    pub tasks_missed: u64,
    /// Runs of a program that the kernel skipped because one was running already on that CPU.
    pub recursion_misses: u64,
    /// Records that could not be decoded: short, long or of an unknown tag.
    pub malformed: u64,
    /// Requests of followed devices that no followed bio caused.
    pub requests_foreign: u64,
    /// File names that could not be found.
    pub paths_failed: u64,
    /// Requests with more bios than are walked.
    pub walk_overflow: u64,
    /// Times that a device's cache flush served a followed request: before its data, or after it.
    pub flushes_served: u64,
    /// Cache flushes that served more requests than are looked at: the others' time at the device is not known.
    pub flush_overflow: u64,
    /// Calls at whose entry the span that their thread worked for could not be read from its memory.
    pub contexts_faulted: u64,
    /// Of these, those at whose return it could not either: they are below no span of the application's.
    pub contexts_unread: u64,
    /// Calls whose thread published a context that is none: its trace or its span was all zero.
    pub contexts_invalid: u64,
    /// Processes that were found to publish contexts and have not ended: a number of the moment, no sum.
    pub contexts_publishing: u64,
    /// Processes that the tracer had no right to look at: whether they publish contexts is not known.
    pub contexts_denied: u64,
    /// Times that a process was found to publish contexts, and there was no room to remember where.
    pub contexts_no_room: u64,
    /// Processes that say who they are (OpenTelemetry's process context) and were understood: a number of the moment, no sum.
    pub resources_publishing: u64,
    /// Times that what a process says of itself was not what the standard has: it says nothing, then.
    pub resources_malformed: u64,
    /// Times that it could not be read, or changed at each of some attempts.
    pub resources_unread: u64,
    /// Times that there was no room for it.
    pub resources_no_room: u64,
    /// Calls whose thread said more bytes of attributes than are read, so that none is known.
    pub attributes_cut: u64,
    /// Calls whose thread's attributes could be read neither at entry nor at return.
    pub attributes_unread: u64,
}

/// fired = recorded + dropped. The record of a pair is one for the bio and one for the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Records that were due, as the kernel side counted.
    pub fired: u64,
    /// Records that arrived, as the reader counted.
    pub recorded: u64,
    /// Records for which the ring had no room, as the kernel side counted.
    pub dropped: u64,
}

impl Account {
    /// Whether the books agree.
    pub fn balances(&self) -> bool {
        self.fired == self.recorded + self.dropped
    }
}

impl Accounts {
    /// Everything that should be known and is not.
    pub fn lost(&self) -> u64 {
        [self.calls, self.bios, self.requests, self.commits, self.names]
            .iter()
            .map(|a| a.dropped)
            .sum::<u64>()
            + self.ends_missed
            + self.untracked
            + self.tasks_missed
            + self.recursion_misses
            + self.malformed
            + self.walk_overflow
            + self.flush_overflow
    }
}

/// Some events of one source, in the order of their times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// Whose.
    pub source: Source,
    /// Counts up by one with each batch of a source.
    pub sequence: u64,
    /// Turns the source's times into wall clock.
    pub anchor: ClockAnchor,
    /// The events, by time.
    pub events: Vec<LayerEvent>,
    /// No event of this source that is earlier than this will come any more.
    pub watermark: MonotonicNs,
    /// The source's counters, at most 50 ms old; of the last batch the final ones.
    pub accounts: Accounts,
    /// In the first batch of a start: earlier ones on this machine that were killed, and whose losses nobody has told yet. One
    /// may be told twice (whoever told it was killed too), so each epoch counts once.
    pub killed: Vec<Killed>,
}

impl EventBatch {
    /// A record that says nothing but that the log goes on: put there by whoever owns a partition in which nobody else
    /// says anything, so that what waits for a time may see it come (`aggregator`'s stages).
    ///
    /// It is an empty batch of [`Source::NOBODY`], always with the same sequence: a reader that has never heard of ticks takes
    /// the second for a repeat of the first, and has nothing to do.
    pub fn tick() -> EventBatch {
        let (monotonic, wallclock) = (MonotonicNs::default(), WallclockNs::default());
        EventBatch {
            source: Source::NOBODY,
            sequence: 0,
            anchor: ClockAnchor {
                monotonic,
                wallclock,
                uncertainty: DurationNs::default(),
                ..ClockAnchor::NONE
            },
            events: Vec::new(),
            watermark: monotonic,
            accounts: Accounts::default(),
            killed: Vec::new(),
        }
    }
}
