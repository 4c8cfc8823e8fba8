//! The rows of an operation: it, who answered it, and the system calls of each with all that is below them.
//!
//! *In*: a [`Tree`]. *Out*: rows, as of a single call, and a window. *Invariant*: that of [`super`]; what is drawn as *on the way* is time
//! of who asked in which who answered had not begun or had ended, and it is drawn only where who answered was heard. What is drawn as
//! *no call seen* lies outside all that hangs below an operation.
//!
//! Of many calls the slowest are drawn, and the rest in one row, as with bios: a query that reads a table makes thousands.

pub mod heading;
pub mod words;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use blkkin_aggregator::account;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::daemon_span::{AnnotationValue, DaemonSpanEvent, SpanStatus};

use super::bar::{Fill, Segment, Window};
use super::tree::{self, Row, free, look_within};
use crate::collect::operations::tree::{Relation, Tree};
use crate::text::line::harmless;
use crate::text::style::Ink;
use crate::text::units;

/// What hangs below one operation and is drawn with all of its rows, the slowest; more is summed in one row.
const SHOWN: usize = 4;
/// Moments of one operation with a row each.
const MOMENTS_SHOWN: usize = 4;

/// From the top's begin to the end of whatever it left behind.
pub fn window(tree: &Tree<'_>) -> Window {
    let ends = tree.all_below().into_iter().map(|trace| trace.last_end());
    let to = ends.max().unwrap_or_default().max(tree.trace.last_end());
    Window { from: tree.trace.start(), to }
}

/// All rows of a tree.
pub fn rows(tree: &Tree<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    add(tree, tree.more, 0, &mut rows);
    look_within(&mut rows, life(tree, Fill::Call));
    rows
}

/// `more` parts of the whole are not kept: whose they were is not known either.
fn add(tree: &Tree<'_>, more: u64, depth: usize, rows: &mut Vec<Row>) {
    match tree.operation() {
        Some(operation) => add_operation(tree, (operation, more), depth, rows),
        None => add_call(tree, depth, rows),
    }
}

fn add_operation(
    tree: &Tree<'_>,
    (operation, more): (&DaemonSpanEvent, u64),
    depth: usize,
    rows: &mut Vec<Row>,
) {
    let ink = if operation.status == SpanStatus::Ok { Ink::Bold } else { Ink::Alarm };
    let label = format!("{}{}{}", label(operation), end(operation.status), stray(tree));
    rows.push(Row::new(depth, label, tree.duration(), vec![life(tree, Fill::Call)]).inked(ink));
    rows.extend(own_time(tree, more, depth + 1));
    rows.extend(moments(operation, depth + 1));
    let (shown, rest) = choose(tree);
    shown.into_iter().for_each(|below| add(below, more, depth + 1, rows));
    rows.extend(summed(&rest, tree.more, depth + 1));
}

fn add_call(tree: &Tree<'_>, depth: usize, rows: &mut Vec<Row>) {
    let mut of_call = tree::rows(tree.trace, account::breakdown(tree.trace));
    if let Some(call) = of_call.first_mut() {
        call.label += stray(tree);
        call.ink = Ink::Plain;
    }
    rows.extend(of_call.into_iter().map(|row| Row { depth: row.depth + depth, ..row }));
}

/// `blkkin-nbd: nbd read`
pub(super) fn label(operation: &DaemonSpanEvent) -> String {
    format!("{}: {}", harmless(&operation.service), harmless(&operation.name))
}

fn end(outcome: SpanStatus) -> String {
    match outcome {
        SpanStatus::Ok => String::new(),
        SpanStatus::Error(errno) => format!(", {}", errno_text(errno)),
        SpanStatus::Unfinished => ", no end".to_owned(),
    }
}

pub(super) fn errno_text(errno: u32) -> String {
    let name = i32::try_from(errno).ok().and_then(blkkin_wire::syscalls::errno_name);
    name.map_or_else(|| format!("error {errno}"), str::to_owned)
}

fn stray(tree: &Tree<'_>) -> &'static str {
    if tree.relation == Relation::Stray { ", below what is not here" } else { "" }
}

fn life(tree: &Tree<'_>, fill: Fill) -> Segment {
    Segment { from: tree.trace.start(), to: tree.trace.end(), fill }
}

/// What was done in it that is in none of the rows below; nothing is said where there are none.
fn own_time(tree: &Tree<'_>, more: u64, depth: usize) -> Option<Row> {
    if tree.below.is_empty() {
        return None;
    }
    let answered = tree.answers().next().is_some();
    let (label, fill, ink) = match (answered, more > 0) {
        (true, _) => ("on the way", Fill::Way, Ink::Queue),
        (false, false) => ("no call seen", Fill::Program, Ink::Plain),
        (false, true) => ("no call kept", Fill::Program, Ink::Plain),
    };
    let busy = tree.below.iter().map(|below| (below.trace.start(), below.trace.end())).collect();
    let free = free(busy, life(tree, fill), fill);
    let time = DurationNs(free.iter().map(|part| part.to.since(part.from).0).sum());
    (time.0 > 0).then(|| Row::new(depth, label.to_owned(), time, free).inked(ink))
}

/// What was said to be now. What asks and is asked, blkin's programs say by `cs` and its like: these are the rows' own ends.
fn moments(operation: &DaemonSpanEvent, depth: usize) -> Vec<Row> {
    let moments = operation.annotations.iter().filter(|note| note.value == AnnotationValue::Event);
    let all: Vec<_> = moments.filter(|note| !["cs", "cr", "sr", "ss"].contains(&&*note.key)).collect();
    let shown = if all.len() > MOMENTS_SHOWN + 1 { MOMENTS_SHOWN } else { all.len() };
    let (first, more) = all.split_at(shown);
    let row = |label: String, notes: &[&blkkin_wire::daemon_span::Annotation]| {
        let parts = notes.iter().map(|note| Segment { from: note.time, to: note.time, fill: Fill::Moment });
        Row { moment: true, ..Row::new(depth, label, DurationNs(0), parts.collect()).inked(Ink::Dim) }
    };
    let mut rows: Vec<Row> = first.iter().map(|note| row(harmless(&note.key), &[note])).collect();
    if !more.is_empty() {
        rows.push(row(units::counted(more.len() as u64, "more moment"), more));
    }
    rows
}

/// The slowest, by their begin, and the others. One is never summed.
fn choose<'t, 'a>(tree: &'t Tree<'a>) -> (Vec<&'t Tree<'a>>, Vec<&'t Tree<'a>>) {
    let mut by_time: Vec<usize> = (0..tree.below.len()).collect();
    // Stable: of equals the first.
    by_time.sort_by_key(|&place| Reverse(tree.below[place].duration()));
    let shown = if by_time.len() > SHOWN + 1 { SHOWN } else { by_time.len() };
    let here: BTreeSet<usize> = by_time[..shown].iter().copied().collect();
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for (place, below) in tree.below.iter().enumerate() {
        if here.contains(&place) { first.push(below) } else { rest.push(below) }
    }
    (first, rest)
}

fn summed(rest: &[&Tree<'_>], not_kept: u64, depth: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (operations, noun) in [(true, "operation"), (false, "call")] {
        let alike: Vec<_> = rest.iter().filter(|tree| tree.operation().is_some() == operations).collect();
        let from = alike.iter().map(|tree| tree.trace.start()).min();
        let to = alike.iter().map(|tree| tree.trace.end()).max();
        if let Some((from, to)) = from.zip(to) {
            let label = format!("+ {}", units::counted(alike.len() as u64, noun));
            let parts = alike.iter().map(|tree| life(tree, Fill::Call)).collect();
            rows.push(Row::new(depth, label, to.since(from), parts).inked(Ink::Dim));
        }
    }
    if not_kept > 0 {
        let label = format!("+ {} not kept", units::counted(not_kept, "part"));
        let row = Row::new(depth, label, DurationNs(0), Vec::new()).inked(Ink::Dim);
        rows.push(Row { moment: true, ..row });
    }
    rows
}

#[cfg(test)]
mod tests;
