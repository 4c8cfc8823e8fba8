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
use blkkin_wire::span::Span;

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
}

/// Runs until the channel closes; `notify` receives the status of slow destinations.
pub(super) fn join(
    mut batches: Subscription<EventBatch>,
    plan: RunPlan,
    snapshot: &ProgressSnapshot,
    notify: impl Fn(String),
) -> JoinOutcome {
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut router = TraceRouter {
        unrelated_commits: UnrelatedCommits::new(plan.scope),
        post_filter: plan.post_filter,
        detail: plan.detail,
        report: plan.report,
        sinks: plan.sinks,
        local_linker: plan.nbd.then(LocalLinker::new),
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
        live_processes.apply(&batch.events);
        last = batch.stats.clone();
        joiner.apply(batch, &mut |trace: &Trace| router.route(trace));
        snapshot.set(router.progress(&last));
    }
    joiner.finish(&mut |trace: &Trace| router.route(trace));
    if let Some(linker) = &mut router.local_linker {
        linker.finish(&mut |spans| offer(&router.sinks, spans));
    }
    snapshot.set(router.progress(&last));
    JoinOutcome {
        last,
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

/// Routes each trace to the report and the sinks.
struct TraceRouter {
    unrelated_commits: UnrelatedCommits,
    post_filter: PostFilter,
    detail: Detail,
    report: Report,
    sinks: Vec<SpanSink>,
    /// Links both endpoints of an NBD request.
    local_linker: Option<LocalLinker>,
    names_unknown: u64,
}

impl TraceRouter {
    fn route(&mut self, trace: &Trace) {
        self.report.add_coverage(trace);
        if self.unrelated_commits.is_unrelated(trace) {
            return;
        }
        match self.post_filter.evaluate(trace) {
            FilterVerdict::Keep => {
                self.unrelated_commits.recover_for(trace).into_iter().for_each(|commit| self.deliver(commit));
                self.deliver(trace);
            }
            FilterVerdict::Drop => {}
            FilterVerdict::UnknownName => self.names_unknown += 1,
        }
    }

    fn deliver(&mut self, trace: &Trace) {
        self.report.add(trace);
        if self.sinks.is_empty() && self.local_linker.is_none() {
            return;
        }
        let mut spans = spans::spans_of(trace);
        if self.detail == Detail::Full {
            raw_arguments::add_tags(trace, &mut spans);
        }
        match &mut self.local_linker {
            Some(linker) => {
                linker.add(trace, spans, &mut |spans| offer(&self.sinks, spans));
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
