//! `blkkin exporter`: delivers traces from a Kafka topic to tracing backends, until a signal.
//!
//! ```text
//! a thread and a consumer group for each destination:
//! TraceConsumer ── fragments → spans ── Sender | SpanFile ── the destination
//!       ↑                                     │ acknowledged     │ refused
//!       └── commit ───────────────────────────┴── blkkin.dead ───┘
//! ```
//!
//! *In*: `blkkin.traces`. *Out*: each span at each destination, or in `blkkin.dead` with the
//! reason; a delivery summary at the end.
//!
//! *Invariant*: the exporter commits an offset only after the destination or `blkkin.dead` has
//! everything before it. So nothing is dropped while a destination is unreachable. After a crash
//! the next exporter resends, byte for byte, what was sent and not committed. Zipkin shows such
//! spans once; a topic, a file or an OTLP receiver has them twice. Duplicates in the topic itself
//! are recognised by sequence number and sent once.
//!
//! Destinations share only the process, so none waits for another. *Rejected*: one group that sends
//! to all destinations (the slowest sets the pace); a queue in memory for each destination (the
//! topic is one already, and survives the process).

mod config;
mod deadline;
mod delivery_observer;
mod destination_worker;
mod duration_histogram;
mod metrics;
mod pending_spans;
mod pipeline;
mod replay;
mod replay_time;
mod shutdown;
mod sink;
mod stats;
mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use blkkin_bus::kafka::{DeadLetters, TRACES};
use blkkin_zipkin_export::Destination;
use tracing::info;

use crate::cli::{ExporterAction, ExporterArgs};
use crate::control::ControlReceiver;
use crate::destination;
use crate::error::{CliError, Status};
use crate::privileges;
use crate::service::kafka::{kafka_failed, settings};
use crate::service::{Endpoint, LagGauge, Port, ServiceStatus, Systemd};
use config::{Route, routes};
use metrics::ExporterMetrics;
use pipeline::{run, start_cluster_wait};
use sink::Sink;
use status::DestinationStatus;

/// Exports until a signal, or rewinds the consumer groups.
pub(crate) fn exporter(args: &ExporterArgs) -> Result<ExitCode, CliError> {
    let routes = routes(args)?;
    let confinement = privileges::confine_service(folders(&routes))?;
    let settings = settings(&args.brokers, &args.set)?;
    if args.action == Some(ExporterAction::Replay) {
        return replay::replay(&settings, &routes, args.from.as_deref().unwrap_or_default());
    }
    if args.from.is_some() {
        let why = "an exporter continues at the committed offset of its group";
        return Err(CliError::usage("--from needs replay", why, "blkkin exporter replay --from TIME …"));
    }
    let mut control = ControlReceiver::open()?;
    // Creating a client validates the settings; it does not connect.
    DeadLetters::new(&settings, "").map_err(kafka_failed)?;
    // Destinations are opened before the wait for the cluster, so that their errors appear at once.
    let config = destination::export_config(routes.iter().map(|route| &route.destination), &args.servers)?;
    let mut sinks = Vec::new();
    for route in &routes {
        sinks.push(Sink::open(route, &settings, &config)?);
    }
    info!("{confinement}");
    let systemd = Systemd::from_env();
    let cluster_wait = start_cluster_wait(&settings, &control)?;
    let destinations: Vec<_> =
        routes.iter().map(|route| Arc::new(DestinationStatus::new(route.destination.to_string()))).collect();
    let metrics = ExporterMetrics {
        destinations,
        stall_timeout: systemd.stall_timeout(),
        cluster_wait: cluster_wait.clone(),
    };
    let metrics = Arc::new(metrics);
    let _metrics = Endpoint::start(
        args.service.metrics,
        args.service.metrics_token.as_deref(),
        Port::Exporter,
        Arc::clone(&metrics) as Arc<dyn ServiceStatus>,
    )?;
    if !cluster_wait.wait(&mut control, &systemd, || metrics.beat()) {
        info!("stopped before the topic was readable");
        return Ok(Status::Success.code());
    }
    LagGauge::watch(
        &settings,
        metrics.destinations.iter().map(|status| (TRACES, status.lag.clone())).collect(),
    )?;
    run(&settings, (routes, sinks), &metrics, &systemd, &mut control)
}

/// Returns the folders of destinations that are files.
fn folders(routes: &[Route]) -> Vec<PathBuf> {
    let folder = |route: &Route| match &route.destination {
        Destination::File(file) => file.parent().map(Path::to_owned),
        Destination::Http(..) | Destination::Grpc(_) | Destination::Kafka { .. } => None,
    };
    routes.iter().filter_map(folder).collect()
}
