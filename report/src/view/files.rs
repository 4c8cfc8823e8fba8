//! Section: files by total time.

use blkkin_aggregator::trace::page_cache::CachedRead;

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
    let with_cached = rows.iter().any(|(_, row)| row.cached.reads > 0);
    let columns_of_table = [
        Some(Column::name("file")),
        Some(Column::number("calls")),
        Some(Column::number("read")),
        with_cached.then(|| Column::number("cached").droppable(1)),
        Some(Column::number("written")),
        Some(Column::number("max")),
        Some(Column::number("total")),
        Some(Column::number("share")),
    ];
    let mut table = Table::new(columns_of_table.into_iter().flatten().collect());
    for (path, row) in &rows {
        let bar = if row.submissions == 0 { row.total.0 } else { 0 };
        let cells = cells(sanitize(path), row, with_cached, total_time);
        table.push(Row::new(cells, Ink::Plain).with_bar(bar, total_time));
    }
    let subtitle =
        if with_cached { "cached: share of the bytes that the reads did not fetch themselves" } else { "" };
    let mut lines = title("files", subtitle, columns);
    lines.extend(table.lines(columns));
    lines.extend(more(report, &rows, columns));
    lines
}

fn cells(path: String, row: &FileRow, with_cached: bool, total_time: u64) -> Vec<String> {
    // The total is that of calls, which asynchronous I/O overlaps.
    let share =
        if row.submissions == 0 { units::share(row.total.0, total_time) } else { units::NONE.to_owned() };
    [
        Some(path),
        Some(count(row.calls)),
        Some(size(row.bytes.read)),
        with_cached.then(|| cached(row)),
        Some(size(row.bytes.written)),
        Some(units::duration(row.max)),
        Some(units::duration(row.total)),
        Some(share),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the share of the bytes read through the page cache that the reads did not fetch themselves; none
/// if that is not known of each read.
fn cached(row: &FileRow) -> String {
    let CachedRead { bytes, fetched, .. } = row.cached.bytes;
    let is_known = bytes > 0 && row.cached.unknown == 0;
    if is_known { units::share(bytes.saturating_sub(fetched), bytes) } else { units::NONE.to_owned() }
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
