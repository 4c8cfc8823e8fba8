//! Generated sections of docs/performance.md, so that no figure there is typed by hand.
//!
//! *In*: `target/bench/*.json`, and the page with the lines `<!-- bench NAME -->` and `<!-- end
//! NAME -->` for a benchmark. *Out*: the page with new text between them, and each plot as
//! `docs/bench/PLOT.svg`. Text outside the marks is written by people. A section without a JSON
//! file stays unchanged.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::figure::Figure;
use super::number::with_spread;
use super::outcome::{Outcome, Table};
use super::print::{goal, verdict};
use super::svg;

/// Writes the results in `folder` into `page` and returns the names of the updated sections.
pub(crate) fn write(folder: &Path, page: &Path) -> Result<Vec<String>> {
    let mut text =
        std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let pictures = page.with_file_name("bench");
    let mut written = Vec::new();
    for name in marked(&text) {
        let path = folder.join(format!("{name}.json"));
        if !path.exists() {
            continue;
        }
        let outcome = Outcome::read(&path)?;
        if outcome.conditions.quick {
            bail!("{} is of a quick run: that is no measurement", path.display());
        }
        std::fs::create_dir_all(&pictures)?;
        for plot in &outcome.report.plots {
            let path = pictures.join(format!("{}.svg", plot.name));
            std::fs::write(&path, svg::draw(plot))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        text = replaced(&text, &name, &section(&outcome))?;
        written.push(name);
    }
    std::fs::write(page, text).with_context(|| format!("cannot write {}", page.display()))?;
    Ok(written)
}

/// Lists the benchmarks with marks, in order.
fn marked(page: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim().strip_prefix("<!-- bench ")?.strip_suffix(" -->")?.to_owned());
    page.lines().filter_map(name).collect()
}

fn replaced(page: &str, name: &str, section: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- bench {name} -->\n"), format!("<!-- end {name} -->"));
    let from = page.find(&begin).with_context(|| format!("no line {begin}"))? + begin.len();
    let to = from + page[from..].find(&end).with_context(|| format!("no line {end} behind its begin"))?;
    Ok(format!("{}{section}{}", &page[..from], &page[to..]))
}

fn section(outcome: &Outcome) -> String {
    let report = &outcome.report;
    let mut text = format!("{}\n\n", report.how);
    if !report.figures.is_empty() {
        text += &figures(&report.figures);
    }
    text.extend(report.tables.iter().map(table));
    for plot in &report.plots {
        text += &format!("![{}](bench/{}.svg)\n\n", plot.title, plot.name);
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

fn table(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
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

    const PAGE: &str = "# Costs\n\n## Calls\n<!-- bench call -->\nold\n<!-- end call -->\nwhy\n<!-- bench gone -->\nkept\n<!-- end gone -->\n";

    fn outcome(conditions: Conditions) -> Outcome {
        let figures = vec![Figure::new("lseek | traced", 260.0, 8.0, "ns")];
        Outcome::new(
            "call",
            conditions,
            BenchReport { how: "By a loop.".into(), figures, ..BenchReport::default() },
        )
    }

    #[test]
    fn only_text_between_marks_changes() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("performance.md");
        std::fs::write(&page, PAGE).unwrap();
        outcome(Conditions::default()).write(folder.path()).unwrap();
        assert_eq!(write(folder.path(), &page).unwrap(), ["call"]);
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("# Costs\n\n## Calls\n<!-- bench call -->\nBy a loop.\n"), "{text}");
        assert!(text.contains("| lseek \\| traced | 260.0 ± 8.00 ns |"), "{text}");
        assert!(
            text.ends_with("<!-- end call -->\nwhy\n<!-- bench gone -->\nkept\n<!-- end gone -->\n"),
            "{text}"
        );
        assert_eq!(write(folder.path(), &page).unwrap(), ["call"], "and again, from its own text");
        assert_eq!(text, std::fs::read_to_string(&page).unwrap());
    }

    #[test]
    fn quick_run_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("performance.md");
        std::fs::write(&page, PAGE).unwrap();
        outcome(Conditions { quick: true, ..Conditions::default() }).write(folder.path()).unwrap();
        assert!(write(folder.path(), &page).unwrap_err().to_string().contains("quick run"));
    }
}
