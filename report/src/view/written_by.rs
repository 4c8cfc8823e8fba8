//! Section: programs whose data the bios carried.

use super::{note, program, size, time, title};
use crate::collect::written_by::WriterRow;
use crate::report::Report;
use crate::text::line::{Line, sanitize};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, NONE, count, counted};

/// Maximum number of rows.
pub(crate) const WRITERS_SHOWN: usize = 10;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.written_by.by_bytes(WRITERS_SHOWN);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(vec![
        Column::name("file"),
        Column::name("program"),
        Column::number("bytes"),
        Column::number("requests"),
        Column::number("age p50").droppable(1),
        Column::number("age max"),
    ]);
    for (name, file, row) in &rows {
        table.push(Row::new(cells(name, file, row), Ink::Plain));
    }
    let mut lines = title("written by", "whose data was written back, and its age in memory", columns);
    lines.extend(table.lines(columns));
    let hidden = report.written_by.count() - rows.len();
    if hidden > 0 || report.written_by.has_others() {
        let (bytes, requests) = report.written_by.rest(&rows);
        let at_least = if report.written_by.has_others() { "more than " } else { "" };
        let text = format!(
            "and {at_least}{} more: {}, {}",
            count(hidden as u64),
            units::bytes(bytes),
            counted(requests, "request")
        );
        lines.extend(note(&text, columns));
    }
    lines
}

fn cells(name: &str, file: &str, row: &WriterRow) -> Vec<String> {
    vec![
        sanitize(file),
        program(name),
        size(row.bytes),
        if row.requests == 0 { NONE.to_owned() } else { count(row.requests) },
        time(row.age.quantile(0.5)),
        time(row.age.max()),
    ]
}
