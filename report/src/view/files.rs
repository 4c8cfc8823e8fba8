//! Section: files by total time.

use super::{note, size, title};
use crate::collect::files::FileRow;
use crate::report::Report;
use crate::text::line::{Line, sanitize};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, count, counted};

/// Maximum number of rows.
pub(crate) const FILES_SHOWN: usize = 10;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.files.by_time(FILES_SHOWN);
    if rows.is_empty() {
        return Vec::new();
    }
    let total_time = report.layers.total_time().0;
    let mut table = Table::new(vec![
        Column::name("file"),
        Column::number("calls"),
        Column::number("read"),
        Column::number("written"),
        Column::number("max"),
        Column::number("total"),
        Column::number("share"),
    ]);
    for (path, row) in &rows {
        let bar = if row.submissions == 0 { row.total.0 } else { 0 };
        table.push(Row::new(cells(sanitize(path), row, total_time), Ink::Plain).with_bar(bar, total_time));
    }
    let mut lines = title("files", "", columns);
    lines.extend(table.lines(columns));
    lines.extend(more(report, &rows, columns));
    lines
}

fn cells(path: String, row: &FileRow, total_time: u64) -> Vec<String> {
    vec![
        path,
        count(row.calls),
        size(row.bytes.read),
        size(row.bytes.written),
        units::duration(row.max),
        units::duration(row.total),
        // The total is that of calls, which asynchronous I/O overlaps.
        if row.submissions == 0 { units::share(row.total.0, total_time) } else { units::NONE.to_owned() },
    ]
}

fn more(report: &Report, shown: &[(&str, &FileRow)], columns: usize) -> Vec<Line> {
    let rest = report.files.rest(shown);
    if rest.calls == 0 {
        return Vec::new();
    }
    // Files beyond the table's maximum share one row, so their number is unknown.
    let at_least = if report.files.others().is_some() { "more than " } else { "" };
    let files = count((report.files.count() - shown.len()) as u64);
    let (calls, time) = (counted(rest.calls, "call"), units::duration(rest.total));
    note(&format!("and {at_least}{files} more: {calls}, {time}"), columns)
}
