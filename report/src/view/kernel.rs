//! Section: block I/O that belongs to no recorded system call.

use std::cmp::Reverse;

use super::{size, time, title};
use crate::collect::kernel::{WorkKind, WorkRow};
use crate::report::Report;
use crate::text::line::Line;
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::count;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows: Vec<_> = report.kernel.rows.iter().collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let title = title("without a call", "kernel work, and calls that were not recorded", columns);
    title.into_iter().chain(table(&rows, columns)).collect()
}

/// Returns the table of the kinds with the most bytes, without its title.
pub(super) fn most(report: &Report, shown: usize, columns: usize) -> Vec<Line> {
    let mut rows: Vec<_> = report.kernel.rows.iter().collect();
    rows.sort_by_key(|(_, row)| Reverse(row.bytes));
    rows.truncate(shown);
    if rows.is_empty() { Vec::new() } else { table(&rows, columns) }
}

fn table(rows: &[(&WorkKind, &WorkRow)], columns: usize) -> Vec<Line> {
    let mut table = Table::new(vec![
        Column::name("work"),
        Column::number("times"),
        Column::number("bios"),
        Column::number("requests"),
        Column::number("bytes"),
        Column::number("p50"),
        Column::number("p90").droppable(1),
        Column::number("p99"),
        Column::number("max"),
    ]);
    for (kind, row) in rows {
        let cells = vec![
            kind.name().to_owned(),
            count(row.times.count()),
            count(row.bios),
            count(row.requests),
            size(row.bytes),
            time(row.times.quantile(0.5)),
            time(row.times.quantile(0.9)),
            time(row.times.quantile(0.99)),
            time(row.times.max()),
        ];
        table.push(Row::new(cells, Ink::Plain));
    }
    table.lines(columns)
}
