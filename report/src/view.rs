//! The page: its sections in the order in which a reader asks. How much was it? Which layer took the time? Which
//! call, device, file? What did the slowest ones look like? What goes on still? And is that all?

mod calls;
mod devices;
mod end;
mod files;
mod headline;
mod kernel;
mod layers;
mod losses;
mod operations;
mod slowest;

use crate::losses::Losses;
use crate::report::Report;
use crate::text::line::{Line, wrapped};
use crate::text::style::{Ink, Style};
use crate::text::table::INDENT;
use crate::text::units;

use blkkin_wire::clock::DurationNs;

pub(crate) use end::name_of;
pub(crate) use files::FILES_SHOWN;

/// The whole page.
pub(crate) fn page(report: &Report, losses: &Losses, style: &Style) -> String {
    let columns = style.columns();
    let mut lines = headline::lines(report, columns);
    for section in [
        layers::lines(report, columns),
        calls::lines(report, columns),
        devices::lines(report, columns),
        files::lines(report, columns),
        kernel::lines(report, columns),
        operations::lines(report, columns),
        slowest::lines(report, columns),
        end::lines(report, columns),
        losses::lines(report, losses, columns),
    ] {
        lines.extend(section);
    }
    lines.iter().map(|line| line.paint(style) + "\n").collect()
}

/// A blank line, and a title with what it is about and a rule behind it.
fn title(text: &str, about: &str, columns: usize) -> Vec<Line> {
    let mut line = Line::of(text, Ink::Bold);
    if !about.is_empty() {
        line.push(format!("  {about}"), Ink::Dim);
    }
    let rule = "─".repeat(columns.saturating_sub(line.width() + 1));
    vec![Line::new(), line.with(format!(" {rule}"), Ink::Dim)]
}

/// A remark below a table.
fn remark(text: &str, columns: usize) -> Vec<Line> {
    wrapped(text, INDENT, columns, Ink::Dim)
}

fn time(time: Option<DurationNs>) -> String {
    time.map_or_else(|| units::NONE.to_owned(), units::duration)
}

/// A size; of nothing, nothing.
fn size(bytes: u64) -> String {
    if bytes == 0 { units::NONE.to_owned() } else { units::bytes(bytes) }
}
