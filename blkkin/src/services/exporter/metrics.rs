//! Metrics and health of the exporter: deliveries, delivery times, lag and outages of each
//! destination.
//!
//! *Bounds*: one series of each family for each destination, times five results or six reasons.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use blkkin_zipkin_export::{AttemptResult, FailureReason};

use super::stats::DestinationStats;
use super::status::DestinationStatus;
use crate::service::{ClusterWait, LagGauge, MetricFamily, MetricKind, Sample, ServiceStatus};

const DESTINATION: &str = "destination";

/// The metrics of all destinations.
pub(super) struct ExporterMetrics {
    pub(super) destinations: Vec<Arc<DestinationStatus>>,
    pub(super) stall_timeout: Duration,
    /// The wait for the cluster.
    pub(super) cluster_wait: ClusterWait,
}

impl ExporterMetrics {
    /// Returns the longest time since a worker's last beat.
    pub(super) fn since_last(&self) -> Duration {
        self.destinations.iter().map(|status| status.heartbeat.since_last()).max().unwrap_or_default()
    }

    /// Records a beat of all workers, which wait for the cluster.
    pub(super) fn beat(&self) {
        self.destinations.iter().for_each(|status| status.heartbeat.beat());
    }

    fn each<'a>(
        &'a self,
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
        of: impl Fn(&DestinationStatus, &DestinationStats) -> Option<Sample> + 'a,
    ) -> MetricFamily {
        let sample = |status: &Arc<DestinationStatus>| {
            let sample = of(status, &status.stats())?;
            Some((vec![(DESTINATION, status.name.clone())], sample))
        };
        MetricFamily { name, help, kind, samples: self.destinations.iter().filter_map(sample).collect() }
    }

    fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        of: fn(&DestinationStats) -> u64,
    ) -> MetricFamily {
        self.each(MetricKind::Counter, name, help, move |_, stats| Some(Sample::Number(of(stats) as f64)))
    }

    fn by(
        &self,
        label: &'static str,
        name: &'static str,
        help: &'static str,
        of: impl Fn(&DestinationStats) -> Vec<(&'static str, u64)>,
    ) -> MetricFamily {
        let mut samples = Vec::new();
        for status in &self.destinations {
            for (value, count) in of(&status.stats()) {
                let labels = vec![(DESTINATION, status.name.clone()), (label, value.to_owned())];
                samples.push((labels, Sample::Number(count as f64)));
            }
        }
        MetricFamily { name, help, kind: MetricKind::Counter, samples }
    }
}

impl ServiceStatus for ExporterMetrics {
    fn metric_families(&self) -> Vec<MetricFamily> {
        let groups = self.destinations.iter().map(|status| (status.name.as_str(), &status.lag));
        let [lag, partitions] =
            LagGauge::metric_families(DESTINATION, ["exporter_lag_records", "exporter_partitions"], groups);
        vec![
            self.counter("exporter_spans_sent", "Spans in requests, counted at each attempt", |stats| {
                stats.sent
            }),
            self.counter("exporter_spans_resent", "Spans that an earlier request carried", |stats| {
                stats.resent
            }),
            // A counter only grows, so spans that were acknowledged and then reported as not
            // accepted still count.
            self.counter("exporter_spans_acknowledged", "Spans that the destination acknowledged", |t| {
                t.delivered + t.not_taken
            }),
            self.counter(
                "exporter_spans_not_taken",
                "Acknowledged spans that the destination did not accept, without naming them",
                |stats| stats.not_taken,
            ),
            self.counter("exporter_spans_refused", "Spans that the destination refused", |stats| {
                stats.rejected
            }),
            self.counter("exporter_spans_dead_lettered", "Refused spans in blkkin.dead", |stats| {
                stats.dead_lettered
            }),
            self.counter("exporter_fragments_received", "Trace fragments received", |stats| stats.fragments),
            self.counter("exporter_fragments_missing", "Trace fragments missing by sequence number", |t| {
                t.missing_fragments
            }),
            self.counter("exporter_records_duplicate", "Duplicate records that were skipped", |t| {
                t.duplicate_records
            }),
            self.counter("exporter_records_unreadable", "Unreadable records in blkkin.dead", |t| {
                t.unreadable
            }),
            self.by("result", "exporter_requests", "Requests by result", requests),
            self.by("reason", "exporter_retries", "Requests that are retried, by reason", retries),
            self.counter("exporter_bytes", "Bytes of all requests, without protocol overhead", |stats| {
                stats.bytes
            }),
            self.each(
                MetricKind::Histogram,
                "exporter_delivery_seconds",
                "Time from the first attempt of a batch until each of its spans has a verdict",
                |_, stats| Some(Sample::Histogram(stats.deliveries.times())),
            ),
            self.each(
                MetricKind::Gauge,
                "exporter_last_acknowledgement_timestamp_seconds",
                "Time of the destination's last acknowledgement, since 1970",
                |_, stats| {
                    let since = stats.acknowledged_at?.duration_since(UNIX_EPOCH).ok()?;
                    Some(Sample::Number(since.as_secs_f64()))
                },
            ),
            self.each(
                MetricKind::Gauge,
                "exporter_destination_up",
                "1 if the destination is reachable",
                |status, _| Some(Sample::Number(if status.is_up() { 1.0 } else { 0.0 })),
            ),
            lag,
            partitions,
        ]
    }

    fn unhealthy_reason(&self) -> Option<String> {
        let stalled =
            self.destinations.iter().find(|status| status.heartbeat.since_last() > self.stall_timeout)?;
        Some(format!(
            "no progress towards {} for {} s",
            stalled.name,
            stalled.heartbeat.since_last().as_secs()
        ))
    }

    fn notes(&self) -> Vec<String> {
        let outages = self.destinations.iter().flat_map(|status| status.notes());
        self.cluster_wait.status().into_iter().chain(outages).collect()
    }
}

/// Every reason, also without an occurrence: a rate needs a first value.
const REASONS: [(FailureReason, &str); 6] = [
    (FailureReason::ConnectFailed, "not reached"),
    (FailureReason::Timeout, "no answer"),
    (FailureReason::Busy, "busy"),
    (FailureReason::ServerError, "failed"),
    (FailureReason::Denied, "denied"),
    (FailureReason::WriteFailed, "not written"),
];

fn retries(stats: &DestinationStats) -> Vec<(&'static str, u64)> {
    REASONS.map(|(reason, name)| (name, stats.requests_with(AttemptResult::Failed(reason)))).to_vec()
}

fn requests(stats: &DestinationStats) -> Vec<(&'static str, u64)> {
    let without = retries(stats).iter().map(|(_, count)| count).sum();
    let with = [
        (AttemptResult::Accepted, "accepted"),
        (AttemptResult::PartlyAccepted, "partial"),
        (AttemptResult::Refused, "refused"),
        (AttemptResult::TooLarge, "too long"),
    ];
    let with = with.map(|(answer, name)| (name, stats.requests_with(answer)));
    with.into_iter().chain([("none", without)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_zipkin_export::Attempt;

    #[test]
    fn metrics_show_the_counters() {
        let status = Arc::new(DestinationStatus::new("zipkin=x".to_owned()));
        let (destinations, stall_timeout) = (vec![Arc::clone(&status)], Duration::from_secs(30));
        let metrics = ExporterMetrics { destinations, stall_timeout, cluster_wait: ClusterWait::default() };
        let attempt = |spans, again, answer| Attempt { spans, bytes: 100, retry: again, result: answer };
        status.stats().attempted(attempt(7, false, AttemptResult::Failed(FailureReason::Busy)));
        status.stats().attempted(attempt(7, true, AttemptResult::Accepted));
        status.stats().delivered += 7;
        let families = metrics.metric_families();
        let value = |name: &str, value: Option<&str>| {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let sample =
                family.samples.iter().find(|(labels, _)| labels.get(1).map(|l| l.1.as_str()) == value);
            match &sample.unwrap().1 {
                Sample::Number(number) => *number,
                Sample::Histogram(_) => panic!("{family:?}"),
            }
        };
        let spans = ["sent", "resent", "acknowledged", "refused"];
        assert_eq!(spans.map(|fate| value(&format!("exporter_spans_{fate}"), None)), [14.0, 7.0, 7.0, 0.0]);
        assert_eq!(value("exporter_bytes", None), 200.0);
        let answers = ["accepted", "refused", "none"].map(|answer| value("exporter_requests", Some(answer)));
        assert_eq!(answers, [1.0, 0.0, 1.0]);
        let reasons = ["busy", "denied"].map(|reason| value("exporter_retries", Some(reason)));
        assert_eq!(reasons, [1.0, 0.0]);
        assert_eq!(value("exporter_destination_up", None), 1.0);
        let acknowledged = families.iter().find(|family| family.name.contains("last_ack")).unwrap();
        assert!(acknowledged.samples.is_empty(), "no acknowledgement, no sample");
    }

    #[test]
    fn stalled_destination_is_named() {
        let destinations = vec![Arc::new(DestinationStatus::new("zipkin=x".to_owned()))];
        let metrics = ExporterMetrics {
            destinations,
            stall_timeout: Duration::ZERO,
            cluster_wait: ClusterWait::default(),
        };
        std::thread::sleep(Duration::from_millis(2));
        assert!(metrics.unhealthy_reason().unwrap().contains("zipkin=x"));
    }
}
