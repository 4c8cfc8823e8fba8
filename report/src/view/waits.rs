//! Section: what calls waited for inside the kernel, and the holders of the locks; and where in the kernel they slept,
//! if the trace records it.

use super::{note, program, time, title};
use crate::collect::latency::Latency;
use crate::collect::waits::{WaitKey, WaitObject};
use crate::report::Report;
use crate::text::line::{Line, sanitize};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, NONE, count, counted};

/// Maximum number of rows.
pub(crate) const WAITS_SHOWN: usize = 10;
/// Maximum number of rows of functions.
pub(crate) const SLEEPS_SHOWN: usize = 10;
/// Meaning of a queue's row.
const QUEUE: &str = "a queue: requests that waited in it while the device worked for the other one";

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let mut lines = wait_lines(report, columns);
    lines.extend(sleep_lines(report, columns));
    lines
}

fn wait_lines(report: &Report, columns: usize) -> Vec<Line> {
    let waits = report.waits();
    let rows = waits.by_time(WAITS_SHOWN);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(vec![
        Column::name("program"),
        Column::name("waited for"),
        Column::name("held by"),
        Column::number("times"),
        Column::number("p50").droppable(1),
        Column::number("max"),
        Column::number("total"),
    ]);
    for (key, times) in &rows {
        table.push(Row::new(cells(key, times), Ink::Plain));
    }
    let mut lines =
        title("waits", "waiting tasks and what they waited for: locks, dirty pages, queues", columns);
    lines.extend(table.lines(columns));
    if rows.iter().any(|(key, _)| matches!(key.object, WaitObject::Queue(_))) {
        lines.extend(note(QUEUE, columns));
    }
    let hidden = waits.count() - rows.len();
    if hidden > 0 || waits.has_others() {
        let at_least = if waits.has_others() { "more than " } else { "" };
        lines.extend(note(&format!("and {at_least}{} more", count(hidden as u64)), columns));
    }
    lines
}

fn sleep_lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.sleeps.by_time(SLEEPS_SHOWN);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(vec![
        Column::name("program"),
        Column::name("slept in"),
        Column::name("called by").droppable(2),
        Column::number("calls").droppable(1),
        Column::number("sleeps"),
        Column::number("total"),
    ]);
    for (key, sums) in &rows {
        let cells = vec![
            program(&key.program),
            sanitize(&key.function),
            key.caller.as_deref().map_or_else(|| NONE.to_owned(), sanitize),
            count(sums.calls),
            count(sums.sleeps),
            units::duration(sums.time),
        ];
        table.push(Row::new(cells, Ink::Plain));
    }
    let mut lines = title("sleeps", "functions of the kernel in which calls slept", columns);
    lines.extend(table.lines(columns));
    let hidden = report.sleeps.count() - rows.len();
    if hidden > 0 {
        lines.extend(note(&format!("and {} more", count(hidden as u64)), columns));
    }
    let others = report.sleeps.others();
    if others.sleeps > 0 {
        let time = units::duration(others.time);
        lines.extend(note(
            &format!("and {} at further places, {time}", counted(others.sleeps, "sleep")),
            columns,
        ));
    }
    let unended = report.sleeps.unended();
    if unended > 0 {
        let note_of = format!("{} without a time: the end was not observed", counted(unended, "sleep"));
        lines.extend(note(&note_of, columns));
    }
    lines
}

fn cells(key: &WaitKey, times: &Latency) -> Vec<String> {
    vec![
        program(&key.program),
        sanitize(&key.object.name()),
        key.holder.as_deref().map_or_else(|| NONE.to_owned(), program),
        count(times.count()),
        time(times.quantile(0.5)),
        time(times.max()),
        units::duration(times.total()),
    ]
}
