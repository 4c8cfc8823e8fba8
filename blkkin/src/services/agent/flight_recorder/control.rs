//! Requests for a dump of the flight recorder, from any thread.
//!
//! *In*: requests, by a signal, by the endpoint's `POST /dump` or by a trigger. *Out*: one dump at a time for the
//! recorder; its counters for the metrics. *Invariant*: dumps that clients of the endpoint request begin at least the
//! configured interval apart, and so do those of triggers and signals. So neither a trigger that fires without end nor a
//! client that asks without end sends everything, and the client does not keep a trigger from its dump. A request that
//! comes too soon is counted.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::FlightStats;
use crate::service::{MetricFamily, MetricKind};

/// Reason of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpCause {
    /// SIGUSR1.
    Signal,
    /// `POST /dump`: `blkkin dump`, or a webhook.
    Request,
    /// An operation that took longer than a trigger allows.
    Latency,
    /// An operation that failed.
    Error,
}

impl DumpCause {
    const ALL: [DumpCause; 4] = [DumpCause::Signal, DumpCause::Request, DumpCause::Latency, DumpCause::Error];

    fn label(self) -> &'static str {
        match self {
            DumpCause::Signal => "signal",
            DumpCause::Request => "request",
            DumpCause::Latency => "latency",
            DumpCause::Error => "error",
        }
    }
}

impl fmt::Display for DumpCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DumpCause::Signal => "SIGUSR1",
            DumpCause::Request => "POST /dump",
            DumpCause::Latency => "an operation was slower than --dump-on allows",
            DumpCause::Error => "an operation failed",
        })
    }
}

/// A request that came too soon after the last dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooSoon {
    /// Time until the next dump may begin.
    pub(crate) wait: Duration,
}

/// The requests.
#[derive(Debug)]
pub(crate) struct DumpControl {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requested: Option<DumpCause>,
    /// Last dump of a client, and of a trigger or signal.
    last: [Option<Instant>; 2],
    dumps: [u64; DumpCause::ALL.len()],
    too_soon: u64,
    stats: FlightStats,
}

impl DumpControl {
    /// Creates a control; dumps begin at least `interval` apart.
    pub(crate) fn new(interval: Duration) -> DumpControl {
        DumpControl { interval, state: Mutex::default() }
    }

    /// Requests a dump. Returns what is held.
    pub(crate) fn request(&self, cause: DumpCause, now: Instant) -> Result<FlightStats, TooSoon> {
        let mut state = self.state();
        let last = usize::from(cause != DumpCause::Request);
        let since = state.last[last].map(|last| now.saturating_duration_since(last));
        if let Some(wait) =
            since.and_then(|since| self.interval.checked_sub(since)).filter(|wait| !wait.is_zero())
        {
            state.too_soon += 1;
            return Err(TooSoon { wait });
        }
        (state.requested, state.last[last]) = (Some(cause), Some(now));
        state.dumps[cause as usize] += 1;
        Ok(state.stats)
    }

    pub(super) fn is_requested(&self) -> bool {
        self.state().requested.is_some()
    }

    pub(super) fn take_request(&self) -> Option<DumpCause> {
        self.state().requested.take()
    }

    pub(super) fn set_stats(&self, stats: FlightStats) {
        self.state().stats = stats;
    }

    pub(crate) fn metric_families(&self) -> Vec<MetricFamily> {
        let State { dumps, too_soon, stats, .. } = &*self.state();
        let gauge = |name, help, value| MetricFamily::single(MetricKind::Gauge, name, help, value);
        let counter =
            |name, help, value: u64| MetricFamily::single(MetricKind::Counter, name, help, value as f64);
        vec![
            gauge("flight_held_events", "Events that the flight recorder holds", stats.held_events as f64),
            gauge("flight_held_bytes", "Bytes of these events", stats.held_bytes as f64),
            gauge("flight_held_seconds", "Age of the oldest of these events", stats.held_for.as_secs_f64()),
            MetricFamily::by_label(
                "outcome",
                "flight_events",
                "Events that left the flight recorder",
                vec![("overwritten", stats.overwritten), ("dumped", stats.dumped)],
            ),
            MetricFamily::by_label(
                "cause",
                "flight_dumps",
                "Dumps of the flight recorder",
                DumpCause::ALL.map(|cause| (cause.label(), dumps[cause as usize])),
            ),
            counter(
                "flight_dumps_refused",
                "Requests for a dump that came too soon after another",
                *too_soon,
            ),
            counter(
                "flight_names_forgotten",
                "Names of tasks and files that the flight recorder had no room for",
                stats.names_forgotten,
            ),
        ]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
