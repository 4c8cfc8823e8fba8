//! The join's thread: batches in; report, spans and books out.

use std::time::Duration;

use blkkin_aggregator::join::{JoinAccounts, JoinConfig, Joiner};
use blkkin_aggregator::stage::home::Home;
use blkkin_aggregator::stage::meet::MeetBooks;
use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::translate;
use blkkin_bus::{Counts, Next, Subscription};
use blkkin_report::{Progress, Report};
use blkkin_tracer::Detail;
use blkkin_wire::batch::{Accounts, EventBatch};
use blkkin_wire::span::Span;

use super::alive::Alive;
use super::live::Live;
use super::others::Others;
use super::{Plan, raw};
use crate::destination::{Delivery, Outlet};
use crate::tail::{Tail, Verdict};

/// There is nothing to do between batches, and the topic's end wakes the wait: any time will do.
const WAIT: Duration = Duration::from_secs(1);

/// What the thread leaves.
pub(super) struct Joined {
    pub(super) report: Report,
    pub(super) last: Accounts,
    pub(super) accounts: JoinAccounts,
    pub(super) bus: Counts,
    pub(super) names_unknown: u64,
    pub(super) commits_of_others: u64,
    pub(super) alive: Option<usize>,
    /// What became of ends of requests, where they were looked for.
    pub(super) met: Option<MeetBooks>,
    pub(super) deliveries: Vec<Delivery>,
}

/// Works until the topic closes; `tell` hears what a person waits for.
pub(super) fn join(
    mut batches: Subscription<EventBatch>,
    plan: Plan,
    live: &Live,
    tell: impl Fn(String),
) -> Joined {
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut sorter = Sorter {
        others: Others::new(plan.follow),
        tail: plan.tail,
        detail: plan.detail,
        report: plan.report,
        outlets: plan.outlets,
        home: plan.nbd.then(Home::new),
        names_unknown: 0,
    };
    let mut alive = Alive::default();
    let mut last = Accounts::default();
    loop {
        let batch = match batches.next(WAIT) {
            Next::Item(batch) => batch,
            Next::Timeout => continue,
            Next::Closed => break,
        };
        alive.note(&batch.events);
        last = batch.accounts.clone();
        joiner.apply(batch, &mut |trace: &Trace| sorter.take(trace));
        live.note(sorter.progress(&last));
    }
    joiner.finish(&mut |trace: &Trace| sorter.take(trace));
    if let Some(home) = &mut sorter.home {
        home.finish(&mut |spans| offer(&sorter.outlets, spans));
    }
    live.note(sorter.progress(&last));
    Joined {
        last,
        accounts: joiner.accounts().clone(),
        bus: batches.counts(),
        names_unknown: sorter.names_unknown,
        commits_of_others: sorter.others.commits(),
        alive: alive.processes(),
        met: sorter.home.as_ref().map(|home| home.books().clone()),
        report: sorter.report,
        deliveries: sorter.outlets.into_iter().map(|outlet| outlet.finish(&tell)).collect(),
    }
}

/// Decides where each trace goes.
struct Sorter {
    others: Others,
    tail: Tail,
    detail: Detail,
    report: Report,
    outlets: Vec<Outlet>,
    /// Where two ends of a request meet.
    home: Option<Home>,
    names_unknown: u64,
}

impl Sorter {
    fn take(&mut self, trace: &Trace) {
        if self.others.own(trace) {
            return;
        }
        match self.tail.judge(trace) {
            Verdict::Kept => {
                self.others.bring_back(trace).into_iter().for_each(|commit| self.keep(commit));
                self.keep(trace);
            }
            Verdict::LeftOut => {}
            Verdict::NameUnknown => self.names_unknown += 1,
        }
    }

    fn keep(&mut self, trace: &Trace) {
        self.report.add(trace);
        if self.outlets.is_empty() && self.home.is_none() {
            return;
        }
        let mut spans = translate::spans(trace);
        if self.detail == Detail::Everything {
            raw::tag(trace, &mut spans);
        }
        match &mut self.home {
            Some(home) => {
                home.take(trace, spans, &mut |spans| offer(&self.outlets, spans));
                home.moves().iter().for_each(|(of, moved)| self.report.moved(*of, moved));
            }
            None => offer(&self.outlets, spans),
        }
    }

    fn progress(&self, accounts: &Accounts) -> Progress {
        self.report.progress(accounts.lost())
    }
}

/// To each of them.
fn offer(outlets: &[Outlet], spans: Vec<Span>) {
    let Some((last, others)) = outlets.split_last() else { return };
    for outlet in others {
        outlet.offer(spans.clone());
    }
    last.offer(spans);
}
