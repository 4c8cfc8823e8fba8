//! Section: what share of each disk's own byte count the trace explains.

use super::{note, size, title};
use crate::collect::coverage::{Cause, CoverageRow};
use crate::report::Report;
use crate::text::line::{Line, sanitize};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{NONE, share};

const OF_A_COMMAND: &str = "not recorded: other programs, and the kernel's workers, which also write \
     later what the command has written";
const OF_A_NODE: &str = "not recorded: what the filters exclude, and what was under way when tracing began";

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.coverage_rows();
    if rows.is_empty() {
        return Vec::new();
    }
    let causes = Cause::ALL.into_iter().map(|cause| Column::number(cause.name()));
    let names = [Column::name("disk"), Column::number("bytes")].into_iter();
    let mut table = Table::new(names.chain(causes).chain([Column::number("not recorded")]).collect());
    for row in &rows {
        table.push(Row::new(cells(row), Ink::Plain));
    }
    let mut lines = title("explained", "share of what each disk counted itself, by cause", columns);
    lines.extend(table.without_empty(&["journal", "metadata"]).lines(columns));
    if rows.iter().any(|row| row.not_recorded() > 0) {
        lines.extend(note(if report.config.command.is_some() { OF_A_COMMAND } else { OF_A_NODE }, columns));
    }
    lines
}

fn cells(row: &CoverageRow) -> Vec<String> {
    let part = |bytes: u64| if bytes == 0 { NONE.to_owned() } else { share(bytes, row.counted) };
    let parts = row.recorded.into_iter().chain([row.not_recorded()]).map(part);
    [sanitize(&row.name), size(row.counted)].into_iter().chain(parts).collect()
}
