//! Metrics and health of the agent.
//!
//! *In*: the counters of each batch, of the producer and of the bus. *Out*: metric families and
//! health. *Invariant*: fired = recorded + dropped holds in each scrape, up to the records in the
//! rings (at most 20 ms of records); accepted = delivered + failed + waiting.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use blkkin_bus::ChannelStats;
use blkkin_bus::kafka::{DeliveryStats, EVENTS};
use blkkin_bus::spool::SpoolStats;
use blkkin_tracer::attach::modules::UnreadModules;
use blkkin_tracer::capture::CaptureControl;
use blkkin_tracer::enrich::nbd::NbdStatsHandle;
use blkkin_tracer::selection::budget::BudgetStatus;
use blkkin_wire::batch::{RecordStats, SourceStats};
use blkkin_wire::crash_report::CrashedRun;

mod explained;
mod families;
use super::budget::BudgetReport;
use super::flight_recorder::{DumpCause, DumpControl, TooSoon};
use super::request_metrics::RequestMetrics;
use super::runtime_control::RuntimeControl;
use crate::guests::GuestStats;
use crate::service::{ClusterWait, DumpAnswer, Heartbeat, MetricFamily, MetricKind, Outage, ServiceStatus};
use crate::sources::lttng::LttngMetrics;
use crate::sources::usdt;
pub(super) use explained::Explained;

/// Metrics shared by the sender thread and the observers.
#[derive(Debug)]
pub(crate) struct AgentMetrics {
    snapshot: Mutex<Snapshot>,
    /// Beats for each batch, and while one waits for the cluster.
    pub(crate) heartbeat: Heartbeat,
    stall_timeout: Duration,
    /// Metrics of the LTTng source, with `--ust`.
    lttng: Option<LttngMetrics>,
    /// Metrics of the USDT source, with `--probes`.
    usdt: Option<usdt::UsdtMetrics>,
    /// The wait for the cluster and its topic, unless the agent records to a folder.
    cluster_wait: OnceLock<ClusterWait>,
    /// Counters of NBD client requests, with `--nbd`.
    nbd: Option<NbdStatsHandle>,
    /// Control of the flight recorder, with `--flight-recorder`.
    flight_recorder: OnceLock<Arc<DumpControl>>,
    /// Report of the budget, with `--budget`.
    budget: OnceLock<BudgetReport>,
    /// Settings that may change, with head sampling.
    capture: OnceLock<CaptureControl>,
    /// Counters of changes, with `--ctl` or `--ctl-topic`.
    control: OnceLock<RuntimeControl>,
    /// Counters of guests, with `--guests`.
    guests: OnceLock<Arc<GuestStats>>,
    /// Totals of requests, with `--totals`.
    totals: OnceLock<RequestMetrics>,
    explained: Mutex<Explained>,
    unread_modules: UnreadModules,
}

#[derive(Clone, Debug, Default)]
struct Snapshot {
    stats: SourceStats,
    deliveries: DeliveryStats,
    bus: ChannelStats,
    /// Counters of the spool; `None` without one. Then the number of disk failures.
    spool: Option<SpoolStats>,
    spool_failures: u64,
    crashed_runs: Vec<CrashedRun>,
    /// The outage of the cluster, while it lasts.
    outage: Option<Outage>,
}

impl AgentMetrics {
    /// Creates the metrics. Without a batch for `stall_timeout` the agent is unhealthy.
    pub(crate) fn new(
        stall_timeout: Duration,
        (lttng, usdt): (Option<LttngMetrics>, Option<usdt::UsdtMetrics>),
        nbd: Option<NbdStatsHandle>,
        explained: Explained,
        unread_modules: UnreadModules,
    ) -> AgentMetrics {
        let (snapshot, cluster_wait) = Default::default();
        let (heartbeat, explained) = (Heartbeat::new(), explained.into());
        AgentMetrics {
            snapshot,
            heartbeat,
            stall_timeout,
            lttng,
            usdt,
            cluster_wait,
            nbd,
            flight_recorder: OnceLock::new(),
            budget: OnceLock::new(),
            capture: OnceLock::new(),
            control: OnceLock::new(),
            guests: OnceLock::new(),
            totals: OnceLock::new(),
            explained,
            unread_modules,
        }
    }

    /// Takes over the counters that a batch carries, and records a beat.
    pub(crate) fn record_batch(&self, stats: &SourceStats, bus: ChannelStats) {
        self.heartbeat.beat();
        self.explained().sample();
        self.budget.get().into_iter().for_each(BudgetReport::log_change);
        self.totals.get().into_iter().for_each(RequestMetrics::read_in_time);
        let mut snapshot = self.snapshot();
        (snapshot.stats, snapshot.bus) = (stats.clone(), bus);
    }

    /// Updates the delivery counters.
    pub(crate) fn set_deliveries(&self, deliveries: DeliveryStats) {
        self.snapshot().deliveries = deliveries;
    }

    /// Updates the spool's counters.
    pub(crate) fn set_spool(&self, counts: SpoolStats) {
        self.snapshot().spool = Some(counts);
    }

    /// Counts a failure of the spool's disk.
    pub(crate) fn spool_failed(&self) {
        self.snapshot().spool_failures += 1;
    }

    /// Records the begin or the end of an outage of the cluster.
    pub(crate) fn set_outage(&self, outage: Option<Outage>) {
        self.snapshot().outage = outage;
    }

    /// Sets the wait for the cluster, which the metrics report until the cluster is usable.
    pub(crate) fn set_cluster_wait(&self, cluster_wait: ClusterWait) {
        // It is set once.
        let _ = self.cluster_wait.set(cluster_wait);
    }

    /// Returns whether the cluster or its topic was not found yet.
    pub(crate) fn is_waiting_for_cluster(&self) -> bool {
        self.cluster_wait.get().and_then(ClusterWait::status).is_some()
    }

    /// Sets the totals of requests.
    pub(super) fn set_totals(&self, totals: RequestMetrics) {
        // It is set once.
        let _ = self.totals.set(totals);
    }

    /// Sets what the budget does.
    pub(crate) fn set_budget(&self, status: BudgetStatus) {
        // It is set once.
        let _ = self.budget.set(BudgetReport::new(status));
    }

    /// Sets the settings that may change.
    pub(crate) fn set_capture(&self, capture: CaptureControl) {
        // It is set once.
        let _ = self.capture.set(capture);
    }

    /// Sets the counters of changes by `blkkin ctl`.
    pub(super) fn set_control(&self, control: RuntimeControl) {
        // It is set once.
        let _ = self.control.set(control);
    }

    /// Sets the control of the flight recorder, of which the metrics report the counters.
    pub(crate) fn set_flight_recorder(&self, control: Arc<DumpControl>) {
        // It is set once.
        let _ = self.flight_recorder.set(control);
    }

    /// Requests a dump of the flight recorder.
    pub(crate) fn dump(&self, cause: DumpCause) -> DumpAnswer {
        let Some(control) = self.flight_recorder.get() else { return DumpAnswer::NoRecorder };
        match control.request(cause, Instant::now()) {
            Ok(stats) => DumpAnswer::Started(stats.to_string()),
            Err(TooSoon { wait }) => DumpAnswer::TooSoon(wait),
        }
    }

    /// Returns the counters of guests, which the metrics report from now on.
    pub(crate) fn start_guests(&self) -> Arc<GuestStats> {
        Arc::clone(self.guests.get_or_init(Arc::default))
    }

    /// Sets the crashed runs, whose losses the metrics report.
    pub(crate) fn set_crashed_runs(&self, crashed_runs: Vec<CrashedRun>) {
        self.snapshot().crashed_runs = crashed_runs;
    }

    fn explained(&self) -> MutexGuard<'_, Explained> {
        self.explained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServiceStatus for AgentMetrics {
    fn metric_families(&self) -> Vec<MetricFamily> {
        let Snapshot { stats, deliveries, bus, spool, spool_failures, crashed_runs, .. } =
            self.snapshot().clone();
        let kinds = |of: fn(&RecordStats) -> u64| {
            stats.kinds().into_iter().map(move |(kind, records)| (kind, of(&records)))
        };
        let lost = [
            ("end missed", stats.ends_missed),
            ("table full", stats.untracked),
            ("task not traced", stats.tasks_missed),
            ("program skipped", stats.recursion_misses),
            ("malformed", stats.malformed),
            ("bio walk limit", stats.walk_overflow),
            ("flush walk limit", stats.flush_overflow),
            ("32-bit call", stats.calls_compat),
            ("path unread", stats.paths_failed),
            ("writer of dirty data evicted", stats.dirty_writes_evicted),
        ];
        let counter =
            |name, help, value: u64| MetricFamily::single(MetricKind::Counter, name, help, value as f64);
        let gauge =
            |name, help, value: u64| MetricFamily::single(MetricKind::Gauge, name, help, value as f64);
        let mut families = vec![
            MetricFamily::by_label(
                "kind",
                "records_fired",
                "Records that the kernel side attempted to write",
                kinds(|a| a.fired),
            ),
            MetricFamily::by_label(
                "kind",
                "records_read",
                "Records read from the rings",
                kinds(|a| a.recorded),
            ),
            MetricFamily::by_label(
                "kind",
                "records_dropped",
                "Records dropped because a ring was full",
                kinds(|a| a.dropped),
            ),
            MetricFamily::by_label(
                "reason",
                "records_incomplete",
                "Parts of storage operations without a record",
                lost,
            ),
            gauge("bus_events", "Events between the rings and the sender", bus.waiting().events),
            counter("agent_events_accepted", "Events handed to the producer", deliveries.accepted),
            counter("agent_events_delivered", "Events that the cluster acknowledged", deliveries.delivered),
            counter("agent_events_failed", "Events that the cluster refused", deliveries.failed),
            gauge("agent_events_waiting", "Events in flight to the cluster", deliveries.waiting()),
            counter(
                "agent_bytes_delivered",
                "Bytes that the cluster acknowledged, before compression",
                deliveries.bytes,
            ),
            MetricFamily::single(
                MetricKind::Counter,
                "agent_waited_seconds",
                "Time that the agent waited for the cluster to accept records",
                deliveries.waited_ns as f64 / 1e9,
            ),
        ];
        families.push(MetricFamily::by_label(
            "by",
            "calls_filtered",
            "System calls that a filter or head sampling dropped, by the side that did",
            vec![
                ("kernel", stats.calls_filtered),
                ("reader", stats.calls_excluded),
                ("sampling", stats.calls_unsampled),
            ],
        ));
        families.push(MetricFamily::by_label(
            "reason",
            "operations_kept",
            "Storage operations that --keep kept when they ended, by the reason",
            vec![("slow", stats.kept_slow), ("failed", stats.kept_failed), ("large", stats.kept_large)],
        ));
        families.push(counter(
            "names_displaced",
            "Files whose path is sent again at their next use, for lack of room in the kernel side's table",
            stats.names_displaced,
        ));
        families
            .extend(spool.map(|counts| families::of_spool(&counts, spool_failures)).into_iter().flatten());
        families.push(gauge(
            "kernel_modules_unread",
            "Kernel modules that were loaded after tracing began, whose structures are unknown",
            self.unread_modules.loaded_since().len() as u64,
        ));
        families.extend(self.explained().metric_families());
        families.extend(families::of_contexts(&stats));
        families.extend(families::of_resources(&stats));
        families.extend(families::of_crashed_runs(&crashed_runs));
        families.extend(self.lttng.iter().flat_map(LttngMetrics::metric_families));
        families.extend(self.usdt.iter().flat_map(usdt::UsdtMetrics::metric_families));
        families.extend(self.nbd.iter().flat_map(|nbd| families::of_nbd(&nbd.get())));
        families.extend(self.flight_recorder.get().into_iter().flat_map(|control| control.metric_families()));
        families.extend(self.budget.get().into_iter().flat_map(BudgetReport::metric_families));
        families.extend(self.capture.get().and_then(families::of_percentiles));
        families.extend(self.control.get().into_iter().flat_map(RuntimeControl::metric_families));
        families.extend(self.guests.get().into_iter().flat_map(|guests| guests.metric_families()));
        families.extend(self.totals.get().into_iter().flat_map(RequestMetrics::metric_families));
        families
    }

    fn request_dump(&self) -> DumpAnswer {
        self.dump(DumpCause::Request)
    }

    fn unhealthy_reason(&self) -> Option<String> {
        let since_last = self.heartbeat.since_last();
        (since_last > self.stall_timeout)
            .then(|| format!("no batch from the rings for {} s", since_last.as_secs()))
    }

    fn notes(&self) -> Vec<String> {
        // The obstacle of the wait is nearer to the cause, such as a topic that may not be created,
        // than the outage.
        let searching = self.cluster_wait.get().and_then(ClusterWait::status);
        let outage =
            || self.snapshot().outage.as_ref().map(|outage| format!("{EVENTS} is unreachable {outage}"));
        searching
            .or_else(outage)
            .into_iter()
            .chain(self.unread_modules.note())
            .chain(self.explained().notes())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use blkkin_tracer::stats::device_bytes::DeviceBytesHandle;

    use super::*;
    use crate::service::{Labels, Sample};

    /// Returns the notes without those of the disks.
    fn outage(metrics: &AgentMetrics) -> Vec<String> {
        metrics.notes().into_iter().filter(|note| note.starts_with("blkkin.events")).collect()
    }

    fn new(stall_timeout: Duration) -> AgentMetrics {
        let explained = Explained::start(DeviceBytesHandle::default(), Vec::new());
        AgentMetrics::new(stall_timeout, (None, None), None, explained, UnreadModules::default())
    }

    #[test]
    fn metrics_show_the_counters() {
        let metrics = new(Duration::from_secs(30));
        let calls = RecordStats { fired: 7, recorded: 4, dropped: 3 };
        let stats =
            SourceStats { calls, untracked: 2, calls_compat: 4, paths_failed: 8, ..SourceStats::default() };
        let deliveries = DeliveryStats { accepted: 9, delivered: 5, failed: 1, ..DeliveryStats::default() };
        metrics.record_batch(&stats, ChannelStats::default());
        metrics.set_deliveries(deliveries);
        let families = metrics.metric_families();
        let values = |name: &str| -> Vec<f64> {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let value = |(_, sample): &(Labels, Sample)| match sample {
                Sample::Number(value) => *value,
                Sample::Histogram(_) => panic!("{family:?}"),
            };
            family.samples.iter().map(value).collect()
        };
        let calls = ["records_fired", "records_read", "records_dropped"].map(|name| values(name)[0]);
        assert_eq!(calls, [7.0, 4.0, 3.0]);
        assert_eq!((values("agent_events_waiting"), values("records_incomplete")[1]), (vec![3.0], 2.0));
        let contexts =
            SourceStats { contexts_publishing: 3, contexts_unread: 5, contexts_denied: 7, ..stats.clone() };
        let contexts = SourceStats { resources_publishing: 9, resources_malformed: 11, ..contexts };
        metrics.record_batch(&contexts, ChannelStats::default());
        let families = metrics.metric_families();
        let sum = |name: &str| -> f64 {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let number = |(_, sample): &(Labels, Sample)| match sample {
                Sample::Number(value) => *value,
                Sample::Histogram(_) => panic!("{family:?}"),
            };
            family.samples.iter().map(number).sum()
        };
        let shown = ["contexts_processes", "contexts_calls", "contexts_processes_skipped"].map(sum);
        assert_eq!(shown, [3.0, 5.0, 7.0]);
        assert_eq!(["resources_processes", "resources_failed"].map(sum), [9.0, 11.0]);
        let lost: f64 = ["records_dropped", "records_incomplete"].iter().flat_map(|name| values(name)).sum();
        assert_eq!(lost, stats.lost() as f64, "all that counts as lost has a name");
    }

    #[test]
    fn unreachable_cluster_is_reported_until_it_answers() {
        let metrics = new(Duration::from_secs(30));
        assert!(outage(&metrics).is_empty());
        metrics.set_outage(Some(Outage::new("why".to_owned())));
        let notes = outage(&metrics);
        assert!(
            notes.len() == 1 && notes[0].starts_with("blkkin.events is unreachable since 20"),
            "{notes:?}"
        );
        assert!(notes[0].ends_with(": why") && metrics.unhealthy_reason().is_none(), "{notes:?}");
        metrics.set_outage(None);
        assert!(outage(&metrics).is_empty());
    }

    #[test]
    fn agent_without_batches_is_unhealthy() {
        let metrics = new(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(metrics.unhealthy_reason().is_some());
        assert_eq!(new(Duration::from_secs(30)).unhealthy_reason(), None);
    }
}
