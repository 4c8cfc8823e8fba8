//! The wait for a Kafka cluster that may not be reachable yet.
//!
//! ```text
//! thread "cluster": attempt, every 2 s ── each obstacle once ──► control channel ──► log, systemd, /health
//!                       └── success ───────────────────────► control channel
//! ```
//!
//! *In*: an attempt that succeeds, or returns what prevents it. *Out*: status texts, and
//! [`ControlEvent::ClusterReady`] once. *Invariant*: an obstacle is reported once, however often it
//! recurs. The main thread handles signals at once, because the attempts (up to 20 s each) run in a
//! thread of their own.
//!
//! An agent works meanwhile and only receives the event. Other services wait
//! ([`ClusterWait::wait`]): systemd sees them as starting, and alive while attempts are made.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::KafkaError;
use blkkin_tracer::StopSignal;
use tracing::info;

use super::{Heartbeat, Outage, Systemd};
use crate::control::{ControlEvent, ControlReceiver};
use crate::error::CliError;
use crate::error::cannot_spawn;

/// Time between two attempts, and between two notifications to systemd.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of distinct errors to remember. There are a handful, but the cluster's error
/// texts are unbounded.
const REPORTED_MAX: usize = 64;

/// A wait for a cluster, in progress or done.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterWait {
    outage: Arc<Mutex<Option<Outage>>>,
    heartbeat: Heartbeat,
}

impl ClusterWait {
    /// Starts the attempts in a detached thread. After more than one attempt, the log line on
    /// success begins with `found`: "the cluster answers".
    pub(crate) fn start(
        found: &'static str,
        control: &ControlReceiver,
        stop: &StopSignal,
        mut attempt: impl FnMut() -> Result<(), KafkaError> + Send + 'static,
    ) -> Result<ClusterWait, CliError> {
        let cluster_wait = ClusterWait::default();
        let (waiting, control, stop) = (cluster_wait.clone(), control.sender(), stop.clone());
        let poll = move || {
            // The receiver is gone at shutdown.
            let notify = |event| drop(control.send(event));
            let stopped = || stop.wait(RETRY_INTERVAL);
            if waiting.poll(found, &mut attempt, stopped, |status| notify(ControlEvent::Status(status))) {
                notify(ControlEvent::ClusterReady);
            }
        };
        let failed = |error| cannot_spawn("cannot wait for the cluster", &error);
        Builder::new().name("cluster".into()).spawn(poll).map_err(failed)?;
        Ok(cluster_wait)
    }

    /// Repeats the attempt until it succeeds or `stopped` returns true; returns whether it
    /// succeeded.
    fn poll(
        &self,
        found: &str,
        attempt: &mut impl FnMut() -> Result<(), KafkaError>,
        mut stopped: impl FnMut() -> bool,
        notify: impl Fn(String),
    ) -> bool {
        let (mut reported, started) = (BTreeSet::new(), Instant::now());
        loop {
            self.heartbeat.beat();
            let Err(error) = attempt() else { break };
            self.set_outage(&error);
            if reported.len() < REPORTED_MAX && reported.insert(error.to_string()) {
                notify(format!("{error}; try: {}; retrying until the cluster is usable", error.remedy));
            }
            if stopped() {
                return false;
            }
        }
        *self.outage() = None;
        if !reported.is_empty() {
            notify(format!("{found} after {} s", started.elapsed().as_secs()));
        }
        true
    }

    /// Waits for success; false if a signal asked to stop first. `beat` is called meanwhile,
    /// because a waiting service is healthy.
    pub(crate) fn wait(&self, control: &mut ControlReceiver, systemd: &Systemd, beat: impl Fn()) -> bool {
        loop {
            match control.next(systemd.watchdog_interval().unwrap_or(RETRY_INTERVAL).min(RETRY_INTERVAL)) {
                Some(ControlEvent::ClusterReady) => return true,
                Some(ControlEvent::Signal(signal)) if !signal.is_child() => return false,
                Some(ControlEvent::Status(status)) => {
                    info!("{status}");
                    systemd.status(&status);
                }
                Some(ControlEvent::Signal(_) | ControlEvent::PipelineEnded) | None => {}
            }
            beat();
            systemd.extend_start(self.heartbeat.since_last());
        }
    }

    /// Returns the obstacle and since when it lasts; `None` after success.
    pub(crate) fn status(&self) -> Option<String> {
        self.outage().as_ref().map(|outage| format!("waiting {outage}"))
    }

    fn set_outage(&self, error: &KafkaError) {
        self.outage().get_or_insert_with(|| Outage::new(String::new())).reason = error.to_string();
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn error(what: &str) -> Result<(), KafkaError> {
        Err(KafkaError { what: what.to_owned(), why: "why".to_owned(), remedy: "remedy".to_owned() })
    }

    fn poll_until(answers: &[Result<(), KafkaError>], stop_after: usize) -> (bool, Vec<String>, ClusterWait) {
        let (cluster_wait, reported) = (ClusterWait::default(), RefCell::new(Vec::new()));
        let mut answers = answers.iter().cloned();
        let mut rounds = 0;
        let stopped = || {
            rounds += 1;
            rounds == stop_after
        };
        let found =
            cluster_wait.poll("the cluster answers", &mut || answers.next().unwrap(), stopped, |status| {
                reported.borrow_mut().push(status);
            });
        (found, reported.into_inner(), cluster_wait)
    }

    #[test]
    fn each_obstacle_is_reported_once_also_when_two_alternate() {
        let answers = ["a", "b", "a", "b", "a"].map(error).into_iter().chain([Ok(())]).collect::<Vec<_>>();
        let (found, reported, cluster_wait) = poll_until(&answers, usize::MAX);
        assert!(found && reported.len() == 3, "{reported:?}");
        assert_eq!(reported[0], "a: why; try: remedy; retrying until the cluster is usable");
        assert!(
            reported[1].starts_with("b: ") && reported[2].starts_with("the cluster answers after"),
            "{reported:?}"
        );
        assert_eq!(cluster_wait.status(), None);
    }

    #[test]
    fn immediate_success_is_not_reported() {
        assert_eq!(poll_until(&[Ok(())], 1).1, [""; 0]);
    }

    #[test]
    fn stop_request_ends_the_wait_and_keeps_the_obstacle() {
        let (found, reported, cluster_wait) = poll_until(&[error("a"), error("b")], 2);
        assert!(!found && reported.len() == 2, "{reported:?}");
        let status = cluster_wait.status().unwrap();
        assert!(status.starts_with("waiting since 20") && status.ends_with("b: why"), "{status}");
    }
}
