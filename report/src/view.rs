//! The text page: a summary, and the sections that the user asks for.
//!
//! The summary has totals, the layers that took the time, the slowest operation, the calls that took the most, the
//! explained share of the disks, and the losses. *Invariant*: it has at most 23 lines of 80 columns, so that it and the
//! prompt fit a terminal, unless failures, lost devices or losses are listed. Sections take the place of its table of calls,
//! and of no other line.
//!
//! *Rejected*: all sections by default, which pushed the cause out of the terminal; a pager, which a report in a log does
//! not have.

mod calls;
mod coverage;
mod daemon_spans;
mod devices;
mod files;
mod final_state;
mod guests;
mod headline;
mod kernel;
mod layers;
mod losses;
mod slowest;
mod summary;
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
pub(crate) use guests::PROGRAMS_SHOWN;
pub(crate) use waits::{SLEEPS_SHOWN, WAITS_SHOWN};
pub(crate) use written_by::WRITERS_SHOWN;

/// Maximum width of a program's name.
const PROGRAM_WIDTH: usize = 16;

/// A section of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Time by layer.
    Layers,
    /// System calls and asynchronous I/O by kind.
    Calls,
    /// Requests by device and operation.
    Devices,
    /// Files by time.
    Files,
    /// Block I/O without a system call.
    Kernel,
    /// Writers of the data that was written back.
    Writers,
    /// Waits by cause.
    Waits,
    /// The slowest operations of storage daemons.
    Operations,
    /// Waterfalls of the slowest storage operations.
    Slowest,
    /// Calls of guests by layer, and waterfalls of the slowest.
    Guests,
    /// Causes of the bytes that each disk counted.
    Explained,
}

impl Section {
    /// Sections in the order of the page.
    pub const ALL: [Section; 11] = [
        Section::Layers,
        Section::Calls,
        Section::Devices,
        Section::Files,
        Section::Kernel,
        Section::Writers,
        Section::Waits,
        Section::Operations,
        Section::Slowest,
        Section::Guests,
        Section::Explained,
    ];

    /// Returns the name of the section on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Section::Layers => "layers",
            Section::Calls => "calls",
            Section::Devices => "devices",
            Section::Files => "files",
            Section::Kernel => "kernel",
            Section::Writers => "writers",
            Section::Waits => "waits",
            Section::Operations => "operations",
            Section::Slowest => "slowest",
            Section::Guests => "guests",
            Section::Explained => "explained",
        }
    }

    fn lines(self, report: &Report, columns: usize) -> Vec<Line> {
        match self {
            Section::Layers => layers::lines(report, columns),
            Section::Calls => calls::lines(report, columns),
            Section::Devices => devices::lines(report, columns),
            Section::Files => files::lines(report, columns),
            Section::Kernel => kernel::lines(report, columns),
            Section::Writers => written_by::lines(report, columns),
            Section::Waits => waits::lines(report, columns),
            Section::Operations => daemon_spans::lines(report, columns),
            Section::Slowest => slowest::lines(report, columns),
            Section::Guests => guests::lines(report, columns),
            Section::Explained => coverage::lines(report, columns),
        }
    }
}

/// Renders the summary and these sections.
pub(crate) fn page(report: &Report, losses: &Losses, style: &Style, sections: &[Section]) -> String {
    let columns = style.columns();
    let is_summary = sections.is_empty();
    let mut lines = headline::lines(report, columns);
    lines.extend(summary::causes(report, columns));
    if is_summary {
        lines.extend(summary::tables(report, columns));
    }
    let failures = devices::anomalies(report);
    if !failures.is_empty() && !sections.contains(&Section::Devices) {
        lines.extend((!is_summary).then(Line::new));
        lines.extend(failures);
    }
    for section in Section::ALL.into_iter().filter(|section| sections.contains(section)) {
        lines.extend(section.lines(report, columns));
    }
    lines.extend(if is_summary {
        final_state::changes(report, columns)
    } else {
        final_state::lines(report, columns)
    });
    lines.push(Line::new());
    if !sections.contains(&Section::Explained) {
        lines.extend(summary::explained(report, columns));
    }
    if !sections.contains(&Section::Guests) {
        lines.extend(summary::missing(report, columns));
    }
    lines.extend(losses::lines(report, losses, columns));
    if is_summary {
        lines.extend(summary::more(report, columns));
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
