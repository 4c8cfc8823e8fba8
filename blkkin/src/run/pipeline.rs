//! The pipeline of a local trace.
//!
//! ```text
//! thread "drain"                    thread "join"
//! Tracer::run ──── bus (bounded) ── Joiner ── PostFilter ─┬─ Report
//! (guests) ────────┘                                      └─ spans ─ (LocalLinker) ─ SpanSink (a thread each)
//! ```
//!
//! *In*: a loaded tracer. *Out*: a [`RunOutcome`]: the report and the counters of every stage.
//! *Invariant*: no stage between the rings and the exporters' queues drops an event. When the
//! joiner falls behind, the bus fills, the drain thread waits, the rings overflow, and the kernel
//! side counts the drops.
//!
//! *End*: [`Pipeline::stop`] signals the drain thread. It empties the rings, detaches the probes
//! and closes its end of the bus. The joiner then drains the bus, finishes its traces and waits for
//! the exporters. The control channel receives [`ControlEvent::PipelineEnded`], and
//! [`Pipeline::collect`] does not wait.

mod join;
mod live_processes;
pub(crate) mod progress_snapshot;
mod raw_arguments;
mod unrelated_commits;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use blkkin_aggregator::join::JoinStats;
use blkkin_bus::{CAPACITY_DEFAULT, ChannelStats, Publisher, Subscription, channel};
use blkkin_report::{Progress, Report};
use blkkin_tracer::attach::modules::UnreadModules;
use blkkin_tracer::{Detail, StopSignal, TraceScope, TraceSummary, Tracer, TracerError};
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::ids::{NodeId, Source};
use blkkin_zipkin_export::Exporter;
use tracing::info;

use crate::control::ControlEvent;
use crate::control::ExitNotifier;
use crate::destination::{DeliveryReport, SpanSink};
use crate::disk_counts::DiskCounter;
use crate::error::{CliError, cannot_spawn, panicked};
use crate::filter::post_filter::PostFilter;
use crate::guests::{Guests, LocalJoin};
use crate::privileges::{self, DrainThread};
use crate::sources::usdt::UsdtSourceStats;
use crate::sources::{EventSources, RunningSources, SourcesOutcome};
use progress_snapshot::ProgressSnapshot;

/// Time for which the records of guests are received after tracing has ended: a busy guest sends one every few ms.
const LAST_RECORDS: Duration = Duration::from_secs(1);

/// The configuration of a pipeline.
pub(crate) struct RunPlan {
    /// The scope of tracing.
    pub(crate) scope: TraceScope,
    /// The filter for whole traces.
    pub(crate) post_filter: PostFilter,
    /// The detail of system calls.
    pub(crate) detail: Detail,
    /// The report under construction.
    pub(crate) report: Report,
    /// The destinations of spans.
    pub(crate) sinks: Vec<SpanSink>,
    /// The sources of daemon spans.
    pub(crate) sources: EventSources,
    /// With `--nbd`: link NBD client requests to the daemon spans of the same requests.
    pub(crate) nbd: bool,
    /// Node of this host, if events of its guests are among those to join.
    pub(crate) host: Option<NodeId>,
    /// Ports of guests, with `--guests`.
    pub(crate) guests: Option<GuestPorts>,
    /// The disks' own counts, read before the traced command starts.
    pub(crate) disk_counts: DiskCounter,
}

/// The outcome of a pipeline.
pub(crate) struct RunOutcome {
    /// The report on the traces that passed the filter.
    pub(crate) report: Report,
    /// The tracer's counters: the final ones, or those of the last batch with the error that ended
    /// it early.
    pub(crate) tracer: (SourceStats, Option<TracerError>),
    /// The joiner's counters.
    pub(crate) join: JoinStats,
    /// The bus's counters.
    pub(crate) bus: ChannelStats,
    /// Traces dropped because a name that a filter needs is unknown.
    pub(crate) names_unknown: u64,
    /// Journal commits dropped because no recorded system call of the traced tasks waited for them.
    pub(crate) unrelated_commits: u64,
    /// Traced processes without a recorded exit; `None` when there were too many to track.
    pub(crate) live_processes: Option<usize>,
    /// The delivery of the spans, for each destination.
    pub(crate) deliveries: Vec<DeliveryReport>,
    /// Modules that were loaded too late, and summary lines of LTTng, USDT and NBD sources.
    pub(crate) source_notes: Vec<String>,
    /// NBD messages that are known to be missing, with `--nbd`.
    pub(crate) nbd_lost: u64,
    /// Statistics of USDT events, with `--probes`.
    pub(crate) usdt_stats: Option<UsdtSourceStats>,
}

/// Folder with the sockets of guests, and which of these are received.
pub(crate) struct GuestPorts {
    /// Source of this host's own events.
    pub(crate) host: Source,
    pub(crate) folder: PathBuf,
    /// Names or UUIDs of virtual machines; none: all.
    pub(crate) machines: Vec<String>,
}

/// Threads that receive the records of guests.
struct RunningGuests {
    guests: Guests,
    stop: StopSignal,
}

impl RunningGuests {
    /// Starts to receive. The threads have no capability: what they read is not trusted.
    fn start(ports: &GuestPorts, publisher: Publisher<EventBatch>) -> Result<Self, CliError> {
        let stop = StopSignal::new();
        let guests = privileges::with_only(privileges::NONE, || {
            let target = Box::new(LocalJoin::new(publisher));
            Guests::start(&ports.folder, target, (ports.host, ports.machines.clone()), Arc::default(), &stop)
        })?;
        Ok(RunningGuests { guests, stop })
    }
}

/// Stops to receive the records of guests when tracing has ended, also by an error: their threads hold the channel
/// to the join open.
struct EndGuests(StopSignal);

impl Drop for EndGuests {
    fn drop(&mut self) {
        std::thread::sleep(LAST_RECORDS);
        self.0.stop();
    }
}

fn cannot_start(error: io::Error) -> CliError {
    cannot_spawn("cannot start tracing", &error)
}

/// Joins the batches of a recording, on this thread.
pub(crate) fn join_recording(batches: Subscription<EventBatch>, plan: RunPlan) -> RunOutcome {
    RunOutcome::of(join::join(batches, plan, &ProgressSnapshot::default(), |status| info!("{status}")))
}

impl RunOutcome {
    /// Returns the outcome of the join, with the counters of the last batch, and without sources.
    fn of(joined: join::JoinOutcome) -> RunOutcome {
        RunOutcome {
            report: joined.report,
            tracer: (joined.last, None),
            join: joined.stats,
            bus: joined.bus,
            names_unknown: joined.names_unknown,
            unrelated_commits: joined.unrelated_commits,
            live_processes: joined.live_processes,
            deliveries: joined.deliveries,
            source_notes: joined.guest_notes,
            nbd_lost: 0,
            usdt_stats: None,
        }
    }
}

/// A running pipeline.
pub(crate) struct Pipeline {
    stop: StopSignal,
    progress_snapshot: Arc<ProgressSnapshot>,
    servers: Vec<Arc<Exporter>>,
    drain: JoinHandle<Result<TraceSummary, TracerError>>,
    join: JoinHandle<join::JoinOutcome>,
    sources: RunningSources,
    guests: Option<RunningGuests>,
    disk_counts: DiskCounter,
    unread_modules: UnreadModules,
}

impl Pipeline {
    /// Starts the threads.
    pub(crate) fn start(
        tracer: Tracer,
        drain: DrainThread,
        mut plan: RunPlan,
        control: Sender<ControlEvent>,
    ) -> Result<Pipeline, CliError> {
        let (publisher, subscription) = channel(CAPACITY_DEFAULT);
        let ports = plan.guests.as_ref();
        let guests = ports.map(|ports| RunningGuests::start(ports, publisher.clone())).transpose()?;
        let (publisher, sources) =
            std::mem::take(&mut plan.sources).start(publisher).map_err(cannot_start)?;
        let (stop, progress_snapshot) = (StopSignal::new(), Arc::new(ProgressSnapshot::default()));
        let servers = plan.sinks.iter().filter_map(SpanSink::server).collect();
        let disk_counts = std::mem::take(&mut plan.disk_counts);
        let watched = Arc::clone(&progress_snapshot);
        let join = Builder::new().name("join".into()).spawn(move || {
            // Dropped last, also on a panic: the main thread must learn of the end.
            let ended = ExitNotifier(control);
            join::join(subscription, plan, &watched, |status| ended.report_status(status))
        });
        let join = join.map_err(cannot_start)?;
        let (drain_stop, unread_modules) = (stop.clone(), tracer.unread_modules());
        let end_guests = guests.as_ref().map(|guests| EndGuests(guests.stop.clone()));
        let drain = drain.run(move || {
            let summary = tracer.run(publisher, drain_stop);
            drop(end_guests);
            summary
        });
        Ok(Pipeline {
            stop,
            progress_snapshot,
            servers,
            drain,
            join,
            sources,
            guests,
            disk_counts,
            unread_modules,
        })
    }

    /// Asks the drain thread to empty the rings and end.
    pub(crate) fn stop(&mut self) {
        self.disk_counts.stop();
        self.stop.stop();
    }

    /// Stops waiting for servers; undelivered spans are counted.
    pub(crate) fn abort_servers(&self) {
        self.servers.iter().for_each(|server| server.abort());
    }

    /// Returns the progress so far.
    pub(crate) fn progress(&self) -> Progress {
        self.progress_snapshot.get()
    }

    /// Waits for the threads and returns the outcome.
    pub(crate) fn collect(mut self) -> Result<RunOutcome, CliError> {
        let joined = self.join.join().map_err(|panic| panicked("the join", &*panic))?;
        let of_guests = self.guests.take().map(|running| running.guests.join()).unwrap_or_default();
        let trace = self.drain.join().map_err(|panic| panicked("the tracer", &*panic))?;
        let SourcesOutcome { notes, usdt, nbd_lost } =
            self.sources.collect(trace.as_ref().ok(), joined.link_stats.as_ref())?;
        let mut outcome = RunOutcome { usdt_stats: usdt, nbd_lost, ..RunOutcome::of(joined) };
        let unread = self.unread_modules.note().into_iter().chain(of_guests);
        outcome.source_notes = unread.chain(std::mem::take(&mut outcome.source_notes)).chain(notes).collect();
        outcome.report.set_disk_counts(self.disk_counts.stop());
        match trace {
            Ok(trace) => {
                outcome.report.set_final_state(trace.final_state);
                outcome.tracer = (trace.stats, None);
            }
            Err(error) => outcome.tracer.1 = Some(error),
        }
        Ok(outcome)
    }
}
