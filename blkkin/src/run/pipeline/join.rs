//! The join thread: takes batches; produces the report, spans and counters.

use std::time::Duration;

use blkkin_aggregator::join::{JoinConfig, JoinStats, Joiner};
use blkkin_aggregator::spans;
use blkkin_aggregator::stage::link::LinkStats;
use blkkin_aggregator::stage::local_link::LocalLinker;
use blkkin_aggregator::trace::Trace;
use blkkin_bus::{ChannelStats, Next, Subscription};
use blkkin_report::{Progress, Report};
use blkkin_tracer::Detail;
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{NodeId, Source};
use blkkin_wire::span::Span;
use blkkin_wire::stage::LogTime;

use super::live_processes::LiveProcesses;
use super::progress_snapshot::ProgressSnapshot;
use super::unrelated_commits::UnrelatedCommits;
use super::{RunPlan, raw_arguments};
use crate::destination::{DeliveryReport, SpanSink};
use crate::filter::post_filter::{FilterVerdict, PostFilter};

/// Poll timeout. Nothing happens between batches, and closing the channel wakes the wait, so any
/// value works.
const WAIT: Duration = Duration::from_secs(1);

/// The results of the join thread.
pub(super) struct JoinOutcome {
    pub(super) report: Report,
    pub(super) last: SourceStats,
    pub(super) stats: JoinStats,
    pub(super) bus: ChannelStats,
    pub(super) names_unknown: u64,
    pub(super) unrelated_commits: u64,
    pub(super) live_processes: Option<usize>,
    /// Statistics of the links between NBD requests and daemon spans, with `--nbd`.
    pub(super) link_stats: Option<LinkStats>,
    pub(super) deliveries: Vec<DeliveryReport>,
    /// Summary lines about the guests' events.
    pub(super) guest_notes: Vec<String>,
}

/// Runs until the channel closes; `notify` receives the status of slow destinations.
pub(super) fn join(
    mut batches: Subscription<EventBatch>,
    plan: RunPlan,
    snapshot: &ProgressSnapshot,
    notify: impl Fn(String),
) -> JoinOutcome {
    // The counters of the run are those of this node.
    let [mut joiner, mut guests] = [(); 2].map(|()| Joiner::new(JoinConfig::default()));
    let host = plan.host;
    let mut router = TraceRouter {
        unrelated_commits: UnrelatedCommits::new(plan.scope),
        post_filter: plan.post_filter,
        detail: plan.detail,
        report: plan.report,
        sinks: plan.sinks,
        local_linker: (plan.nbd || host.is_some()).then(LocalLinker::new),
        host,
        watermark: MonotonicNs(0),
        names_unknown: 0,
    };
    let mut live_processes = LiveProcesses::default();
    let mut last = SourceStats::default();
    loop {
        let batch = match batches.next(WAIT) {
            Next::Item(batch) => batch,
            Next::Timeout => continue,
            Next::Closed => break,
        };
        if router.is_of_guest(batch.source) {
            router.report.set_guests_lost(batch.source, batch.stats.lost());
            guests.apply(batch, &mut |trace: &Trace| router.route(trace));
            continue;
        }
        live_processes.apply(&batch.events);
        last = batch.stats.clone();
        // The last batch is followed by no event of this node, but by those of guests.
        if batch.watermark != MonotonicNs(u64::MAX) {
            router.watermark = router.watermark.max(batch.watermark);
        }
        joiner.apply(batch, &mut |trace: &Trace| router.route(trace));
        snapshot.set(router.progress(&last));
    }
    joiner.finish(&mut |trace: &Trace| router.route(trace));
    guests.finish(&mut |trace: &Trace| router.route(trace));
    if let Some(linker) = &mut router.local_linker {
        let (report, sinks) = (&mut router.report, &router.sinks);
        linker.finish(&mut |spans| {
            report.add_linked_spans(&spans);
            offer(sinks, spans);
        });
        report.finish_guests(linker.stats().disks_refused);
    }
    snapshot.set(router.progress(&last));
    JoinOutcome {
        last,
        guest_notes: guest_notes(guests.stats()),
        stats: joiner.stats().clone(),
        bus: batches.stats(),
        names_unknown: router.names_unknown,
        unrelated_commits: router.unrelated_commits.count(),
        live_processes: live_processes.count(),
        link_stats: router.local_linker.as_ref().map(|linker| linker.stats().clone()),
        report: router.report,
        deliveries: router.sinks.into_iter().map(|sink| sink.finish(&notify)).collect(),
    }
}

/// Returns what the join could not do with the events of guests.
fn guest_notes(stats: &JoinStats) -> Vec<String> {
    let counts = [
        (stats.batches_missed, "batches never arrived"),
        (stats.batches_contested, "batches were joined each on its own: two agents send as one source"),
        (stats.closed_for_room, "traces were closed because too many were open"),
        (stats.ahead_of_window, "events have a time far in the future"),
        (stats.names_dropped, "names of tasks and devices found no room"),
    ];
    let notes = counts.iter().filter(|(count, _)| *count > 0);
    notes.map(|(count, text)| format!("guests: {count} {text}")).collect()
}

/// Routes each trace to the report and the sinks.
struct TraceRouter {
    unrelated_commits: UnrelatedCommits,
    post_filter: PostFilter,
    detail: Detail,
    report: Report,
    sinks: Vec<SpanSink>,
    /// Links both endpoints of an NBD request.
    local_linker: Option<LocalLinker>,
    /// Id of this node, if guests send their events too.
    host: Option<NodeId>,
    /// Greatest watermark of this node.
    watermark: MonotonicNs,
    names_unknown: u64,
}

impl TraceRouter {
    fn is_of_guest(&self, source: Source) -> bool {
        self.host.is_some_and(|host| source.node != host)
    }

    fn route(&mut self, trace: &Trace) {
        if self.is_of_guest(trace.source) {
            self.report.add_guests_trace(trace, self.now(trace));
            return self.export(trace);
        }
        self.report.add_coverage(trace);
        if self.unrelated_commits.is_unrelated(trace) {
            return;
        }
        match self.post_filter.evaluate(trace) {
            FilterVerdict::Keep => {
                for commit in self.unrelated_commits.recover_for(trace) {
                    // As a commit that the trace shows, it counts only if it passes the filter itself.
                    if self.post_filter.evaluate(commit) == FilterVerdict::Keep {
                        self.report.add(commit);
                    }
                    self.export(commit);
                }
                self.report.add(trace);
                self.export(trace);
            }
            FilterVerdict::Drop => {}
            FilterVerdict::UnknownName => self.names_unknown += 1,
        }
    }

    /// Returns the log's time. A guest's clock is another one, so with guests it is that of this node's watermark.
    fn now(&self, trace: &Trace) -> LogTime {
        let time = if self.host.is_some() { self.watermark } else { trace.last_end() };
        LogTime(time.0 / 1_000_000)
    }

    /// Sends the spans of a trace to the sinks.
    fn export(&mut self, trace: &Trace) {
        if self.sinks.is_empty() && self.local_linker.is_none() {
            return;
        }
        let mut spans = spans::spans_of(trace);
        if self.detail == Detail::Full {
            raw_arguments::add_tags(trace, &mut spans);
        }
        let now = self.now(trace);
        match &mut self.local_linker {
            Some(linker) => {
                let (report, sinks) = (&mut self.report, &self.sinks);
                linker.add(trace, spans, now, &mut |spans| {
                    report.add_linked_spans(&spans);
                    offer(sinks, spans);
                });
                linker.reparented().iter().for_each(|(of, moved)| self.report.reparent(*of, moved));
            }
            None => offer(&self.sinks, spans),
        }
    }

    fn progress(&self, stats: &SourceStats) -> Progress {
        Progress { dirty_bytes: stats.dirty_bytes, ..self.report.progress(stats.lost()) }
    }
}

/// Offers the spans to every sink.
fn offer(sinks: &[SpanSink], spans: Vec<Span>) {
    let Some((last, others)) = sinks.split_last() else { return };
    for sink in others {
        sink.offer(spans.clone());
    }
    last.offer(spans);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use blkkin_aggregator::trace::WaitLink;
    use blkkin_report::ReportConfig;
    use blkkin_tracer::{PathPattern, TraceScope};
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::PairEvent;
    use blkkin_wire::ids::SpanId;

    use super::super::unrelated_commits::tests::commit;
    use super::*;
    use crate::filter::post_filter::tests::{DEVICE, TASK, write};

    /// Returns the number of requests that the report counts of these traces, filtered by path.
    fn reported_requests(traces: &[&Trace]) -> u64 {
        let paths = vec![PathPattern::parse("/data/*").unwrap()];
        let mut router = TraceRouter {
            unrelated_commits: UnrelatedCommits::new(TraceScope::Marked),
            post_filter: PostFilter { paths, ..PostFilter::default() },
            detail: Detail::Full,
            report: Report::new(ReportConfig::new(MonotonicNs(0))),
            sinks: Vec::new(),
            local_linker: None,
            host: None,
            watermark: MonotonicNs(0),
            names_unknown: 0,
        };
        traces.iter().for_each(|trace| router.route(trace));
        assert_eq!(router.unrelated_commits.count(), 0);
        router.report.progress(0).requests
    }

    /// A commit has no path, so the rule drops it. A call that returns late recovers it, and the
    /// rule applies all the same.
    #[test]
    fn the_report_counts_a_commit_equally_for_a_punctual_and_a_late_call() {
        let pair = PairEvent::bare([7, 8, 9].map(SpanId), TASK, DEVICE, [MonotonicNs(1), MonotonicNs(2)]);
        let [waited, late] = [true, false].map(|shown| {
            let mut commit = commit(shown);
            commit.requests.push(pair.request);
            commit
        });
        let mut call = write(Some("/data/file"));
        call.requests.push(pair.request);
        call.waited_for.push(WaitLink { trace: Arc::new(waited.clone()), primary: true });
        assert_eq!(reported_requests(&[&waited, &call]), 1);
        call.waited_for = vec![WaitLink { trace: Arc::new(late.clone()), primary: false }];
        assert_eq!(reported_requests(&[&late, &call]), 1);
    }
}
