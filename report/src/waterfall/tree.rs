//! Rows of a waterfall: the call, the file system's own time, its waits, asynchronous I/O and bios with their
//! requests, and commits with theirs.

use blkkin_aggregator::latency::Breakdown;
use blkkin_aggregator::trace::{Root, Trace, WaitLink};
use blkkin_wire::clock::MonotonicNs;

use super::async_io;
use super::bar::{Fill, Segment, Window};
use super::block::{groups, requests};
use super::row::{RowGroup, WaterfallRow, mark_within};
use super::sleeps;
use super::waits;
use crate::text::style::Ink;

const CPU: &str = "waiting for a CPU";

/// Returns the time from the root's start to the end of its last I/O. Of a commit, only the part
/// that the root waited for is included.
pub fn window(trace: &Trace) -> Window {
    Window { from: trace.start(), to: trace.last_end() }
}

/// Returns all rows of a trace.
pub fn rows(trace: &Trace, breakdown: Breakdown) -> Vec<WaterfallRow> {
    let lifetime = Segment { from: trace.start(), to: trace.end(), fill: Fill::Call };
    let mut rows =
        vec![WaterfallRow::new(0, root_label(trace), trace.duration(), vec![lifetime]).with_ink(Ink::Bold)];
    // The breakdown assigns all of the root's own time to one of them.
    let own = [
        ("file system", breakdown.file_system, Fill::FileSystem, Ink::FileSystem),
        ("unaccounted", breakdown.unaccounted, Fill::Unaccounted, Ink::Alarm),
    ];
    // These parts have no recorded start, so only the largest part of the time gets the bar.
    let cpu_wait = (CPU, breakdown.cpu, Fill::Cpu, Ink::Alarm);
    let waits = [breakdown.cpu, breakdown.locks, breakdown.throttled];
    let longest = own.iter().map(|(_, time, ..)| *time).chain(waits).max().unwrap_or_default();
    let own = own.into_iter().chain([cpu_wait]).filter(|(_, time, ..)| time.0 > 0);
    rows.extend(own.map(|(label, time, fill, ink)| {
        let segments = if time == longest { idle(trace, lifetime, fill) } else { Vec::new() };
        WaterfallRow::new(1, label.to_owned(), time, segments).with_ink(ink)
    }));
    rows.extend(waits::rows(trace, breakdown));
    rows.extend(sleeps::rows(trace));
    let mut children = groups(trace, trace, 1);
    children.extend(trace.waited_for.iter().map(|cause| commit(trace, cause)));
    // The sort is stable: equal start times stay in the order of the trace.
    children.sort_by_key(|group| group.start);
    rows.extend(children.into_iter().flat_map(|group| group.rows));
    mark_within(&mut rows, lifetime);
    rows
}

pub(super) fn root_label(trace: &Trace) -> String {
    match &trace.root {
        Root::Call(call) => call.call.name().to_owned(),
        Root::AsyncIo => trace.root_async_io().map_or_else(String::new, |io| async_io::label(&io.event)),
        Root::Commit(commit) => format!("journal commit {}", commit.tid),
        Root::Fault(_) => "page fault".to_owned(),
        Root::Kernel => "kernel".to_owned(),
        Root::DaemonSpan(operation) => operation.name.to_string(),
        Root::Missing => "call not seen".to_owned(),
    }
}

fn commit(trace: &Trace, cause: &WaitLink) -> RowGroup {
    let commit_trace = &cause.trace;
    let shared = if cause.primary { "" } else { ", shared" };
    let lifetime = Segment { from: commit_trace.start(), to: commit_trace.end(), fill: Fill::Commit };
    let label = format!("{}{shared}", root_label(commit_trace));
    let mut rows =
        vec![WaterfallRow::new(1, label, commit_trace.duration(), vec![lifetime]).with_ink(Ink::Journal)];
    rows.extend(groups(trace, commit_trace, 2).into_iter().flat_map(|group| group.rows));
    RowGroup { start: commit_trace.start(), rows }
}

/// Returns the segments of `lifetime` in which no bio, request or commit was in flight, without the longest
/// wait.
fn idle(trace: &Trace, lifetime: Segment, fill: Fill) -> Vec<Segment> {
    let all = std::iter::once(trace).chain(trace.waited_for.iter().map(|cause| &*cause.trace));
    let mut busy: Vec<_> =
        trace.waited_for.iter().map(|cause| (cause.trace.start(), cause.trace.end())).collect();
    for of in all {
        busy.extend(of.bios.iter().map(|bio| (bio.queue, bio.end)));
        busy.extend(requests(of).map(|request| (request.start, request.complete)));
    }
    busy.extend(waits::longest(trace));
    uncovered(busy, lifetime, fill)
}

/// Returns the segments of `lifetime` that none of the `busy` ranges covers.
pub(super) fn uncovered(
    mut busy: Vec<(MonotonicNs, MonotonicNs)>,
    lifetime: Segment,
    fill: Fill,
) -> Vec<Segment> {
    // A range that ends before it starts comes from a broken clock and covers nothing.
    busy.retain(|(from, to)| from < to);
    busy.sort_unstable();
    let (mut idle, mut uncovered_from) = (Vec::new(), lifetime.from);
    for (from, to) in busy {
        if from.min(lifetime.to) > uncovered_from {
            idle.push(Segment { from: uncovered_from, to: from.min(lifetime.to), fill });
        }
        uncovered_from = uncovered_from.max(to);
    }
    if lifetime.to > uncovered_from {
        idle.push(Segment { from: uncovered_from, to: lifetime.to, fill });
    }
    idle
}

#[cfg(test)]
mod tests;
