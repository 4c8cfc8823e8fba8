//! Headline: command, number of operations, bytes.

use crate::report::Report;
use crate::text::line::{Line, sanitize, width, wrap};
use crate::text::shorten;
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, counted};

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let mut lines = vec![command(report, columns)];
    lines.extend(wrap(&requests(report), 0, columns, Ink::Plain));
    lines.push(Line::new());
    lines.extend(bytes(report).lines(columns));
    lines
}

/// Returns the command on the left and the wall time on the right.
fn command(report: &Report, columns: usize) -> Line {
    let time = units::duration(report.wall_time());
    let name = report.config.command.as_deref().map_or_else(|| "this node".to_owned(), sanitize);
    let name = shorten::end(&name, columns.saturating_sub(width(&time) + 2));
    let mut line = Line::of(name, Ink::Bold);
    line.pad_to(columns - width(&time));
    line.with(time, Ink::Bold)
}

fn requests(report: &Report) -> String {
    let totals = &report.totals;
    let mut parts = vec![counted(totals.storage_calls(), "system call")];
    // "without a call" is more than kernel work: the requests of a call that began before its probe
    // was attached are recorded, the call is not.
    let own = format!("{} without a call", units::count(totals.kernel));
    let others = [
        (totals.commits, counted(totals.commits, "journal commit")),
        (totals.faults, counted(totals.faults, "page fault")),
        (totals.kernel, own),
        (totals.daemon_spans, format!("in {}", counted(totals.daemon_spans, "operation"))),
        (totals.incomplete.roots, format!("{} not seen", counted(totals.incomplete.roots, "call"))),
    ];
    parts.extend(others.into_iter().filter(|(number, _)| *number > 0).map(|(_, text)| text));
    format!("{}: {}", counted(totals.storage_requests(), "storage operation"), parts.join(", "))
}

fn bytes(report: &Report) -> Table {
    let totals = &report.totals;
    let mut table = Table::new(vec![
        Column::name(""),
        Column::number("read"),
        Column::number("written"),
        Column::number("discarded"),
        Column::name("").droppable(1),
    ]);
    let mut push = |name: &str, bytes: crate::collect::totals::ByteCounts, discarded: u64, how: String| {
        let sizes = [bytes.read, bytes.written, discarded].map(super::size);
        let [read, written, discarded] = sizes;
        table.push(Row::new(vec![name.to_owned(), read, written, discarded, how], Ink::Plain));
    };
    push("by system calls", totals.by_calls, 0, counted(totals.storage_calls(), "call"));
    let flushes = match totals.flushes {
        0 => String::new(),
        flushes => format!(
            " ({})",
            if flushes == 1 { "1 flush".to_owned() } else { format!("{} flushes", units::count(flushes)) }
        ),
    };
    let requests =
        format!("{}, {}{flushes}", counted(totals.bios, "bio"), counted(totals.requests, "request"));
    push("at the devices", totals.by_devices, totals.discarded, requests);
    table.without_empty(&["discarded"])
}
