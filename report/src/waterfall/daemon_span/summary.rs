//! Sentence with the shares of a daemon span's time, and the evidence of its links.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use blkkin_aggregator::latency::daemon_span::{DaemonSpanBreakdown, daemon_span_breakdown};
use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::ContextSource;
use blkkin_wire::span::SpanKind;

use crate::collect::daemon_spans::tree::{Relation, SpanTree};
use crate::text::line::sanitize;
use crate::text::units;
use crate::waterfall::block;

/// Returns the breakdown of the root's time.
pub fn breakdown(tree: &SpanTree<'_>) -> DaemonSpanBreakdown {
    daemon_span_breakdown(tree.trace, &tree.descendants(), tree.servers().next().is_some())
}

/// Formats the shares and notes:
/// `61.3 % at the device vda, 30.1 % in blkkin-nbd outside of calls, 8.6 % in transit`.
pub fn summary(tree: &SpanTree<'_>, breakdown: DaemonSpanBreakdown) -> String {
    let servers = services(tree.servers());
    let own = tree.daemon_span().map(|span| sanitize(&span.service)).unwrap_or_default();
    let transit = format!("in transit to and from {}", servers.as_deref().unwrap_or("the server"));
    let devices = tree.descendants().into_iter().flat_map(block::devices).collect();
    let places = [
        (breakdown.device, format!("at {}", block::name_devices(devices))),
        (breakdown.block, "in the block queue".to_owned()),
        (breakdown.journal, "in the journal".to_owned()),
        (breakdown.calls, "in calls above the block layer".to_owned()),
        (breakdown.cpu, "waiting for a CPU in calls".to_owned()),
        (breakdown.programs, outside_calls(tree, servers.as_deref().unwrap_or("parts of it"))),
        (breakdown.in_transit, transit),
        (breakdown.own, own_place(tree, &own)),
    ];
    let mut places: Vec<_> = places.into_iter().filter(|(time, _)| time.0 > 0).collect();
    // The sort is stable: equal times stay in the order from the device upwards.
    places.sort_by_key(|(time, _)| Reverse(*time));
    let total = tree.duration().0;
    let shares: Vec<String> =
        places.iter().map(|(time, place)| format!("{} {place}", units::share(time.0, total))).collect();
    let prefix = if tree.traces_dropped > 0 { "of the parts kept: " } else { "" };
    let mut sentence = prefix.to_owned() + &shares.join(", ");
    for note in notes(tree) {
        sentence.push_str(if sentence.is_empty() { "" } else { "; " });
        sentence.push_str(&note);
    }
    sentence
}

/// Returns the rules by which the tree's nodes were linked, each once.
pub fn links(tree: &SpanTree<'_>) -> Vec<String> {
    let mut links = BTreeSet::new();
    collect_links(tree, &mut links);
    links.into_iter().collect()
}

fn collect_links(tree: &SpanTree<'_>, links: &mut BTreeSet<String>) {
    for child in &tree.children {
        match child.relation {
            Relation::Server(rule) => {
                let service = child.daemon_span().map(|span| sanitize(&span.service)).unwrap_or_default();
                links.insert(format!("{service} ({})", sanitize(rule)));
            }
            _ => {
                if let Some(context) = child.trace.context() {
                    let evidence = match context.source {
                        ContextSource::ThreadContext | ContextSource::Both => {
                            "exact: their thread's own context"
                        }
                        ContextSource::DaemonSpan => "rule: their thread's last event before",
                    };
                    links.insert(format!("calls ({evidence})"));
                }
            }
        }
        collect_links(child, links);
    }
}

fn own_place(tree: &SpanTree<'_>, own: &str) -> String {
    let is_client = tree.daemon_span().is_some_and(|span| span.kind == SpanKind::Client);
    match is_client && tree.children.is_empty() {
        true => "waiting for a server that reported no span".to_owned(),
        false => outside_calls(tree, own),
    }
}

/// Names the time that no part covers; a dropped part can have covered it.
fn outside_calls(tree: &SpanTree<'_>, program: &str) -> String {
    let or = if tree.traces_dropped > 0 { ", or in parts not kept" } else { "" };
    format!("in {program} outside of calls{or}")
}

fn services<'t, 'a: 't>(trees: impl Iterator<Item = &'t SpanTree<'a>>) -> Option<String> {
    let names: BTreeSet<String> =
        trees.filter_map(SpanTree::daemon_span).map(|span| sanitize(&span.service)).collect();
    let names: Vec<String> = names.into_iter().collect();
    (!names.is_empty()).then(|| names.join(" and "))
}

fn notes(tree: &SpanTree<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let descendants = tree.descendants();
    let calls = descendants.iter().filter(|trace| trace.call().is_some()).count();
    let submitted_io =
        |trace: &&Trace| !trace.bios.is_empty() || !trace.requests.is_empty() || !trace.waited_for.is_empty();
    if calls > 0 && !descendants.iter().any(submitted_io) {
        notes.push("nothing went to a device".to_owned());
    }
    let incomplete = descendants.iter().filter(|trace| !trace.incomplete.is_empty()).count();
    if incomplete > 0 {
        let calls = units::counted(incomplete as u64, "call");
        notes.push(format!("incomplete: parts of {calls} never arrived"));
    }
    if tree.traces_dropped > 0 {
        let parts = units::counted(tree.traces_dropped, "part");
        notes.push(format!("{parts} exceeded the limit and were not kept"));
    }
    notes
}
