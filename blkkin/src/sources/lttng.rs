//! `--ust`: daemon spans from LTTng-UST, correlated with the kernel's events.
//!
//! ```text
//! thread "drain"     thread "correlate"                                thread "join"
//! Tracer::run ──── bus ── Correlator ─────────────────────────── bus ── Joiner
//! thread "daemons"         ┌┘  └ processes that exited ┐
//! relay → Follower → Mapper → DaemonSpans ─────────────┘
//! ```
//!
//! *In*: an LTTng session of blkkin's own, created before CMD starts. LTTng's daemons are started
//! if none run, and stop with blkkin. *Out*: the tracer's batches with daemon spans and their
//! links. *Invariant*: no kernel event is held for longer than
//! [`HOLD_MAX`](blkkin_ust_bridge::correlate::HOLD_MAX), whatever happens to the session.
//!
//! *End*: when the tracer has ended, blkkin ends the session, which flushes its rings. The reader
//! then reads the rest.

mod correlation;
mod metrics;
mod reader;
mod session;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::{Builder, JoinHandle};

use blkkin_bus::{Publisher, Subscription};
use blkkin_report::collect::daemon_spans::DaemonSpanInput;
use blkkin_tracer::{ContextPolicy, PtraceAccess, StopSignal, TraceScope};
use blkkin_ust_bridge::correlate::CorrelationStats;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::session::lttng_command::LttngError;
use blkkin_wire::batch::EventBatch;
use rustix::thread::CapabilitySet;

use crate::cli::{LttngArgs, UsdtArgs};
use crate::error::CliError;
use crate::privileges::{self, ReservedThread};
pub(crate) use metrics::LttngMetrics;
pub(crate) use reader::LttngStats;
use reader::{ReaderChannels, SessionReader};
use session::LttngSession;

/// Queue length between the threads, in updates of some ms each.
const UPDATE_QUEUE_MAX: usize = 256;

/// Returns which daemon spans a report will contain.
pub(crate) fn daemon_span_source(ust: &LttngArgs, probes: &UsdtArgs) -> DaemonSpanInput {
    match (ust.nbd, ust.ust || !probes.probes.is_empty()) {
        (true, _) => DaemonSpanInput::LinkedSpans,
        (false, true) => DaemonSpanInput::Spans,
        (false, false) => DaemonSpanInput::None,
    }
}

/// An open LTTng session, with the thread that owns it.
pub(crate) struct LttngSource {
    session: LttngSession,
    mapping: Mapping,
    thread: ReservedThread<LttngStats>,
}

/// A running LTTng source.
pub(crate) struct RunningLttng {
    correlation: JoinHandle<CorrelationStats>,
    reader: JoinHandle<LttngStats>,
}

impl LttngSource {
    /// Opens the session; `None` without `--ust`. Events that repeat thread contexts are not
    /// enabled if blkkin reads the contexts of all processes itself.
    pub(crate) fn open(args: &LttngArgs, policy: &ContextPolicy) -> Result<Option<LttngSource>, CliError> {
        if !args.ust {
            return Ok(None);
        }
        let mut mapping = Mapping::built_in();
        for file in &args.ust_mapping {
            mapping = mapping.chain(read_mapping(file)?);
        }
        let published =
            *policy == ContextPolicy::All && blkkin_tracer::ptrace_access() == PtraceAccess::AllProcesses;
        let events = mapping.events(published);
        let folder = tempfile::Builder::new().prefix("blkkin-ust.").tempdir();
        let folder = folder.map_err(|error| {
            CliError::cannot_trace("cannot create a folder for LTTng", error, "set TMPDIR=FOLDER")
        })?;
        // The daemons end with the thread that starts them (PR_SET_PDEATHSIG), and have its rights.
        let thread = ReservedThread::new("daemons", privileges::LTTNG, || ())?;
        let session = thread.call(|| LttngSession::open(events, folder)).map_err(session_error)?;
        Ok(Some(LttngSource { session, mapping, thread }))
    }

    /// Returns the capabilities of the thread that owns the session.
    pub(crate) fn kept(&self) -> CapabilitySet {
        self.thread.kept()
    }

    /// Starts to correlate `batches` with the session's events, into `out`.
    pub(crate) fn start(
        self,
        batches: Subscription<EventBatch>,
        out: Publisher<EventBatch>,
        scope: TraceScope,
        metrics: &LttngMetrics,
    ) -> io::Result<RunningLttng> {
        let (updates, stats) = sync_channel(UPDATE_QUEUE_MAX);
        let (ended, exits) = channel();
        let stop = StopSignal::new();
        let LttngSource { session, mapping, thread } = self;
        let reader = SessionReader::new(
            session,
            mapping,
            ReaderChannels { updates, exits },
            stop.clone(),
            metrics.clone(),
        );
        let reader = thread.run(move || reader.run());
        let metrics = metrics.clone();
        let correlation = Builder::new()
            .name("correlate".into())
            .spawn(move || correlation::run(batches, out, stats, ended, &stop, scope, &metrics))?;
        Ok(RunningLttng { correlation, reader })
    }
}

impl RunningLttng {
    /// Waits for both threads. The LTTng daemons that blkkin started stop with the reader.
    pub(crate) fn collect(self) -> Result<Vec<String>, CliError> {
        let RunningLttng { correlation, reader } = self;
        let panicked =
            |panic: Box<dyn std::any::Any + Send>| crate::error::panicked("the LTTng source", &*panic);
        let correlation_stats = correlation.join().map_err(panicked)?;
        let stats = reader.join().map_err(panicked)?;
        Ok(notes(&correlation_stats, &stats))
    }
}

fn read_mapping(file: &PathBuf) -> Result<Mapping, CliError> {
    let what = || format!("cannot use the mapping {}", file.display());
    let remedy = "configs/mappings/blkkin.toml explains the format";
    let text = fs::read_to_string(file).map_err(|error| CliError::usage(what(), error, remedy))?;
    Mapping::read(&text).map_err(|error| CliError::usage(what(), error, remedy))
}

fn session_error(error: LttngError) -> CliError {
    let remedy = match error {
        LttngError::Start { .. } => "install LTTng (Debian: lttng-tools), or omit --ust",
        LttngError::Network(_) => {
            "allow user namespaces (user.max_user_namespaces; in a unit RestrictNamespaces=user net), run as root, or omit --ust"
        }
        _ => "check whether `lttng list` works for this user, or omit --ust",
    };
    CliError::cannot_trace("cannot receive events of daemons (--ust)", error, remedy)
}

/// Returns the lines of the shutdown summary.
fn notes(correlation_stats: &CorrelationStats, stats: &LttngStats) -> Vec<String> {
    let LttngStats { counts, .. } = stats;
    let mut all = vec![format!(
        "daemons: {} spans ({} without an end), {} system calls as their children ({} by exact thread context)",
        correlation_stats.spans,
        correlation_stats.spans_unfinished,
        correlation_stats.calls_correlated,
        correlation_stats.calls_exact
    )];
    let lost = counts.lost.events;
    if lost > 0 || counts.lost.packets > 0 {
        all.push(format!(
            "daemons: {lost} of their events and {} packets were lost; system calls meanwhile have no parent",
            counts.lost.packets
        ));
    }
    let mut add = |count: u64, text: &str| {
        if count > 0 {
            all.push(format!("daemons: {count} {text}"));
        }
    };
    add(counts.late, "of their events came too late to be sorted; system calls meanwhile have no parent");
    add(
        counts.future,
        "of their events were refused, because their time is in the future (a clock plugin, a time namespace); system calls meanwhile have no parent",
    );
    add(
        correlation_stats.calls_contradicted,
        "system calls have the published thread context as parent, which contradicts the daemon's events",
    );
    add(correlation_stats.spans_foreign_pidns, "spans of an unknown process have no children");
    add(
        correlation_stats.updates_foreign_user,
        "of their events were refused, because they named threads of other users",
    );
    add(correlation_stats.spans_filtered, "spans of untraced processes are filtered");
    add(
        correlation_stats.updates_late,
        "updates of a thread's span came after its system calls were correlated",
    );
    add(
        correlation_stats.calls_uncorrelated,
        "system calls have no parent because the daemon's events came too late",
    );
    add(stats.connections_refused, "connections of other users to the relay were refused");
    add(stats.restarts, "restarts of the session; system calls meanwhile have no parent");
    all.extend(stats.problems.iter().map(|problem| format!("daemons: {problem}")));
    all
}
