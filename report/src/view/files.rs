//! Which file took the time.

use super::{remark, size, title};
use crate::collect::files::FileRow;
use crate::report::Report;
use crate::text::line::{Line, harmless};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, count, counted};

/// Rows that are shown.
pub(crate) const FILES_SHOWN: usize = 10;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.files.by_time(FILES_SHOWN);
    if rows.is_empty() {
        return Vec::new();
    }
    let whole = report.layers.whole().0;
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
        table.push(Row::new(cells(harmless(path), row, whole), Ink::Plain).with_bar(row.total.0, whole));
    }
    let mut lines = title("files", "", columns);
    lines.extend(table.lines(columns));
    lines.extend(more(report, &rows, columns));
    lines
}

fn cells(path: String, row: &FileRow, whole: u64) -> Vec<String> {
    vec![
        path,
        count(row.calls),
        size(row.moved.read),
        size(row.moved.written),
        units::duration(row.max),
        units::duration(row.total),
        units::share(row.total.0, whole),
    ]
}

fn more(report: &Report, shown: &[(&str, &FileRow)], columns: usize) -> Vec<Line> {
    let rest = report.files.rest(shown);
    if rest.calls == 0 {
        return Vec::new();
    }
    // Files beyond the table's maximum are summed without being told apart: how many they are is not known.
    let at_least = if report.files.others().is_some() { "more than " } else { "" };
    let files = count((report.files.count() - shown.len()) as u64);
    let (calls, time) = (counted(rest.calls, "call"), units::duration(rest.total));
    remark(&format!("and {at_least}{files} more: {calls}, {time}"), columns)
}
