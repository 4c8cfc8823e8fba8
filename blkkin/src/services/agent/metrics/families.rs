//! Metric families of the spool, thread contexts, NBD, rules with a percentile, and crashed runs.

use std::time::SystemTime;

use blkkin_bus::spool::SpoolStats;
use blkkin_tracer::capture::CaptureControl;
use blkkin_tracer::enrich::nbd::NbdStats;
use blkkin_wire::batch::SourceStats;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::crash_report::{CrashedRun, RecordCounts};

use crate::service::{MetricFamily, MetricKind, Sample};

/// Returns the families of the spool.
pub(super) fn of_spool(counts: &SpoolStats, failures: u64) -> Vec<MetricFamily> {
    let one = |kind, name, help, value: u64| MetricFamily::single(kind, name, help, value as f64);
    let age =
        counts.oldest.and_then(|oldest| SystemTime::now().duration_since(oldest).ok()).unwrap_or_default();
    vec![
        one(MetricKind::Gauge, "spool_bytes", "Size of the spool's files in bytes", counts.bytes),
        one(
            MetricKind::Gauge,
            "spool_batches",
            "Spooled batches that the cluster has not acknowledged",
            counts.batches,
        ),
        MetricFamily::single(
            MetricKind::Gauge,
            "spool_oldest_seconds",
            "Age of the oldest file with such a batch",
            age.as_secs_f64(),
        ),
        one(
            MetricKind::Counter,
            "spool_batches_recovered",
            "Batches recovered from earlier starts",
            counts.recovered,
        ),
        one(MetricKind::Counter, "spool_batches_written", "Batches written to the spool", counts.written),
        one(
            MetricKind::Counter,
            "spool_batches_read",
            "Batches read from the spool to be sent",
            counts.read_back,
        ),
        one(MetricKind::Counter, "spool_batches_corrupt", "Corrupt batches in the spool", counts.corrupt),
        one(MetricKind::Counter, "spool_failures", "Failures of the spool's disk", failures),
    ]
}

/// Returns the families of thread contexts.
pub(super) fn of_contexts(stats: &SourceStats) -> [MetricFamily; 3] {
    let processes = MetricFamily::single(
        MetricKind::Gauge,
        "contexts_processes",
        "Processes that publish thread contexts",
        stats.contexts_publishing as f64,
    );
    let calls = [
        ("faulted", stats.contexts_faulted),
        ("unread", stats.contexts_unread),
        ("invalid", stats.contexts_invalid),
        ("attributes truncated", stats.attributes_cut),
        ("attributes unread", stats.attributes_unread),
    ];
    let skipped = [("permission denied", stats.contexts_denied), ("table full", stats.contexts_no_room)];
    [
        processes,
        MetricFamily::by_label(
            "reason",
            "contexts_calls",
            "System calls without a valid thread context at entry or return, or without its attributes",
            calls,
        ),
        MetricFamily::by_label(
            "reason",
            "contexts_processes_skipped",
            "Processes whose thread contexts are not read",
            skipped,
        ),
    ]
}

/// Returns the families of process contexts.
pub(super) fn of_resources(stats: &SourceStats) -> [MetricFamily; 2] {
    let failures = [
        ("malformed", stats.resources_malformed),
        ("unread", stats.resources_unread),
        ("table full", stats.resources_no_room),
    ];
    [
        MetricFamily::single(
            MetricKind::Gauge,
            "resources_processes",
            "Processes that publish a process context",
            stats.resources_publishing as f64,
        ),
        MetricFamily::by_label(
            "reason",
            "resources_failed",
            "Process contexts that could not be read",
            failures,
        ),
    ]
}

/// Returns the families of NBD client requests.
pub(super) fn of_nbd(metrics: &NbdStats) -> [MetricFamily; 5] {
    let one = |name, help, value: u64| MetricFamily::single(MetricKind::Counter, name, help, value as f64);
    let seen = metrics.unanswered - metrics.evicted - metrics.disconnected;
    let unanswered = [
        ("connection closed", metrics.disconnected),
        ("table full", metrics.evicted),
        ("reply not seen", seen),
    ];
    let unseen = [
        ("split header", metrics.cut_headers),
        ("treated as data", metrics.in_data),
        ("extended header", metrics.extended),
        ("connection untracked", metrics.untracked),
        ("reply without request", metrics.unmatched_replies),
        ("record dropped", metrics.dropped),
    ];
    [
        one(
            "nbd_requests",
            "Requests that NBD clients wrote to their sockets",
            metrics.requests - metrics.not_sent,
        ),
        one("nbd_replies", "Requests with an observed reply", metrics.replies),
        MetricFamily::by_label(
            "reason",
            "nbd_requests_unanswered",
            "Requests emitted without a reply",
            unanswered,
        ),
        MetricFamily::by_label(
            "reason",
            "nbd_messages_missed",
            "Sends, receives and records that were not traced",
            unseen,
        ),
        one(
            "nbd_segments_retransmitted",
            "TCP segments of requests that were retransmitted",
            metrics.retransmits,
        ),
    ]
}

/// Returns the limits of the rules with a percentile that keep something now; none if there is no such rule.
pub(super) fn of_percentiles(capture: &CaptureControl) -> Option<MetricFamily> {
    let limits = capture.percentile_limits();
    let sample = |(rule, slow): (String, Option<DurationNs>)| {
        Some((vec![("rule", rule)], Sample::Number(slow?.0 as f64 / 1e9)))
    };
    (!limits.is_empty()).then(|| MetricFamily {
        name: "keep_percentile_seconds",
        help: "Time from which --keep keeps an operation, by the rule with a percentile",
        kind: MetricKind::Gauge,
        samples: limits.into_iter().filter_map(sample).collect(),
    })
}

/// Returns the families of crashed runs. Unknown losses have no value; their runs are counted.
pub(super) fn of_crashed_runs(crashed_runs: &[CrashedRun]) -> Vec<MetricFamily> {
    let known = crashed_runs.iter().filter_map(|run| run.losses);
    let (lost, unacknowledged) =
        known.fold((RecordCounts::default(), RecordCounts::default()), |(lost, unacknowledged), losses| {
            (lost.saturating_add(&losses.lost()), unacknowledged.saturating_add(&losses.unacknowledged))
        });
    let unknown = crashed_runs.iter().filter(|run| run.losses.is_none()).count() as u64;
    let starts = [("known", crashed_runs.len() as u64 - unknown), ("unknown", unknown)];
    let kinds = |counts: RecordCounts| {
        ["call", "bio", "request", "commit", "name"].into_iter().zip(counts.to_array())
    };
    let mut families = vec![MetricFamily::by_label(
        "losses",
        "crashed_runs",
        "Earlier runs that crashed, or may have crashed if their losses are unknown",
        starts,
    )];
    if unknown == 0 {
        families.push(MetricFamily::by_label(
            "kind",
            "crashed_run_records_lost",
            "Records that crashed runs lost",
            kinds(lost),
        ));
        let help = "Lost records that were sent and not acknowledged: the cluster may have them";
        families.push(MetricFamily::by_label(
            "kind",
            "crashed_run_records_unacknowledged",
            help,
            kinds(unacknowledged),
        ));
    }
    families
}
