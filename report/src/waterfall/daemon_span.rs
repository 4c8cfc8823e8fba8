//! Rows of a daemon span: the span, its servers, and the system calls of each with their I/O.
//!
//! *In*: a [`SpanTree`]. *Out*: rows like those of a single call, and a window. *Invariant*: that
//! of [`super`]. *In transit* is time of the client in which the server had not started or had
//! already finished; it is drawn only if the server was recorded. *No call seen* is time of a
//! daemon span that none of its children covers.
//!
//! Of many calls the slowest have rows and the others are summed in one row, as for bios: a query
//! that reads a table makes thousands.

pub mod heading;
pub mod summary;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use blkkin_aggregator::latency;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};

use super::bar::{Fill, Segment, Window};
use super::row::{WaterfallRow, mark_within};
use super::tree::{self, uncovered};
use crate::collect::daemon_spans::tree::{Relation, SpanTree};
use crate::text::line::sanitize;
use crate::text::style::Ink;
use crate::text::units;

/// Number of slowest children of one daemon span with rows; the others are summed.
const CHILDREN_SHOWN: usize = 4;
/// Number of events of one daemon span with a row each.
const EVENTS_SHOWN: usize = 4;

/// Returns the time from the root's start to the end of its last I/O.
pub fn window(tree: &SpanTree<'_>) -> Window {
    let ends = tree.descendants().into_iter().map(|trace| trace.last_end());
    let to = ends.max().unwrap_or_default().max(tree.trace.last_end());
    Window { from: tree.trace.start(), to }
}

/// Returns all rows of a tree.
pub fn rows(tree: &SpanTree<'_>) -> Vec<WaterfallRow> {
    let mut rows = Vec::new();
    add(tree, tree.traces_dropped, 0, &mut rows);
    mark_within(&mut rows, lifetime(tree, Fill::Call));
    rows
}

/// Adds the rows of a node. `dropped` is the number of traces dropped from the whole tree: their
/// parents are unknown.
fn add(tree: &SpanTree<'_>, dropped: u64, depth: usize, rows: &mut Vec<WaterfallRow>) {
    match tree.daemon_span() {
        Some(span) => add_daemon_span(tree, (span, dropped), depth, rows),
        None => add_call(tree, depth, rows),
    }
}

fn add_daemon_span(
    tree: &SpanTree<'_>,
    (span, dropped): (&DaemonSpanEvent, u64),
    depth: usize,
    rows: &mut Vec<WaterfallRow>,
) {
    let ink = if span.status == SpanStatus::Ok { Ink::Bold } else { Ink::Alarm };
    let label = format!("{}{}{}", label(span), status(span.status), orphan_mark(tree));
    rows.push(
        WaterfallRow::new(depth, label, tree.duration(), vec![lifetime(tree, Fill::Call)]).with_ink(ink),
    );
    rows.extend(own_time(tree, dropped, depth + 1));
    rows.extend(events(span, depth + 1));
    let (shown, rest) = select(tree);
    shown.into_iter().for_each(|child| add(child, dropped, depth + 1, rows));
    rows.extend(summed(&rest, tree.traces_dropped, depth + 1));
}

fn add_call(tree: &SpanTree<'_>, depth: usize, rows: &mut Vec<WaterfallRow>) {
    let mut call_rows = tree::rows(tree.trace, latency::breakdown(tree.trace));
    if let Some(call) = call_rows.first_mut() {
        call.label += orphan_mark(tree);
        call.ink = Ink::Plain;
    }
    rows.extend(call_rows.into_iter().map(|row| WaterfallRow { depth: row.depth + depth, ..row }));
}

/// Formats the label of a span: `blkkin-nbd: nbd read`.
pub fn label(span: &DaemonSpanEvent) -> String {
    format!("{}: {}", sanitize(&span.service), sanitize(&span.name))
}

fn status(status: SpanStatus) -> String {
    match status {
        SpanStatus::Ok => String::new(),
        SpanStatus::Error(errno) => format!(", {}", errno_text(errno)),
        SpanStatus::Unfinished => ", no end".to_owned(),
    }
}

pub(super) fn errno_text(errno: u32) -> String {
    let name = i32::try_from(errno).ok().and_then(blkkin_wire::syscalls::errno_name);
    name.map_or_else(|| format!("error {errno}"), str::to_owned)
}

fn orphan_mark(tree: &SpanTree<'_>) -> &'static str {
    if tree.relation == Relation::Orphan { ", parent missing" } else { "" }
}

fn lifetime(tree: &SpanTree<'_>, fill: Fill) -> Segment {
    Segment { from: tree.trace.start(), to: tree.trace.end(), fill }
}

/// Returns the row of the time that no child covers; `None` for a span without children.
fn own_time(tree: &SpanTree<'_>, dropped: u64, depth: usize) -> Option<WaterfallRow> {
    if tree.children.is_empty() {
        return None;
    }
    let has_server = tree.servers().next().is_some();
    let (label, fill, ink) = match (has_server, dropped > 0) {
        (true, _) => ("in transit", Fill::InTransit, Ink::Queue),
        (false, false) => ("no call seen", Fill::OutsideCalls, Ink::Plain),
        (false, true) => ("no call kept", Fill::OutsideCalls, Ink::Plain),
    };
    let busy = tree.children.iter().map(|child| (child.trace.start(), child.trace.end())).collect();
    let segments = uncovered(busy, lifetime(tree, fill), fill);
    let time = DurationNs(segments.iter().map(|part| part.to.since(part.from).0).sum());
    (time.0 > 0).then(|| WaterfallRow::new(depth, label.to_owned(), time, segments).with_ink(ink))
}

/// Returns the rows of a span's events. blkin's `cs`, `cr`, `sr` and `ss` are omitted: they are the
/// ends of the rows.
fn events(span: &DaemonSpanEvent, depth: usize) -> Vec<WaterfallRow> {
    let events = span.annotations.iter().filter(|event| event.value == AnnotationValue::Event);
    let all: Vec<_> = events.filter(|event| !["cs", "cr", "sr", "ss"].contains(&&*event.key)).collect();
    let shown = if all.len() > EVENTS_SHOWN + 1 { EVENTS_SHOWN } else { all.len() };
    let (first, more) = all.split_at(shown);
    let row = |label: String, events: &[&Annotation]| {
        let segments =
            events.iter().map(|event| Segment { from: event.time, to: event.time, fill: Fill::Event });
        WaterfallRow {
            instant: true,
            ..WaterfallRow::new(depth, label, DurationNs(0), segments.collect()).with_ink(Ink::Dim)
        }
    };
    let mut rows: Vec<WaterfallRow> = first.iter().map(|event| row(sanitize(&event.key), &[event])).collect();
    if !more.is_empty() {
        rows.push(row(units::counted(more.len() as u64, "more event"), more));
    }
    rows
}

/// Splits the children into the slowest, in order of their start, and the others. A single child is
/// always shown, because its sum would need the same row.
fn select<'t, 'a>(tree: &'t SpanTree<'a>) -> (Vec<&'t SpanTree<'a>>, Vec<&'t SpanTree<'a>>) {
    let mut by_time: Vec<usize> = (0..tree.children.len()).collect();
    // The sort is stable: equal durations keep the order of the children.
    by_time.sort_by_key(|&index| Reverse(tree.children[index].duration()));
    let number = if by_time.len() > CHILDREN_SHOWN + 1 { CHILDREN_SHOWN } else { by_time.len() };
    let slowest: BTreeSet<usize> = by_time[..number].iter().copied().collect();
    let (mut shown, mut rest) = (Vec::new(), Vec::new());
    for (index, child) in tree.children.iter().enumerate() {
        if slowest.contains(&index) { shown.push(child) } else { rest.push(child) }
    }
    (shown, rest)
}

fn summed(rest: &[&SpanTree<'_>], dropped: u64, depth: usize) -> Vec<WaterfallRow> {
    let mut rows = Vec::new();
    for (is_daemon_span, noun) in [(true, "operation"), (false, "call")] {
        let alike: Vec<_> =
            rest.iter().filter(|tree| tree.daemon_span().is_some() == is_daemon_span).collect();
        let from = alike.iter().map(|tree| tree.trace.start()).min();
        let to = alike.iter().map(|tree| tree.trace.end()).max();
        if let Some((from, to)) = from.zip(to) {
            let label = format!("+ {}", units::counted(alike.len() as u64, noun));
            let segments = alike.iter().map(|tree| lifetime(tree, Fill::Call)).collect();
            rows.push(WaterfallRow::new(depth, label, to.since(from), segments).with_ink(Ink::Dim));
        }
    }
    if dropped > 0 {
        let label = format!("+ {} not kept", units::counted(dropped, "part"));
        let row = WaterfallRow::new(depth, label, DurationNs(0), Vec::new()).with_ink(Ink::Dim);
        rows.push(WaterfallRow { instant: true, ..row });
    }
    rows
}

#[cfg(test)]
mod tests;
