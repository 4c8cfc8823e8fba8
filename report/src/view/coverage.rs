//! Section: what share of each disk's own byte count the trace explains.

use super::{note, size, title};
use crate::collect::coverage::{Cause, CoverageRow};
use crate::report::Report;
use crate::text::line::{Line, sanitize};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{NONE, share};

const OF_A_COMMAND: &str =
    "not recorded: other programs, what filters exclude, and kernel work that is not for the command";
const OF_A_NODE: &str = "not recorded: what the filters exclude, and what was under way when tracing began";
const EARLIER_WRITES: &str = "earlier writes: the kernel wrote the data back after the call had returned";
const OTHER_PROGRAMS: &str =
    "other programs: blkkin itself, those that a filter excludes, unrecorded writers";

/// Width from which the headings are not abbreviated.
const ROOMY: usize = 100;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.coverage_rows();
    if rows.is_empty() {
        return Vec::new();
    }
    let heading = if columns < ROOMY { Cause::short_name } else { Cause::name };
    let causes = Cause::ALL.into_iter().map(|cause| Column::number(heading(cause)));
    let names = [Column::name("disk"), Column::number("bytes")].into_iter();
    let mut table = Table::new(names.chain(causes).chain([Column::number("not recorded")]).collect());
    for row in &rows {
        table.push(Row::new(cells(row), Ink::Plain));
    }
    let always = [Cause::Call, Cause::Unknown];
    let optional: Vec<_> =
        Cause::ALL.into_iter().filter(|cause| !always.contains(cause)).map(heading).collect();
    let mut lines = title("explained", "share of what each disk counted itself, by cause", columns);
    lines.extend(table.without_empty(&optional).lines(columns));
    lines.extend(notes(report, &rows).into_iter().flat_map(|text| note(text, columns)));
    lines
}

fn notes(report: &Report, rows: &[CoverageRow]) -> Vec<&'static str> {
    let any = |cause: Cause| rows.iter().any(|row| row.recorded[cause as usize] > 0);
    let of_a_command = report.config.command.is_some();
    let not_recorded = if of_a_command { OF_A_COMMAND } else { OF_A_NODE };
    [
        (any(Cause::EarlierWrites), EARLIER_WRITES),
        (any(Cause::OtherPrograms), OTHER_PROGRAMS),
        (rows.iter().any(|row| row.not_recorded() > 0), not_recorded),
    ]
    .into_iter()
    .filter_map(|(applies, text)| applies.then_some(text))
    .collect()
}

fn cells(row: &CoverageRow) -> Vec<String> {
    let part = |bytes: u64| if bytes == 0 { NONE.to_owned() } else { share(bytes, row.counted) };
    let parts = row.recorded.into_iter().chain([row.not_recorded()]).map(part);
    [sanitize(&row.name), size(row.counted)].into_iter().chain(parts).collect()
}
