//! Whether that is all.

use crate::collect::totals::Gaps;
use crate::losses::Losses;
use crate::report::Report;
use crate::text::line::{Line, wrapped};
use crate::text::style::Ink;
use crate::text::units::{count, counted};

pub(super) fn lines(report: &Report, losses: &Losses, columns: usize) -> Vec<Line> {
    let ink = if losses.total() == 0 && losses.balances() { Ink::Bold } else { Ink::Alarm };
    let mut lines = vec![Line::new()];
    lines.extend(wrapped(&lost(losses), 0, columns, ink));
    if !losses.balances() {
        lines.extend(wrapped(&unbalanced(losses), 0, columns, Ink::Alarm));
    }
    if let Some(gaps) = gaps(&report.totals.gaps) {
        lines.extend(wrapped(&gaps, 0, columns, Ink::Alarm));
    }
    let beside = losses.beside();
    if !beside.is_empty() {
        lines.extend(wrapped(&format!("beside: {}", listed(&beside)), 0, columns, Ink::Plain));
    }
    lines
}

fn lost(losses: &Losses) -> String {
    let books = format!("({} records fired, {} recorded)", count(losses.fired), count(losses.recorded));
    let lost = losses.lost();
    if lost.is_empty() {
        format!("lost: nothing {books}")
    } else {
        format!("lost: {} {books}", listed(&lost))
    }
}

fn unbalanced(losses: &Losses) -> String {
    format!(
        "the books do not balance: {} fired, {} recorded + {} dropped",
        count(losses.fired),
        count(losses.recorded),
        count(losses.dropped())
    )
}

/// What the traces themselves are known to miss.
fn gaps(gaps: &Gaps) -> Option<String> {
    let parts =
        [(gaps.roots, "call"), (gaps.bios, "bio"), (gaps.requests, "request"), (gaps.commits, "commit")];
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    let parts: Vec<String> = parts.map(|(number, noun)| counted(*number, noun)).collect();
    (gaps.traces > 0).then(|| {
        format!("not whole: {}, missing {}", counted(gaps.traces, "storage request"), parts.join(", "))
    })
}

fn listed(counts: &[(&'static str, u64)]) -> String {
    let parts: Vec<String> =
        counts.iter().map(|(name, number)| format!("{} {name}", count(*number))).collect();
    parts.join(", ")
}
