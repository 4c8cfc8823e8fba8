//! Section: system calls by total time.

use blkkin_wire::clock::DurationNs;

use super::{note, size, time, title};
use crate::collect::calls::{CallRow, IoKind, Operation};
use crate::report::Report;
use crate::text::line::Line;
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, count, counted};

/// Maximum number of rows: programs rarely use more kinds of storage calls, and the rest takes
/// little time.
const CALLS_SHOWN: usize = 12;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows = most(report, CALLS_SHOWN, columns);
    let title = if rows.is_empty() { Vec::new() } else { title("system calls", "", columns) };
    title.into_iter().chain(rows).chain(streams(report, columns)).collect()
}

/// Returns the table of the calls that took the most time.
pub(super) fn most(report: &Report, shown: usize, columns: usize) -> Vec<Line> {
    let rows = report.calls.by_time(IoKind::Storage);
    if rows.is_empty() {
        return Vec::new();
    }
    // The line "and 1 more" would need as much room as the row itself.
    let shown = if rows.len() > shown + 1 { shown } else { rows.len() };
    let mut lines = table(&rows[..shown], report.layers.total_time().0).lines(columns);
    lines.extend(more(&rows[shown..], columns));
    lines
}

fn table(rows: &[(Operation, &CallRow)], total_time: u64) -> Table {
    let mut table = Table::new(vec![
        Column::name("call"),
        Column::number("count"),
        Column::number("errors"),
        Column::number("bytes").droppable(2),
        Column::number("p50"),
        Column::number("p90").droppable(3),
        Column::number("p99"),
        Column::number("max"),
        Column::number("total").droppable(1),
        Column::number("share"),
    ]);
    for (operation, row) in rows {
        let times = &row.times;
        let cells = vec![
            operation.name().to_owned(),
            count(times.count()),
            if row.errors == 0 { units::NONE.to_owned() } else { count(row.errors) },
            size(row.bytes),
            time(times.quantile(0.5)),
            time(times.quantile(0.9)),
            time(times.quantile(0.99)),
            time(times.max()),
            units::duration(times.total()),
            // The total is that of calls, which asynchronous I/O overlaps.
            match operation {
                Operation::Call(_) => units::share(times.total().0, total_time),
                Operation::AsyncIo(_) => units::NONE.to_owned(),
            },
        ];
        let row = Row::new(cells, Ink::Plain);
        table.push(match operation {
            Operation::Call(_) => row.with_bar(times.total().0, total_time),
            Operation::AsyncIo(_) => row,
        });
    }
    table.without_empty(&["errors", "bytes"])
}

fn more(rest: &[(Operation, &CallRow)], columns: usize) -> Vec<Line> {
    if rest.is_empty() {
        return Vec::new();
    }
    let (calls, time) = sums(rest);
    let text = format!(
        "and {} more: {}, {}",
        units::count(rest.len() as u64),
        counted(calls, "call"),
        units::duration(time)
    );
    note(&text, columns)
}

/// Returns a line that sums calls on pipes, plain memory and other objects that are not storage.
fn streams(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.calls.by_time(IoKind::NotStorage);
    if rows.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> =
        rows.iter().map(|(call, row)| format!("{} {}", call.name(), count(row.times.count()))).collect();
    let (calls, time) = sums(&rows);
    let text = format!(
        "not in these tables: {} on pipes, sockets, /proc, memory and so on, {} ({})",
        counted(calls, "call"),
        units::duration(time),
        names.join(", ")
    );
    note(&text, columns)
}

fn sums(rows: &[(Operation, &CallRow)]) -> (u64, DurationNs) {
    let calls = rows.iter().map(|(_, row)| row.times.count()).sum();
    (calls, DurationNs(rows.iter().fold(0, |sum, (_, row)| sum.saturating_add(row.times.total().0))))
}
