//! Report data: every table's state, filled trace by trace.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::ids::{Source, TraceId};
use blkkin_wire::in_flight::FinalState;
use blkkin_wire::remote_link::Reparented;
use blkkin_wire::span::Span;
use blkkin_wire::stage::LogTime;
use blkkin_wire::syscalls::Arch;

use crate::collect::calls::Calls;
use crate::collect::classified::ClassifiedTrace;
use crate::collect::coverage::{Coverage, CoverageRow, DiskCount};
use crate::collect::daemon_spans::{DaemonSpanInput, SlowestDaemonSpans};
use crate::collect::devices::Devices;
use crate::collect::files::Files;
use crate::collect::guests::Guests;
use crate::collect::kernel::Kernel;
use crate::collect::layers::Layers;
use crate::collect::queue_waits::QueueWaits;
use crate::collect::sleeps::Sleeps;
use crate::collect::slowest::Slowest;
use crate::collect::totals::Totals;
use crate::collect::waits::Waits;
use crate::collect::written_by::WrittenBy;
use crate::progress::Progress;

/// Settings of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportConfig {
    /// Traced command as it was typed; none if the node was traced.
    pub command: Option<String>,
    /// True if operations are not recorded that may be writers of what the kernel writes back: only one
    /// command is traced, or a filter excludes them.
    pub excludes_writers: bool,
    /// Number of slowest storage operations to show.
    pub slowest: usize,
    /// Start of tracing.
    pub started: MonotonicNs,
    /// Architecture of the traced node; system call flags differ between architectures.
    pub arch: Arch,
    /// Daemon spans that the report receives.
    pub daemon_spans: DaemonSpanInput,
}

impl ReportConfig {
    /// Default number of waterfalls: one or two screens.
    pub const SLOWEST: usize = 5;

    /// Creates the settings for this node without a command, with defaults.
    pub fn new(started: MonotonicNs) -> Self {
        let (slowest, arch) = (Self::SLOWEST, Arch::HOST);
        ReportConfig {
            command: None,
            excludes_writers: false,
            slowest,
            started,
            arch,
            daemon_spans: DaemonSpanInput::None,
        }
    }
}

/// Aggregated traces of one run.
#[derive(Clone, Debug)]
pub struct Report {
    pub(crate) config: ReportConfig,
    pub(crate) ended: Option<MonotonicNs>,
    pub(crate) totals: Totals,
    pub(crate) layers: Layers,
    pub(crate) calls: Calls,
    pub(crate) devices: Devices,
    pub(crate) files: Files,
    pub(crate) kernel: Kernel,
    pub(crate) written_by: WrittenBy,
    waits: Waits,
    queue_waits: QueueWaits,
    pub(crate) sleeps: Sleeps,
    pub(crate) daemon_spans: SlowestDaemonSpans,
    pub(crate) slowest: Slowest,
    pub(crate) guests: Guests,
    pub(crate) final_state: FinalState,
    coverage: Coverage,
}

impl Report {
    /// Creates a report without traces.
    pub fn new(config: ReportConfig) -> Self {
        let (slowest, guests) = (Slowest::new(config.slowest), Guests::new(config.slowest));
        let daemon_spans = SlowestDaemonSpans::new(config.slowest, config.daemon_spans);
        Report {
            config,
            ended: None,
            totals: Totals::default(),
            layers: Layers::default(),
            calls: Calls::default(),
            devices: Devices::default(),
            files: Files::default(),
            kernel: Kernel::default(),
            written_by: WrittenBy::default(),
            waits: Waits::default(),
            queue_waits: QueueWaits::default(),
            sleeps: Sleeps::default(),
            daemon_spans,
            slowest,
            guests,
            final_state: FinalState::default(),
            coverage: Coverage::default(),
        }
    }

    /// Adds one trace. The report copies it only if it is among the slowest so far.
    pub fn add(&mut self, trace: &Trace) {
        let classified = ClassifiedTrace::from(trace);
        self.totals.add(classified);
        self.layers.add(classified);
        self.calls.add(classified);
        self.devices.add(trace);
        self.files.add(classified);
        self.kernel.add(trace);
        self.written_by.add(trace);
        self.waits.add(classified);
        self.queue_waits.add(trace, &mut self.waits);
        self.sleeps.add(classified);
        self.slowest.add(classified);
        self.daemon_spans.add(trace);
    }

    /// Adds one trace of a guest, before its spans. Only the sections about guests have it. `now`: the host's clock.
    pub fn add_guests_trace(&mut self, trace: &Trace, now: LogTime) {
        self.guests.add(trace, now);
    }

    /// Adds spans that left the linker, of guests and of this node.
    pub fn add_linked_spans(&mut self, spans: &[Span]) {
        self.guests.add_spans(spans);
    }

    /// Sets the number of records that a guest has lost since its agent started.
    pub fn set_guests_lost(&mut self, guest: Source, lost: u64) {
        self.guests.set_lost(guest, lost);
    }

    /// Completes the operations of guests, after the last span. `refused`: endpoints that the linker refused.
    pub fn finish_guests(&mut self, refused: u64) {
        self.guests.finish(refused);
    }

    /// Adds the bytes of one trace to what the trace explains of its disks. Every trace counts,
    /// those that a filter of traces drops too.
    pub fn add_coverage(&mut self, trace: &Trace) {
        self.coverage.add(trace, self.config.excludes_writers);
    }

    /// Sets what the kernel counted for each disk while tracing ran.
    pub fn set_disk_counts(&mut self, counts: Vec<DiskCount>) {
        self.coverage.set_counts(counts);
    }

    /// Returns what the trace explains of each disk: of those that the command used, or of all that
    /// the node has.
    pub(crate) fn coverage_rows(&self) -> Vec<CoverageRow> {
        self.coverage.rows(self.config.command.is_some())
    }

    /// Returns the waits, with those in queues that have not been evaluated yet.
    pub(crate) fn waits(&self) -> Waits {
        let mut waits = self.waits.clone();
        self.queue_waits.clone().finish(&mut waits);
        waits
    }

    /// Records that the linker moved the trace `id` into another trace.
    pub fn reparent(&mut self, id: TraceId, reparented: &Reparented) {
        self.daemon_spans.reparent(id, reparented);
    }

    /// Sets the end of tracing. Without it, the latest end of any trace is used.
    pub fn set_end(&mut self, at: MonotonicNs) {
        self.ended = Some(at);
    }

    /// Sets what was in flight when tracing ended, and the devices that were lost or replaced.
    pub fn set_final_state(&mut self, final_state: FinalState) {
        self.final_state = final_state;
    }

    /// Returns the content of the progress line.
    pub fn progress(&self, lost: u64) -> Progress {
        Progress {
            calls: self.totals.calls,
            requests: self.totals.requests,
            bytes: self.totals.by_calls.read.saturating_add(self.totals.by_calls.written),
            slowest: self.totals.slowest,
            lost,
            dirty_bytes: 0,
        }
    }

    /// Returns the duration of tracing.
    pub fn wall_time(&self) -> DurationNs {
        self.ended.unwrap_or(self.totals.last_end).since(self.config.started)
    }
}
