//! Metrics of the LTTng source, for a long-running service.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkkin_lttng_live::live::reader::ReaderStats;
use blkkin_ust_bridge::correlate::CorrelationStats;
use tracing::warn;

use crate::service::{MetricFamily, MetricKind};

/// Metrics shared by both threads and the observers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LttngMetrics {
    snapshot: Arc<Mutex<Snapshot>>,
    /// Log problems when they occur; otherwise the summary lists them.
    log_immediately: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    correlation_stats: CorrelationStats,
    counts: ReaderStats,
    restarts: u64,
    connections_refused: u64,
}

impl LttngMetrics {
    /// Creates metrics that log problems when they occur.
    pub(crate) fn log_immediately() -> LttngMetrics {
        LttngMetrics { log_immediately: true, ..LttngMetrics::default() }
    }

    /// Updates the reader's counters.
    pub(super) fn set_reader_stats(&self, counts: ReaderStats, restarts: u64, connections_refused: u64) {
        let mut snapshot = self.snapshot();
        (snapshot.counts, snapshot.restarts) = (counts, restarts);
        snapshot.connections_refused = connections_refused;
    }

    /// Updates the correlator's counters.
    pub(super) fn set_correlation_stats(&self, stats: &CorrelationStats) {
        self.snapshot().correlation_stats = *stats;
    }

    /// Logs a new problem.
    pub(super) fn log_problem(&self, problem: &str) {
        if self.log_immediately {
            warn!("daemons: {problem}");
        }
    }

    /// Returns the metric families.
    pub(crate) fn metric_families(&self) -> Vec<MetricFamily> {
        let Snapshot { correlation_stats, counts, restarts, connections_refused } = *self.snapshot();
        let counter =
            |name, help, value: u64| MetricFamily::single(MetricKind::Counter, name, help, value as f64);
        let lost = [
            ("buffer full", counts.lost.events),
            ("late", counts.late),
            ("in the future", counts.future),
            ("after correlation", correlation_stats.updates_late),
            ("other user's thread", correlation_stats.updates_foreign_user),
        ];
        vec![
            counter("daemon_spans", "Daemon spans received", correlation_stats.spans),
            counter(
                "daemon_spans_unfinished",
                "Daemon spans without an end: their process was killed, or too many were open",
                correlation_stats.spans_unfinished,
            ),
            counter(
                "daemon_spans_foreign_pidns",
                "Daemon spans of an unknown process in another pid namespace, or of a user other than root",
                correlation_stats.spans_foreign_pidns,
            ),
            counter(
                "daemon_calls_correlated",
                "System calls with a daemon span as parent",
                correlation_stats.calls_correlated,
            ),
            counter(
                "daemon_calls_uncorrelated",
                "System calls without a parent because the daemon's events came too late",
                correlation_stats.calls_uncorrelated,
            ),
            MetricFamily::by_label(
                "reason",
                "daemon_events_lost",
                "Daemon events that could not be used",
                lost,
            ),
            counter("daemon_packets_lost", "Packets of daemon events that were lost", counts.lost.packets),
            counter("daemon_session_restarts", "Restarts of the LTTng session", restarts),
            counter(
                "daemon_connections_refused",
                "Connections of other users to the LTTng relay that were refused",
                connections_refused,
            ),
        ]
    }

    fn snapshot(&self) -> MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
