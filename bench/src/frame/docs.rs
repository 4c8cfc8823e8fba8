//! Results as Markdown, for the terminal and the pages of docs/performance/.
//!
//! *In*: `target/bench/*.json`. *Out*: a page for each, and its chart as SVG next to it. No figure
//! in these pages is typed by hand. docs/performance.md, which people write, quotes them, and a
//! test compares the two.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::figure::{Figure, Goal, Verdict};
use super::number::{number, with_spread};
use super::outcome::{Outcome, Table};
use super::svg;

/// Writes a page into `pages` for each of the benchmarks `names` that has a result in `folder`, and
/// returns the names of the written ones.
pub(crate) fn write<'a>(
    names: impl Iterator<Item = &'a str>,
    folder: &Path,
    pages: &Path,
) -> Result<Vec<&'a str>> {
    let mut written = Vec::new();
    std::fs::create_dir_all(pages).with_context(|| format!("cannot make {}", pages.display()))?;
    for name in names {
        let path = folder.join(format!("{name}.json"));
        if !path.exists() {
            continue;
        }
        let outcome = Outcome::read(&path)?;
        if outcome.conditions.quick {
            bail!("{} is of a quick run: that is no measurement", path.display());
        }
        if outcome.machine.commit.ends_with("-dirty") {
            bail!("{} is of a modified checkout, which cannot be built again", path.display());
        }
        let page = format!(
            "# `cargo xtask bench {name}`\n\n<!-- Written by `cargo xtask bench docs`: do not edit. -->\n\n{}",
            section(&outcome)
        );
        put(&pages.join(format!("{name}.md")), &page)?;
        for plot in &outcome.report.plots {
            put(&pages.join(format!("{}.svg", plot.name)), &svg::draw(plot))?;
        }
        written.push(name);
    }
    Ok(written)
}

fn put(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Formats the whole result.
pub(crate) fn section(outcome: &Outcome) -> String {
    let report = &outcome.report;
    let mut text = format!("{}\n\n", report.how);
    if !report.figures.is_empty() {
        text += &figures(&report.figures);
    }
    text.extend(report.tables.iter().map(table));
    for plot in &report.plots {
        text += &format!("![{}]({}.svg)\n\n", plot.title, plot.name);
    }
    text.extend(report.notes.iter().map(|note| format!("- {note}\n")));
    if !report.notes.is_empty() {
        text.push('\n');
    }
    text + &format!("*{}; {}.*\n", outcome.machine.summary(), outcome.conditions.summary())
}

fn figures(figures: &[Figure]) -> String {
    let mut shown = Table::new("", &["what", "measured", "goal", "verdict", ""]);
    for figure in figures {
        let value = format!("{} {}", with_spread(figure.value, figure.spread), figure.unit);
        let asked = figure.goal.map(goal).unwrap_or_default();
        shown.row([figure.name.trim(), value.trim(), &asked, &verdict(&figure.verdict), &figure.note]);
    }
    table(&shown)
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::AtMost(limit) => format!("≤ {}", number(limit)),
        Goal::AtLeast(limit) => format!("≥ {}", number(limit)),
    }
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Reached => "reached".to_owned(),
        Verdict::Missed => "MISSED".to_owned(),
        Verdict::None(why) => format!("no verdict: {why}"),
        Verdict::NoGoal => String::new(),
    }
}

fn table(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> =
            cells.iter().map(|cell| cell.replace('|', "\\|").replace('<', "&lt;")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = if table.title.is_empty() { String::new() } else { format!("**{}**\n\n", table.title) };
    text += &line(&table.columns);
    text += &format!("|{}\n", "---|".repeat(table.columns.len()));
    text.extend(table.rows.iter().map(|row| line(row)));
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{BenchReport, Conditions};

    fn outcome(conditions: Conditions) -> Outcome {
        let figures = vec![Figure::new("lseek | traced", 260.0, 8.0, "ns")];
        Outcome::new(
            "call",
            conditions,
            BenchReport { how: "By a loop.".into(), figures, ..BenchReport::default() },
        )
    }

    #[test]
    fn only_measured_benchmarks_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("performance");
        let mut measured = outcome(Conditions::default());
        measured.machine.commit = "c187588".to_owned();
        measured.write(folder.path()).unwrap();
        assert_eq!(write(["call", "gone"].into_iter(), folder.path(), &pages).unwrap(), ["call"]);
        let text = std::fs::read_to_string(pages.join("call.md")).unwrap();
        assert!(text.starts_with("# `cargo xtask bench call`\n") && text.contains("By a loop."), "{text}");
        assert!(text.contains("| lseek \\| traced | 260.0 ± 8.00 ns |"), "{text}");
        // A second write gives the same page, and one without a result stays as it is.
        std::fs::write(pages.join("gone.md"), "old").unwrap();
        write(["call", "gone"].into_iter(), folder.path(), &pages).unwrap();
        assert_eq!(std::fs::read_to_string(pages.join("call.md")).unwrap(), text);
        assert_eq!(std::fs::read_to_string(pages.join("gone.md")).unwrap(), "old");
    }

    #[test]
    fn goal_is_shown_with_its_verdict_and_note() {
        let figure = Figure::new("a", 310.0, 2.0, "ns").goal(Goal::AtMost(300.0)).note("why");
        let text = figures(&[figure]);
        assert!(text.contains("| a | 310.0 ± 2.00 ns | ≤ 300.0 | MISSED | why |"), "{text}");
    }

    #[test]
    fn quick_run_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        outcome(Conditions { quick: true, ..Conditions::default() }).write(folder.path()).unwrap();
        let error = write(["call"].into_iter(), folder.path(), folder.path()).unwrap_err();
        assert!(error.to_string().contains("quick run"));
    }

    #[test]
    fn result_of_a_modified_checkout_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let mut measured = outcome(Conditions::default());
        measured.machine.commit = "c187588-dirty".to_owned();
        measured.write(folder.path()).unwrap();
        let error = write(["call"].into_iter(), folder.path(), folder.path()).unwrap_err();
        assert!(error.to_string().contains("modified checkout"), "{error}");
    }
}
