//! The report: traces in, a page out.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::ids::TraceId;
use blkkin_wire::in_flight::FinalState;
use blkkin_wire::remote_link::Reparented;
use blkkin_wire::syscalls::Arch;
use serde_json::Value;

use crate::collect::calls::Calls;
use crate::collect::devices::Devices;
use crate::collect::files::Files;
use crate::collect::kernel::Kernel;
use crate::collect::layers::Layers;
use crate::collect::operations::{Heard, Operations};
use crate::collect::seen::Seen;
use crate::collect::slowest::Slowest;
use crate::collect::totals::Totals;
use crate::losses::Losses;
use crate::progress::Progress;
use crate::text::style::Style;
use crate::{json, view};

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportConfig {
    /// The command that was traced, as it was typed; none if it was the node.
    pub command: Option<String>,
    /// How many of the slowest requests are shown.
    pub slowest: usize,
    /// When tracing began.
    pub started: MonotonicNs,
    /// Where the calls were made: flags differ.
    pub arch: Arch,
    /// Whether programs' operations come.
    pub heard: Heard,
}

impl ReportConfig {
    /// Requests shown as waterfalls unless asked otherwise: a screen or two.
    pub const SLOWEST: usize = 5;

    /// Of this machine, of no command, with defaults.
    pub fn new(started: MonotonicNs) -> Self {
        let (slowest, arch, heard) = (Self::SLOWEST, Arch::HOST, Heard::Nothing);
        ReportConfig { command: None, slowest, started, arch, heard }
    }
}

/// What is known of the traces so far.
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
    pub(crate) operations: Operations,
    pub(crate) slowest: Slowest,
    pub(crate) at_end: FinalState,
}

impl Report {
    /// A report on no trace.
    pub fn new(config: ReportConfig) -> Self {
        let slowest = Slowest::new(config.slowest);
        let operations = Operations::new(config.slowest, config.heard);
        Report {
            config,
            ended: None,
            totals: Totals::default(),
            layers: Layers::default(),
            calls: Calls::default(),
            devices: Devices::default(),
            files: Files::default(),
            kernel: Kernel::default(),
            operations,
            slowest,
            at_end: FinalState::default(),
        }
    }

    /// Takes one trace in. It is copied only if it is among the slowest so far.
    pub fn add(&mut self, trace: &Trace) {
        let seen = Seen::from(trace);
        self.totals.add(seen);
        self.layers.add(seen);
        self.calls.add(seen);
        self.devices.add(trace);
        self.files.add(seen);
        self.kernel.add(trace);
        self.slowest.add(seen);
        self.operations.add(trace);
    }

    /// The trace `of` is shown in another, as the spans' stages have found.
    pub fn moved(&mut self, of: TraceId, moved: &Reparented) {
        self.operations.moved(of, moved);
    }

    /// Tracing ended. Without it, the last part of the last trace is taken for the end.
    pub fn end(&mut self, at: MonotonicNs) {
        self.ended = Some(at);
    }

    /// What had not ended when tracing did, and which devices are not what they were.
    pub fn at_end(&mut self, at_end: FinalState) {
        self.at_end = at_end;
    }

    /// The page, for a terminal; each line ends with a newline.
    pub fn render(&self, style: &Style, losses: &Losses) -> String {
        view::page(self, losses, style)
    }

    /// The same for machines: times in ns, sizes in bytes, no rounding.
    pub fn to_json(&self, losses: &Losses) -> Value {
        json::value(self, losses)
    }

    /// What to say while it goes on.
    pub fn progress(&self, lost: u64) -> Progress {
        Progress {
            calls: self.totals.calls,
            requests: self.totals.requests,
            bytes: self.totals.by_calls.read.saturating_add(self.totals.by_calls.written),
            slowest: self.totals.slowest,
            lost,
        }
    }

    /// How long tracing went on.
    pub fn wall(&self) -> DurationNs {
        self.ended.unwrap_or(self.totals.last_end).since(self.config.started)
    }
}
