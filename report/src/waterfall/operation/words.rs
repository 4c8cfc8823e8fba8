//! Where an operation's time went, in a sentence; and how its parts were found.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use blkkin_aggregator::account::operation::{Split, split};
use blkkin_wire::event::ContextSource;
use blkkin_wire::span::SpanKind;

use crate::collect::operations::tree::{Relation, Tree};
use crate::text::line::harmless;
use crate::text::units;
use crate::waterfall::block;

/// Where its time went.
pub fn breakdown(tree: &Tree<'_>) -> Split {
    split(tree.trace, &tree.all_below(), tree.answers().next().is_some())
}

/// `61.3 % at the device vda, 30.1 % in blkkin-nbd outside of calls, 8.6 % on the way`, and what is missing.
pub fn words(tree: &Tree<'_>, split: Split) -> String {
    let asked = services(tree.answers());
    let own = tree.operation().map(|operation| harmless(&operation.service)).unwrap_or_default();
    let places = [
        (split.device, format!("at {}", devices(tree))),
        (split.block, "in the block queue".to_owned()),
        (split.journal, "in the journal".to_owned()),
        (split.calls, "in calls above the block layer".to_owned()),
        (split.cpu, "waiting for a CPU in calls".to_owned()),
        (split.programs, outside(tree, asked.as_deref().unwrap_or("parts of it"))),
        (split.way, format!("on the way to {} and back", asked.as_deref().unwrap_or("who answered"))),
        (split.own, in_own(tree, &own)),
    ];
    let mut places: Vec<_> = places.into_iter().filter(|(time, _)| time.0 > 0).collect();
    // Stable: of equals in the order from the device upwards.
    places.sort_by_key(|(time, _)| Reverse(*time));
    let whole = tree.duration().0;
    let said: Vec<String> =
        places.iter().map(|(time, place)| format!("{} {place}", units::share(time.0, whole))).collect();
    let mut sentence = if tree.more > 0 { "of what is kept: " } else { "" }.to_owned() + &said.join(", ");
    for remark in remarks(tree) {
        sentence.push_str(if sentence.is_empty() { "" } else { "; " });
        sentence.push_str(&remark);
    }
    sentence
}

/// By which rules its parts hang there, each once.
pub fn links(tree: &Tree<'_>) -> Vec<String> {
    let mut links = BTreeSet::new();
    gather(tree, &mut links);
    links.into_iter().collect()
}

fn gather(tree: &Tree<'_>, links: &mut BTreeSet<String>) {
    for below in &tree.below {
        match below.relation {
            Relation::Answer(rule) => {
                let who = below.operation().map(|one| harmless(&one.service)).unwrap_or_default();
                links.insert(format!("{who} ({})", harmless(rule)));
            }
            _ => {
                if let Some(context) = below.trace.context() {
                    let how = match context.source {
                        ContextSource::ThreadContext | ContextSource::Both => {
                            "exact: their thread's own context"
                        }
                        ContextSource::DaemonSpan => "rule: their thread's last event before",
                    };
                    links.insert(format!("calls ({how})"));
                }
            }
        }
        gather(below, links);
    }
}

fn in_own(tree: &Tree<'_>, own: &str) -> String {
    let asks = tree.operation().is_some_and(|operation| operation.kind == SpanKind::Client);
    match asks && tree.below.is_empty() {
        true => "with who was asked, of whom nothing was heard".to_owned(),
        false => outside(tree, own),
    }
}

/// What is known of none of its parts may be of one that is not kept.
fn outside(tree: &Tree<'_>, program: &str) -> String {
    let or = if tree.more > 0 { ", or in parts that are not kept" } else { "" };
    format!("in {program} outside of calls{or}")
}

fn services<'t, 'a: 't>(trees: impl Iterator<Item = &'t Tree<'a>>) -> Option<String> {
    let names: BTreeSet<String> =
        trees.filter_map(Tree::operation).map(|operation| harmless(&operation.service)).collect();
    let names: Vec<String> = names.into_iter().collect();
    (!names.is_empty()).then(|| names.join(" and "))
}

/// By name while they are few.
fn devices(tree: &Tree<'_>) -> String {
    let names: BTreeSet<String> = tree.all_below().into_iter().flat_map(block::devices).collect();
    let names: Vec<String> = names.iter().map(|name| harmless(name)).collect();
    match names.as_slice() {
        [] => "the device".to_owned(),
        [one] => format!("the device {one}"),
        [one, two] => format!("the devices {one} and {two}"),
        many => format!("{} devices", many.len()),
    }
}

fn remarks(tree: &Tree<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    let below = tree.all_below();
    let calls = below.iter().filter(|trace| trace.call().is_some()).count();
    let asked = |trace: &&&blkkin_aggregator::trace::Trace| {
        !trace.bios.is_empty() || !trace.requests.is_empty() || !trace.causes.is_empty()
    };
    if calls > 0 && !below.iter().any(|trace| asked(&trace)) {
        remarks.push("nothing went to a device".to_owned());
    }
    let incomplete = below.iter().filter(|trace| !trace.missing.nothing()).count();
    if incomplete > 0 {
        remarks.push(format!(
            "incomplete: of {} parts never arrived",
            units::counted(incomplete as u64, "call")
        ));
    }
    if tree.more > 0 {
        remarks.push(format!("{} below it were too many to keep", units::counted(tree.more, "part")));
    }
    remarks
}
