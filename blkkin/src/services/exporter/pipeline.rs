//! The workers of the exporter, one thread for each destination.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use blkkin_bus::kafka::{DEAD, Settings, TRACES};
use blkkin_tracer::StopSignal;
use tracing::info;

use super::config::Route;
use super::deadline::StopDeadline;
use super::destination_worker::DestinationWorker;
use super::metrics::ExporterMetrics;
use super::shutdown;
use super::sink::Sink;
use crate::control::{ControlEvent, ControlReceiver, ExitNotifier};
use crate::error::{CliError, cannot_spawn};
use crate::service::{ClusterWait, ServiceEvent, Systemd, next_event};

/// Shutdown timeout: the batch in flight, the last commit, and the remaining lag.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until `blkkin.traces` is readable, and creates the dead-letter topic.
pub(super) fn start_cluster_wait(
    settings: &Settings,
    control: &ControlReceiver,
) -> Result<ClusterWait, CliError> {
    let (settings, events) = (settings.clone(), control.sender());
    // The attempts end with the process: the exporter has no other work yet.
    ClusterWait::start("blkkin.traces can be read", control, &StopSignal::new(), move || {
        settings.partitions(TRACES)?;
        if let Err(error) = settings.ensure_topic(DEAD, 1, &[]) {
            let what = format!("{}: {}; try: {}", error.what, error.why, error.remedy);
            let status = format!("{what}; refused spans wait for this topic, and block the spans after them");
            // The receiver is gone at shutdown.
            let _ = events.send(ControlEvent::Status(status));
        }
        Ok(())
    })
}

/// Runs a worker for each route, until a signal and the end of all workers.
pub(super) fn run(
    settings: &Settings,
    (routes, sinks): (Vec<Route>, Vec<Sink>),
    metrics: &ExporterMetrics,
    systemd: &Systemd,
    control: &mut ControlReceiver,
) -> Result<ExitCode, CliError> {
    let stop = StopDeadline::default();
    let mut threads = Vec::new();
    for ((route, sink), status) in routes.into_iter().zip(sinks).zip(&metrics.destinations) {
        info!(
            destination = status.name,
            group = route.group.name,
            "exporting {TRACES} at {} to {} as {}",
            settings.brokers,
            status.name,
            route.group.name
        );
        let (aborted, settings, stop) = (ExitNotifier(control.sender()), settings.clone(), stop.clone());
        let at_work = Arc::clone(status);
        let thread = Builder::new().name("export".into()).spawn(move || {
            let sender = aborted.0.clone();
            // The receiver is gone at shutdown.
            let notify = move |status| drop(sender.send(ControlEvent::Status(status)));
            DestinationWorker::new(settings, route, sink, stop, Box::new(notify), at_work).run();
            // Dropped after the last status, also on a panic: the main thread must learn of the
            // end.
            drop(aborted);
        });
        threads.push((status, thread.map_err(|error| cannot_spawn("cannot start the exporter", &error))?));
    }
    let to: Vec<_> = metrics.destinations.iter().map(|status| status.name.as_str()).collect();
    systemd.ready(&format!("exporting {TRACES} at {} to {}", settings.brokers, to.join(", ")));
    let mut running = threads.len();
    while running > 0 {
        match next_event(control, systemd, || metrics.since_last()) {
            ServiceEvent::StopRequested => {
                systemd.stopping(SHUTDOWN_TIMEOUT);
                stop.request();
            }
            ServiceEvent::WorkerEnded => running -= 1,
            // Only an agent receives the signal.
            ServiceEvent::DumpRequested => {}
        }
    }
    Ok(shutdown::finish(threads))
}
