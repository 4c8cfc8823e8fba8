//! Batches of events: events of one source with its watermark and its loss counters.

use crate::clock::{ClockAnchor, MonotonicNs};
use crate::crash_report::CrashedRun;
use crate::event::LayerEvent;
use crate::ids::Source;

/// Counters of one source since its start. They are totals, so a duplicate or lost batch does not
/// falsify them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// System calls.
    pub calls: RecordStats,
    /// Bios.
    pub bios: RecordStats,
    /// Block requests.
    pub requests: RecordStats,
    /// Journal commits.
    pub commits: RecordStats,
    /// Task and file events.
    pub names: RecordStats,
    /// System calls entered by traced tasks: `calls.fired` + `calls_filtered` + `calls_unsampled` + calls still
    /// open.
    pub calls_entered: u64,
    /// System calls dropped by a filter of the kernel side: at entry by the paths of their files, or at
    /// return (duration threshold, errors only, block I/O only).
    pub calls_filtered: u64,
    /// System calls among `calls.recorded` that the reader dropped by their paths.
    pub calls_excluded: u64,
    /// System calls recorded without an exit.
    pub calls_incomplete: u64,
    /// System calls with a truncated path argument.
    pub calls_truncated: u64,
    /// Files with a truncated path, from deep directories.
    pub files_truncated: u64,
    /// System calls of 32-bit programs: counted, not traced.
    pub calls_compat: u64,
    /// Bios traced from their submission.
    pub bios_queued: u64,
    /// Block requests traced from their allocation, minus those merged into another request.
    pub requests_started: u64,
    /// Block requests merged into another request. They have no record: their bios continue in the
    /// other request.
    pub requests_merged: u64,
    /// Bios and block requests whose completion was missed.
    pub ends_missed: u64,
    /// Bios and block requests dropped because a kernel map was full.
    pub untracked: u64,
    /// Tasks that should have been traced and were not.
    pub tasks_missed: u64,
    /// eBPF program runs that the kernel skipped because the program was already running on that
    /// CPU.
    pub recursion_misses: u64,
    /// Records that failed to decode: wrong length or unknown tag.
    pub malformed: u64,
    /// Block requests of traced devices without a traced bio. They are recorded, so this is no loss.
    pub requests_foreign: u64,
    /// Records of files that were not written because the path could not be read, at each attempt.
    pub paths_failed: u64,
    /// Block requests with more bios than the tracer walks.
    pub walk_overflow: u64,
    /// Device cache flushes that served a traced request, before or after its data.
    pub flushes_served: u64,
    /// Device cache flushes that served more requests than the tracer inspects. The device time of
    /// the remaining requests is unknown.
    pub flush_overflow: u64,
    /// System calls whose thread context could not be read at entry.
    pub contexts_faulted: u64,
    /// Calls of `contexts_faulted` whose thread context could not be read at return either. They
    /// have no application parent.
    pub contexts_unread: u64,
    /// System calls whose thread context is invalid: trace id or span id all zero.
    pub contexts_invalid: u64,
    /// Live processes that publish thread contexts: a gauge, not a total.
    pub contexts_publishing: u64,
    /// Processes that the tracer lacked permission to inspect for thread contexts.
    pub contexts_denied: u64,
    /// Publishing processes found while the table of thread contexts was full.
    pub contexts_no_room: u64,
    /// Live processes with a valid process context (OTEP 4719): a gauge, not a total.
    pub resources_publishing: u64,
    /// Reads of a process context that violates the specification. Such a process has no context.
    pub resources_malformed: u64,
    /// Reads of a process context that failed, or raced with an update at each attempt.
    pub resources_unread: u64,
    /// Process contexts found while their table was full.
    pub resources_no_room: u64,
    /// System calls whose thread published more bytes of attributes than the tracer reads. They
    /// have no attributes.
    pub attributes_cut: u64,
    /// System calls whose thread attributes could be read neither at entry nor at return.
    pub attributes_unread: u64,
    /// Origins of bios' pages, and pages that stores into mappings made dirty.
    pub page_origins: RecordStats,
    /// Writes of dirty data that the tracer forgot for lack of room. Bios that carry that data have
    /// no writer for it.
    pub dirty_writes_evicted: u64,
    /// Bytes that recorded operations wrote and that were not written back yet: a gauge, not a
    /// total. Overwritten bytes count once for each write.
    pub dirty_bytes: u64,
    /// Page faults.
    pub faults: RecordStats,
    /// Major page faults without a bio that a filter dropped.
    pub faults_filtered: u64,
    /// Records of what calls waited for.
    pub waits: RecordStats,
    /// Records of where calls slept.
    pub sleeps: RecordStats,
    /// Files whose path is emitted again at their next use, for lack of room in the kernel side's table.
    pub names_displaced: u64,
    /// Events that a flight recorder overwrote before anything asked for them. They were recorded, so this is no
    /// loss.
    pub events_overwritten: u64,
    /// System calls and submissions of asynchronous I/O that head sampling dropped.
    pub calls_unsampled: u64,
    /// Operations that were kept at their end because they were slow.
    pub kept_slow: u64,
    /// Operations that were kept at their end because they failed.
    pub kept_failed: u64,
    /// Operations that were kept because they had more records than the kernel side has room for.
    pub kept_large: u64,
}

/// Record counters of one kind: fired = recorded + dropped. The record of a pair counts as a bio
/// and as a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordStats {
    /// Records due, counted by the eBPF programs.
    pub fired: u64,
    /// Records received, counted by the reader.
    pub recorded: u64,
    /// Records dropped because the ring was full, counted by the eBPF programs.
    pub dropped: u64,
}

impl RecordStats {
    /// Returns whether fired = recorded + dropped.
    pub fn balances(&self) -> bool {
        self.fired == self.recorded + self.dropped
    }
}

impl SourceStats {
    /// Returns the counters of all kinds of records, with the names of the kinds.
    pub fn kinds(&self) -> [(&'static str, RecordStats); 9] {
        [
            ("call", self.calls),
            ("bio", self.bios),
            ("request", self.requests),
            ("commit", self.commits),
            ("name", self.names),
            ("page fault", self.faults),
            ("page origin", self.page_origins),
            ("waits", self.waits),
            ("sleeps", self.sleeps),
        ]
    }

    /// Returns the number of records and events that are known to be lost.
    pub fn lost(&self) -> u64 {
        self.kinds().iter().map(|(_, records)| records.dropped).sum::<u64>()
            + self.ends_missed
            + self.untracked
            + self.tasks_missed
            + self.recursion_misses
            + self.malformed
            + self.walk_overflow
            + self.flush_overflow
            + self.calls_compat
            + self.paths_failed
            + self.dirty_writes_evicted
    }
}

/// Events of one source, ordered by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// Source of the events.
    pub source: Source,
    /// Sequence number: increases by one with each batch of a source.
    pub sequence: u64,
    /// Clock anchor: converts times of the source to wall clock.
    pub anchor: ClockAnchor,
    /// Events, ordered by time.
    pub events: Vec<LayerEvent>,
    /// Lower bound of the times of all later events of this source, but for names, for origins of pages, and for the
    /// parts of operations that the source deferred until they ended (`--keep`).
    pub watermark: MonotonicNs,
    /// Counters of the source, up to 50 ms old. The last batch has the final counters.
    pub stats: SourceStats,
    /// Earlier starts on this machine that crashed, with losses not yet reported; only in the first
    /// batch of a start. A start can be reported twice if the reporting agent crashed too, so each
    /// epoch counts once.
    pub crashed_runs: Vec<CrashedRun>,
}

impl EventBatch {
    /// Returns a tick: a record that only advances time. The owner of an otherwise idle partition
    /// writes it, so that timeouts of `aggregator`'s stages fire.
    ///
    /// It is an empty batch of [`Source::NONE`] with a constant sequence number. A reader without
    /// support for ticks drops the second one as a duplicate of the first, and ignores it.
    pub fn tick() -> EventBatch {
        EventBatch {
            source: Source::NONE,
            sequence: 0,
            anchor: ClockAnchor::NONE,
            events: Vec::new(),
            watermark: MonotonicNs(0),
            stats: SourceStats::default(),
            crashed_runs: Vec::new(),
        }
    }
}
