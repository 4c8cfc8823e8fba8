//! The rows of a waterfall: the call, the file system's own time, bios with their requests, commits with theirs.

use blkkin_aggregator::account::Breakdown;
use blkkin_aggregator::trace::{Cause, Root, Trace};
use blkkin_wire::clock::{DurationNs, MonotonicNs};

use super::bar::{Fill, Segment, Window};
use super::block::{groups, requests};
use crate::text::style::Ink;

const CPU: &str = "waiting for a CPU";

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// How far below the root.
    pub depth: usize,
    /// What it is.
    pub label: String,
    /// The label's ink.
    pub ink: Ink,
    /// When it was.
    pub segments: Vec<Segment>,
    /// A request's time before its issue.
    pub queued: Option<DurationNs>,
    /// A request's time at the device or with the flush machinery.
    pub device: Option<DurationNs>,
    /// All of its time.
    pub time: DurationNs,
    /// All of it lies within the root's life, so that it is a share of it.
    pub within: bool,
    /// It is no stretch of time.
    pub moment: bool,
}

impl Row {
    pub(super) fn new(depth: usize, label: String, time: DurationNs, segments: Vec<Segment>) -> Self {
        let (queued, device, within, moment) = (None, None, true, false);
        Row { depth, label, ink: Ink::Plain, segments, queued, device, time, within, moment }
    }

    pub(super) fn inked(self, ink: Ink) -> Self {
        Row { ink, ..self }
    }
}

/// From the root's begin to the end of whatever it left behind; of commits only the part that it waited for.
pub fn window(trace: &Trace) -> Window {
    Window { from: trace.start(), to: trace.last_end() }
}

/// All rows of a trace.
pub fn rows(trace: &Trace, split: Breakdown) -> Vec<Row> {
    let life = Segment { from: trace.start(), to: trace.end(), fill: Fill::Call };
    let mut rows = vec![Row::new(0, root_label(trace), trace.duration(), vec![life]).inked(Ink::Bold)];
    // The account gives all of the root's own time to one of them.
    let own = [
        ("file system", split.file_system, Fill::FileSystem, Ink::FileSystem),
        ("unaccounted", split.unaccounted, Fill::Unaccounted, Ink::Alarm),
    ];
    // When in that time it waited for a CPU is not recorded: the larger part has the bar.
    let waited = (CPU, split.cpu, Fill::Cpu, Ink::Alarm);
    let most = own.iter().map(|(_, time, ..)| *time).max().unwrap_or_default().max(split.cpu);
    let own = own.into_iter().chain([waited]).filter(|(_, time, ..)| time.0 > 0);
    rows.extend(own.map(|(label, time, fill, ink)| {
        let stretches = if time == most { idle(trace, life, fill) } else { Vec::new() };
        Row::new(1, label.to_owned(), time, stretches).inked(ink)
    }));
    let mut children = groups(trace, trace, 1);
    children.extend(trace.causes.iter().map(|cause| commit(trace, cause)));
    // Stable: what began together stays in the order of the trace.
    children.sort_by_key(|group| group.at);
    rows.extend(children.into_iter().flat_map(|group| group.rows));
    look_within(&mut rows, life);
    rows
}

/// Which of the rows lie within `life`.
pub(super) fn look_within(rows: &mut [Row], life: Segment) {
    for row in rows {
        row.within = row.segments.iter().all(|part| part.from >= life.from && part.to <= life.to);
    }
}

/// Rows that stay together when siblings are put in order.
pub(super) struct Group {
    pub(super) at: MonotonicNs,
    pub(super) rows: Vec<Row>,
}

pub(super) fn root_label(trace: &Trace) -> String {
    match &trace.root {
        Root::Call(call) => call.call.name().to_owned(),
        Root::Commit(commit) => format!("journal commit {}", commit.tid),
        Root::Kernel => "kernel".to_owned(),
        Root::Operation(operation) => operation.name.to_string(),
        Root::Missing => "call not seen".to_owned(),
    }
}

fn commit(trace: &Trace, cause: &Cause) -> Group {
    let below = &cause.trace;
    let shared = if cause.primary { "" } else { ", shared" };
    let life = Segment { from: below.start(), to: below.end(), fill: Fill::Commit };
    let label = format!("{}{shared}", root_label(below));
    let mut rows = vec![Row::new(1, label, below.duration(), vec![life]).inked(Ink::Journal)];
    rows.extend(groups(trace, below, 2).into_iter().flat_map(|group| group.rows));
    Group { at: below.start(), rows }
}

/// Of `life`, the stretches in which no bio, request or commit was on its way.
fn idle(trace: &Trace, life: Segment, fill: Fill) -> Vec<Segment> {
    let all = std::iter::once(trace).chain(trace.causes.iter().map(|cause| &*cause.trace));
    let mut busy: Vec<_> =
        trace.causes.iter().map(|cause| (cause.trace.start(), cause.trace.end())).collect();
    for of in all {
        busy.extend(of.bios.iter().map(|bio| (bio.queue, bio.end)));
        busy.extend(requests(of).map(|request| (request.start, request.complete)));
    }
    free(busy, life, fill)
}

/// Of `life`, what none of these stretches covers.
pub(super) fn free(mut busy: Vec<(MonotonicNs, MonotonicNs)>, life: Segment, fill: Fill) -> Vec<Segment> {
    // One that ended before it began, by a broken clock, was not on its way.
    busy.retain(|(from, to)| from < to);
    busy.sort_unstable();
    let (mut idle, mut free_from) = (Vec::new(), life.from);
    for (from, to) in busy {
        if from.min(life.to) > free_from {
            idle.push(Segment { from: free_from, to: from.min(life.to), fill });
        }
        free_from = free_from.max(to);
    }
    if life.to > free_from {
        idle.push(Segment { from: free_from, to: life.to, fill });
    }
    idle
}

#[cfg(test)]
mod tests;
