//! Metrics of the USDT source, for a long-running service.

use std::sync::{Arc, Mutex, PoisonError};

use blkkin_ust_bridge::correlate::CorrelationStats;

use crate::service::{MetricFamily, MetricKind};

/// Metrics shared by the thread and the observers.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsdtMetrics(Arc<Mutex<UsdtSourceStats>>);

/// Statistics of USDT events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsdtSourceStats {
    /// Events received.
    pub(crate) events: u64,
    /// Events dropped because the rings were full.
    pub(crate) lost: u64,
    /// Events discarded because others were lost meanwhile.
    pub(crate) discarded: u64,
    /// Events with an unreadable argument.
    pub(crate) unread: u64,
    /// Statistics of the correlation.
    pub(crate) correlation: CorrelationStats,
}

impl UsdtMetrics {
    /// Updates the statistics.
    pub(super) fn publish(&self, stats: UsdtSourceStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Returns the metric families.
    pub(crate) fn metric_families(&self) -> Vec<MetricFamily> {
        let UsdtSourceStats { events, lost, discarded, unread, correlation } =
            *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counter =
            |name, help, value: u64| MetricFamily::single(MetricKind::Counter, name, help, value as f64);
        let unused =
            [("ring full", lost), ("discarded after loss", discarded), ("argument unreadable", unread)];
        vec![
            counter("usdt_events", "USDT events of traced threads", events),
            MetricFamily::by_label(
                "reason",
                "usdt_events_lost",
                "USDT events that could not be used",
                unused,
            ),
            counter("usdt_spans", "Daemon spans from USDT events", correlation.spans),
            counter(
                "usdt_spans_unfinished",
                "Of these without an end: their process exited, events were lost, or too many were open",
                correlation.spans_unfinished,
            ),
            counter(
                "usdt_calls_correlated",
                "System calls with such a span as parent",
                correlation.calls_correlated,
            ),
        ]
    }
}
