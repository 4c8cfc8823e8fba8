//! Result as text for a terminal.

use super::figure::{Goal, Verdict};
use super::number::{number, with_spread};
use super::outcome::{Outcome, Table};
use super::{BenchReport, Figure};

/// Formats the whole result.
pub(crate) fn text(outcome: &Outcome) -> String {
    let BenchReport { figures, tables, notes, .. } = &outcome.report;
    let mut text = format!("{}: {}\n", outcome.bench, outcome.machine.summary());
    text += &format!("  {}\n", outcome.conditions.summary());
    text += &self::figures(figures);
    text.extend(tables.iter().map(table));
    text.extend(notes.iter().map(|note| format!("  {note}\n")));
    text
}

/// Formats a goal: `≤ 300`.
pub(crate) fn goal(goal: Goal) -> String {
    match goal {
        Goal::AtMost(limit) => format!("≤ {}", number(limit)),
        Goal::AtLeast(limit) => format!("≥ {}", number(limit)),
    }
}

/// Formats a verdict.
pub(crate) fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Reached => "reached".to_owned(),
        Verdict::Missed => "MISSED".to_owned(),
        Verdict::None(why) => format!("no verdict: {why}"),
        Verdict::NoGoal => String::new(),
    }
}

fn figures(figures: &[Figure]) -> String {
    let width = figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
    figures.iter().map(|figure| line(figure, width)).collect()
}

fn line(figure: &Figure, width: usize) -> String {
    let value = with_spread(figure.value, figure.spread);
    let mut line = format!("  {:<width$}  {value:>20} {:<15}", figure.name, figure.unit);
    if let Some(asked) = figure.goal {
        line += &format!("goal {:<11} {}", goal(asked), verdict(&figure.verdict));
    }
    let mut lines = line.trim_end().to_owned() + "\n";
    if !figure.note.is_empty() {
        lines += &format!("      {}\n", figure.note);
    }
    lines
}

fn table(table: &Table) -> String {
    let cells = || std::iter::once(&table.columns).chain(&table.rows);
    let width = |column: usize| {
        cells().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let mut text = if table.title.is_empty() { String::new() } else { format!("  {}\n", table.title) };
    for row in cells() {
        let mut line = String::from("   ");
        for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            line += &if at == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_is_printed_with_verdict_and_note() {
        let figure = Figure::new("a", 310.0, 2.0, "ns").goal(Goal::AtMost(300.0)).note("why");
        let text = figures(&[figure]);
        assert!(text.contains("goal ≤ 300.0") && text.contains("MISSED\n      why\n"), "{text}");
    }

    #[test]
    fn columns_are_aligned() {
        let mut shown = Table::new("t", &["key", "n"]);
        shown.row(["µs", "12"]);
        shown.row(["longer", "3"]);
        assert_eq!(table(&shown), "  t\n    key      n\n    µs      12\n    longer   3\n");
    }
}
