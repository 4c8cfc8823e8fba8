//! `blkkin agent`: sends the events of this machine to a Kafka topic, until a signal.
//!
//! ```text
//! thread "drain"                          thread "send"
//! Tracer::run ── bus ── sources ── bus ── EventBatcher → SenderWindow → Kafka
//!                       │                                └ spool (a folder, bounded)
//!                       └ --ust, --probes: a thread and a bus each (crate::sources)
//! with --port, in a guest: EventBatcher → port → the host's agent (port.rs)
//! with --flight-recorder: between bus and EventBatcher, the last seconds wait for a dump (flight_recorder.rs)
//! thread "guests": records of guests → Kafka, or a recording (crate::guests)
//! thread "cluster": creates the topic, reports outages
//! threads "ctl", "ctl-topic": change what the kernel side records (runtime_control.rs)
//! ```
//!
//! *In*: a loaded tracer, and a cluster that may not be reachable yet. *Out*: Kafka records, and a
//! summary of every event's fate at shutdown. *Invariant*: no stage between the rings and the
//! cluster drops events. While the cluster accepts no more, the spool fills (without one, the
//! producer's queue), then the bus, then the rings, and the kernel counts the drops there. The next
//! start reports the losses of a killed agent (`crash_recovery.rs`).
//!
//! The agent joins nothing: a trace across machines is complete only where their events are joined.
//! So of `--path` it has the part that needs no whole trace (`tracer/src/selection/path_filter/`).

mod budget;
mod config;
mod counter_store;
mod crash_recovery;
mod event_input;
mod flight_recorder;
mod load;
mod metrics;
mod name_store;
mod pipeline;
mod port;
mod replay;
mod request_metrics;
mod runtime_control;
mod send;
mod send_totals;
mod sender_window;
mod shutdown;
mod spool_config;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use blkkin_bus::kafka::{EVENTS, EventProducer, KafkaError, Settings};
use blkkin_bus::recording::Recorder;
use blkkin_tracer::StopSignal;
use blkkin_wire::crash_report::CrashedRun;
use tracing::{info, warn};

use crate::cli::AgentArgs;
use crate::control::ControlReceiver;
use crate::control::signals::DUMP_SIGNAL;
use crate::error::CliError;
use crate::guests::{Cluster, Guests, RecordTarget, Recorded, SharedRecorder};
use crate::privileges::{self, Confinement, DrainThread};
use crate::service::kafka::{TIMED_BY_BROKER, settings};
use crate::service::{
    ClusterWait, DumpAnswer, Endpoint, Port, ServiceEvent, ServiceStatus, Systemd, next_event,
};
use config::{domain, reject_capture_with_replay};
use counter_store::CounterStore;
use crash_recovery::{CrashRecovery, RunMarker};
use flight_recorder::{DumpCause, FlightRecorder};
use load::{LoadedTracer, load};
use metrics::{AgentMetrics, Explained};
use pipeline::AgentPipeline;
use runtime_control::RuntimeControl;
use send::{ClusterSink, EventSink};
use send_totals::DRAIN_TIMEOUT;

/// Traces and sends until a signal.
pub(crate) fn agent(args: &AgentArgs) -> Result<ExitCode, CliError> {
    // Signals are received before the probes are attached: a signal meanwhile ends the agent and
    // does not kill it.
    let mut control = ControlReceiver::open_with(&[DUMP_SIGNAL])?;
    reject_capture_with_replay(args)?;
    let recorder = flight_recorder::open(&args.flight)?;
    if let Some(path) = &args.port {
        return to_host(args, path, recorder, control);
    }
    let Some(brokers) = &args.brokers else { return record(args, recorder, control) };
    let settings = settings(brokers, &args.set)?;
    if let Some(folder) = &args.replay {
        privileges::confine_service(vec![folder.clone()])?;
        start_cluster_wait(&settings, args.partitions, &StopSignal::new(), &control)?;
        return replay::replay(folder, &settings, args.rate, &mut control);
    }
    let domain = args.domain.as_deref().map(domain).transpose()?;
    let spool = spool_config::open(args)?;
    let counter_store = CounterStore::open(&args.bpffs);
    let mut crash_recovery = CrashRecovery::detect(&counter_store, spool.as_ref());
    let mut traced = load(args)?;
    let node = traced.tracer.source().node;
    let domain = domain.unwrap_or(node);
    let exported = counter_store.and_then(|counter_store| {
        if args.flight.flight_recorder.is_some() {
            return Err("what the flight recorder overwrites would be among them".to_owned());
        }
        let exported = traced.tracer.export_counters().map_err(|error| error.to_string())?;
        Ok((counter_store.save(&exported)?, exported.progress))
    });
    if let Err(why) = &exported {
        warn!(why, "losses of this agent after a crash will be unknown: {why}");
    }
    let (own_counters, progress_map) = exported.ok().unzip();
    let counters_epoch = own_counters.as_ref().map(|_| traced.tracer.source().epoch);
    let marker = spool.as_ref().map(|spool| RunMarker::new(spool.folder(), counters_epoch));
    marker.iter().for_each(|marker| crash_recovery.install_marker(marker));
    let confined = traced.confine()?;
    spool.as_ref().map_or(Ok(()), |spool| spool_config::check_writable(spool.folder()))?;
    let producer = EventProducer::new(&settings, domain).map_err(no_cluster)?;
    let target = format!("{EVENTS} at {}", settings.brokers);
    let crashed_runs = crash_recovery.crashed_runs.clone();
    let record_bytes = settings.record_bytes();
    let sink = EventSink::Cluster(Box::new(ClusterSink {
        producer,
        record_bytes,
        node,
        domain,
        spool,
        progress_map,
        crash_recovery,
    }));
    let result =
        serve(args, (traced, confined), (recorder, sink), Some((settings, crashed_runs)), target, control);
    // The agent has reported its own end, so the next start has nothing to report.
    drop(own_counters);
    marker.into_iter().for_each(RunMarker::remove);
    result
}

/// Records into a folder.
fn record(
    args: &AgentArgs,
    mut flight_recorder: Option<FlightRecorder>,
    control: ControlReceiver,
) -> Result<ExitCode, CliError> {
    let folder = args.record.clone().unwrap_or_default();
    if args.guests.is_some() && flight_recorder.is_some() {
        return Err(CliError::usage(
            "--guests and --flight-recorder with --record",
            "a dump has the last seconds of this machine, and the recording would have all of its guests",
            "--guests with --record alone, or with --brokers",
        ));
    }
    let recorder = Recorder::open(&folder).map_err(|error| {
        let what = format!("cannot record into {}", folder.display());
        CliError::cannot_trace(what, error, "a writable folder, on a disk that is not traced")
    })?;
    let traced = load(args)?;
    let confined = traced.confine()?;
    spool_config::check_writable(&folder)?;
    let target = folder.display().to_string();
    flight_recorder.iter_mut().for_each(FlightRecorder::disable_idle_batches);
    let sink = EventSink::Folder(SharedRecorder::new(recorder));
    serve(args, (traced, confined), (flight_recorder, sink), None, target, control)
}

/// Sends to the agent of the host, from inside a virtual machine.
fn to_host(
    args: &AgentArgs,
    path: &Path,
    recorder: Option<FlightRecorder>,
    control: ControlReceiver,
) -> Result<ExitCode, CliError> {
    let port = port::Port::open(path)?;
    let traced = load(args)?;
    let confined = traced.confine()?;
    let target = port.name();
    serve(args, (traced, confined), (recorder, EventSink::Host(port)), None, target, control)
}

/// Traces as a service, until a signal or the end of the pipeline.
fn serve(
    args: &AgentArgs,
    (loaded, (drain, confinement)): (LoadedTracer, (DrainThread, Confinement)),
    (recorder, sink): (Option<FlightRecorder>, EventSink),
    cluster: Option<(Settings, Vec<CrashedRun>)>,
    target: String,
    mut control: ControlReceiver,
) -> Result<ExitCode, CliError> {
    let systemd = Systemd::from_env();
    let LoadedTracer { tracer, sources, devices, control_socket, totals } = loaded;
    let lttng_metrics = sources.lttng.as_ref().map(|(_, metrics)| metrics.clone());
    let usdt_metrics = sources.usdt.as_ref().map(|(_, metrics)| metrics.clone());
    let source_metrics = (lttng_metrics, usdt_metrics);
    let metrics = Arc::new(AgentMetrics::new(
        systemd.stall_timeout(),
        source_metrics,
        tracer.nbd_stats(),
        Explained::start(tracer.device_bytes(), devices),
        tracer.unread_modules(),
    ));
    totals.into_iter().for_each(|totals| metrics.set_totals(totals));
    tracer.budget().into_iter().for_each(|status| metrics.set_budget(status));
    let capture = tracer.capture();
    capture.iter().for_each(|capture| metrics.set_capture(capture.clone()));
    let capture = capture.filter(|_| args.is_controlled());
    let runtime_control =
        capture.map(|capture| RuntimeControl::start(args, capture, control_socket)).transpose()?;
    runtime_control.iter().for_each(|control| metrics.set_control(control.clone()));
    recorder.iter().for_each(|recorder| metrics.set_flight_recorder(recorder.control()));
    let _metrics = Endpoint::start(
        args.service.metrics,
        args.service.metrics_token.as_deref(),
        Port::Agent,
        Arc::clone(&metrics) as Arc<dyn ServiceStatus>,
    )?;
    let status = match &recorder {
        None => format!("tracing; events go to {target}"),
        Some(recorder) => format!("tracing; a dump of {recorder} goes to {target}"),
    };
    let source = tracer.source();
    // Where records of guests go.
    let (mut domain, mut recording) = (source.node, None);
    match &sink {
        EventSink::Cluster(sink) => {
            sink.spool.iter().for_each(|spool| metrics.set_spool(spool.stats()));
            domain = sink.domain;
        }
        EventSink::Folder(recorder) => recording = Some(recorder.clone()),
        EventSink::Host(_) => {}
    }
    let pipeline =
        AgentPipeline::start((tracer, drain), sources, (recorder, sink), target, &control, &metrics)?;
    let mut guests = None;
    if let Some(folder) = &args.guests {
        let target: Option<Box<dyn RecordTarget>> = match (&cluster, recording) {
            (Some((settings, _)), _) => {
                let producer = EventProducer::new(settings, domain).map_err(no_cluster)?;
                Some(Box::new(Cluster::new(producer, domain)))
            }
            (None, recording) => recording.map(|recorder| Box::new(Recorded::new(recorder)) as Box<_>),
        };
        let start = |target| {
            let stats = metrics.start_guests();
            Guests::start(folder, target, (source, Vec::new()), stats, &pipeline.stop)
        };
        guests = target.map(start).transpose()?;
    }
    if let Some((settings, crashed_runs)) = cluster {
        if let (Some(topic), Some(control)) = (&args.ctl_topic, &runtime_control) {
            control.follow(&settings, topic, source.node, &pipeline.stop)?;
        }
        metrics.set_crashed_runs(crashed_runs);
        metrics.set_cluster_wait(start_cluster_wait(&settings, args.partitions, &pipeline.stop, &control)?);
    }
    info!("{confinement}");
    info!("{status}");
    systemd.ready(&status);
    while next_event(&mut control, &systemd, || metrics.heartbeat.since_last()) == ServiceEvent::DumpRequested
    {
        match metrics.dump(DumpCause::Signal) {
            DumpAnswer::Started(_) => {}
            DumpAnswer::NoRecorder => {
                warn!("SIGUSR1 asks for a dump, and there is no flight recorder (--flight-recorder)")
            }
            DumpAnswer::TooSoon(wait) => warn!(
                "SIGUSR1 asks for a dump; the last one was a moment ago, and the next one may begin in {} s (--dump-every)",
                wait.as_secs() + 1
            ),
        }
    }
    systemd.stopping(DRAIN_TIMEOUT + DRAIN_TIMEOUT);
    // Left behind it does no harm: the next agent replaces it.
    args.ctl.iter().for_each(|socket| drop(std::fs::remove_file(socket)));
    let code = pipeline.finish();
    guests.into_iter().flat_map(Guests::join).for_each(|note| info!("{note}"));
    code
}

/// Starts to create the topic, in the background.
fn start_cluster_wait(
    settings: &Settings,
    partitions: u32,
    stop: &StopSignal,
    control: &ControlReceiver,
) -> Result<ClusterWait, CliError> {
    let settings = settings.clone();
    let attempt = move || settings.ensure_topic(EVENTS, partitions, TIMED_BY_BROKER);
    ClusterWait::start("the cluster answers", control, stop, attempt)
}

/// Converts an error of the Kafka client at the start.
fn no_cluster(error: KafkaError) -> CliError {
    CliError::cannot_trace(error.what, error.why, error.remedy)
}
