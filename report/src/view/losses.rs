//! Section: losses and incomplete traces.

use crate::collect::totals::IncompleteStats;
use crate::losses::Losses;
use crate::report::Report;
use crate::text::line::{Line, wrap};
use crate::text::style::Ink;
use crate::text::units::{count, counted};

pub(super) fn lines(report: &Report, losses: &Losses, columns: usize) -> Vec<Line> {
    let ink = if losses.total() == 0 && losses.balances() { Ink::Bold } else { Ink::Alarm };
    let mut lines = wrap(&lost(losses), 0, columns, ink);
    if !losses.balances() {
        lines.extend(wrap(&mismatch(losses), 0, columns, Ink::Alarm));
    }
    if let Some(incomplete) = incomplete(&report.totals.incomplete) {
        lines.extend(wrap(&incomplete, 0, columns, Ink::Alarm));
    }
    let notes = losses.notes();
    if !notes.is_empty() {
        lines.extend(wrap(&format!("also: {}", listed(&notes)), 0, columns, Ink::Plain));
    }
    lines
}

fn lost(losses: &Losses) -> String {
    let records = format!("({} records fired, {} recorded)", count(losses.fired), count(losses.recorded));
    let lost = losses.lost();
    if lost.is_empty() {
        format!("lost: nothing {records}")
    } else {
        format!("lost: {} {records}", listed(&lost))
    }
}

fn mismatch(losses: &Losses) -> String {
    format!(
        "accounting mismatch: {} fired, {} recorded + {} dropped",
        count(losses.fired),
        count(losses.recorded),
        count(losses.dropped())
    )
}

/// Formats the parts that are known to be missing from traces.
fn incomplete(incomplete: &IncompleteStats) -> Option<String> {
    let parts = [
        (incomplete.roots, "call"),
        (incomplete.bios, "bio"),
        (incomplete.requests, "request"),
        (incomplete.commits, "commit"),
        (incomplete.page_origins, "page origin"),
    ];
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    let parts: Vec<String> = parts.map(|(number, noun)| counted(*number, noun)).collect();
    (incomplete.traces > 0).then(|| {
        format!(
            "incomplete: {}, missing {}",
            counted(incomplete.traces, "storage operation"),
            parts.join(", ")
        )
    })
}

fn listed(counts: &[(&'static str, u64)]) -> String {
    let parts: Vec<String> =
        counts.iter().map(|(name, number)| format!("{} {name}", count(*number))).collect();
    parts.join(", ")
}
