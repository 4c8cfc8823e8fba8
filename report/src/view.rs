//! The text page: totals, layers, calls, devices, files, kernel work, writers, waits, the slowest
//! operations, the state at the end of tracing, the explained share of each disk, and the losses.

mod calls;
mod coverage;
mod daemon_spans;
mod devices;
mod files;
mod final_state;
mod headline;
mod kernel;
mod layers;
mod losses;
mod slowest;
mod waits;
mod written_by;

use crate::losses::Losses;
use crate::report::Report;
use crate::text::line::{Line, sanitize, wrap};
use crate::text::shorten;
use crate::text::style::{Ink, Style};
use crate::text::table::INDENT;
use crate::text::units;

use blkkin_wire::clock::DurationNs;

pub(crate) use files::FILES_SHOWN;
pub(crate) use final_state::device_name;
pub(crate) use waits::WAITS_SHOWN;
pub(crate) use written_by::WRITERS_SHOWN;

/// Maximum width of a program's name.
const PROGRAM_WIDTH: usize = 16;

/// Renders the whole page.
pub(crate) fn page(report: &Report, losses: &Losses, style: &Style) -> String {
    let columns = style.columns();
    let mut lines = headline::lines(report, columns);
    for section in [
        layers::lines(report, columns),
        calls::lines(report, columns),
        devices::lines(report, columns),
        files::lines(report, columns),
        kernel::lines(report, columns),
        written_by::lines(report, columns),
        waits::lines(report, columns),
        daemon_spans::lines(report, columns),
        slowest::lines(report, columns),
        final_state::lines(report, columns),
        coverage::lines(report, columns),
        losses::lines(report, losses, columns),
    ] {
        lines.extend(section);
    }
    lines.iter().map(|line| line.paint(style) + "\n").collect()
}

/// Returns a blank line, and a section title with a subtitle and a rule.
fn title(text: &str, subtitle: &str, columns: usize) -> Vec<Line> {
    let mut line = Line::of(text, Ink::Bold);
    if !subtitle.is_empty() {
        line.push(format!("  {subtitle}"), Ink::Dim);
    }
    let rule = "─".repeat(columns.saturating_sub(line.width() + 1));
    vec![Line::new(), line.with(format!(" {rule}"), Ink::Dim)]
}

/// Returns a note below a table.
fn note(text: &str, columns: usize) -> Vec<Line> {
    wrap(text, INDENT, columns, Ink::Dim)
}

/// Formats a program's name for a table.
fn program(name: &str) -> String {
    shorten::end(&sanitize(name), PROGRAM_WIDTH)
}

fn time(time: Option<DurationNs>) -> String {
    time.map_or_else(|| units::NONE.to_owned(), units::duration)
}

/// Formats a size; zero is a dash.
fn size(bytes: u64) -> String {
    if bytes == 0 { units::NONE.to_owned() } else { units::bytes(bytes) }
}
