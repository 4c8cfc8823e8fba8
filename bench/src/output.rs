//! The table and the JSON file of a bench.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::affinity;
use crate::figure::{Figure, Goal, Verdict};

/// What the file holds.
#[derive(Serialize)]
struct Outcome<'a> {
    bench: &'a str,
    kernel: String,
    processor: String,
    cpus: usize,
    figures: &'a [Figure],
}

/// Prints the figures and writes `FOLDER/NAME.json`.
pub(crate) fn show(name: &str, figures: &[Figure], folder: &Path) -> Result<()> {
    let outcome =
        Outcome { bench: name, kernel: kernel(), processor: processor(), cpus: affinity::online(), figures };
    println!("{name}: Linux {}, {} × {}", outcome.kernel, outcome.cpus, outcome.processor);
    print!("{}", table(figures));
    let path = folder.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(&outcome)?;
    std::fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

fn table(figures: &[Figure]) -> String {
    let width = figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
    figures.iter().map(|figure| line(figure, width)).collect()
}

fn line(figure: &Figure, width: usize) -> String {
    let mut line = format!(
        "  {:<width$}  {:>12} ± {:<8} {:<12}",
        figure.name,
        number(figure.value),
        number(figure.spread),
        figure.unit
    );
    line += &match figure.goal {
        Some(Goal::AtMost(limit)) => format!("goal ≤ {:<9} {}", number(limit), verdict(figure.verdict)),
        Some(Goal::AtLeast(limit)) => format!("goal ≥ {:<9} {}", number(limit), verdict(figure.verdict)),
        None => String::new(),
    };
    let mut lines = line.trim_end().to_owned() + "\n";
    if !figure.note.is_empty() {
        lines += &format!("      {}\n", figure.note);
    }
    lines
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reached => "reached",
        Verdict::Missed => "MISSED",
        Verdict::None => "no verdict: the spread is larger than the distance",
        Verdict::NotAsked => "",
    }
}

/// With as many digits as help: 0.123, 12.3, 1234, 1,234,567.
fn number(value: f64) -> String {
    match value.abs() {
        size if size < 1e-9 => "0".to_owned(),
        size if size < 10.0 => format!("{value:.3}"),
        size if size < 1000.0 => format!("{value:.1}"),
        _ => grouped(value.round() as i64),
    }
}

fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_help() {
        let numbers = [0.0, 0.1234, 12.34, 999.96, 1234.5, -1_234_567.0].map(number);
        assert_eq!(numbers, ["0", "0.123", "12.3", "1000.0", "1,235", "-1,234,567"]);
    }

    #[test]
    fn a_goal_is_shown_with_its_verdict_and_a_note_below() {
        let figure = Figure::new("a", 310.0, 2.0, "ns").goal(Goal::AtMost(300.0)).note("why");
        let text = table(&[figure]);
        assert!(text.contains("goal ≤ 300.0") && text.contains("MISSED\n      why\n"), "{text}");
    }
}
