//! Main loop of a service: it waits for a signal or the end of a worker.
//!
//! Meanwhile it logs the messages of the workers, passes them to systemd as status, and pings the
//! watchdog while work progresses.

use std::time::Duration;

use tracing::info;

use super::Systemd;
use crate::control::{ControlEvent, ControlReceiver};

/// Event that the main loop returns for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceEvent {
    /// A signal asks the service to stop.
    StopRequested,
    /// A worker ended.
    WorkerEnded,
}

/// Waits for the next event. `since_last` returns the time since the last heartbeat: a worker that
/// panicked no longer beats, so systemd restarts the service.
pub(crate) fn next_event(
    control: &mut ControlReceiver,
    systemd: &Systemd,
    since_last: impl Fn() -> Duration,
) -> ServiceEvent {
    loop {
        let event = control.next(systemd.watchdog_interval().unwrap_or(Duration::MAX));
        systemd.ping_watchdog(since_last());
        match event {
            Some(ControlEvent::Signal(signal)) if !signal.is_child() => return ServiceEvent::StopRequested,
            Some(ControlEvent::PipelineEnded) => return ServiceEvent::WorkerEnded,
            Some(ControlEvent::Status(status)) => {
                info!("{status}");
                systemd.status(&status);
            }
            Some(ControlEvent::Signal(_) | ControlEvent::ClusterReady) | None => {}
        }
    }
}
