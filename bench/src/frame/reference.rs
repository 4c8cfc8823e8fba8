//! Results of an earlier run, as ratios: `bench/reference.json`.
//!
//! Ratios of alternating runs on one machine are comparable with another machine; times are not, so
//! no times are saved. A difference is shown only if it is larger than the sum of both spreads.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::figure::Ratio;
use super::number::number;
use super::outcome::Outcome;

/// Ratios by benchmark and figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reference(BTreeMap<String, BTreeMap<String, Ratio>>);

impl Reference {
    /// Reads the file; empty if it does not exist.
    pub(crate) fn read(path: &Path) -> Result<Reference> {
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{} cannot be understood", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Reference::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Replaces the earlier run of the same benchmark and writes the file.
    pub(crate) fn save(&mut self, outcome: &Outcome, path: &Path) -> Result<()> {
        self.insert(outcome);
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Formats a line for each figure that both runs have.
    pub(crate) fn compare(&self, outcome: &Outcome) -> Vec<String> {
        let Some(before) = self.0.get(&outcome.bench) else { return Vec::new() };
        let figures = outcome.report.figures.iter();
        figures
            .filter_map(|figure| Some(line(&figure.name, &figure.ratio?, before.get(&figure.name)?)))
            .collect()
    }

    fn insert(&mut self, outcome: &Outcome) {
        let ratios = outcome.report.figures.iter().filter_map(|figure| {
            let Ratio { value, spread } = figure.ratio?;
            // Four digits: the others are noise and would change in every commit.
            let rounded = |value: f64| (value * 1e4).round() / 1e4;
            Some((figure.name.clone(), Ratio { value: rounded(value), spread: rounded(spread) }))
        });
        self.0.insert(outcome.bench.clone(), ratios.collect());
    }
}

fn line(name: &str, now: &Ratio, before: &Ratio) -> String {
    let difference = now.value - before.value;
    let is_significant = difference.abs() > now.spread + before.spread;
    let verdict = match is_significant {
        true => format!("{:+.1} %", 100.0 * difference / before.value),
        false => "the same within the spread".to_owned(),
    };
    format!(
        "{name}: ratio {} (± {}), reference {}: {verdict}",
        ratio(now.value),
        ratio(now.spread),
        ratio(before.value)
    )
}

fn ratio(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.3}") } else { number(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{BenchReport, Conditions, Figure, Rounds};

    fn outcome(ratios: &[f64]) -> Outcome {
        let rounds: Rounds = ratios.iter().copied().collect();
        let figures = vec![Figure::new("a", 1.0, 0.0, "ns").ratio(&rounds), Figure::new("b", 1.0, 0.0, "ns")];
        Outcome::new("x", Conditions::default(), BenchReport { figures, ..BenchReport::default() })
    }

    #[test]
    fn only_ratios_are_saved_and_compared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reference.json");
        let mut reference = Reference::read(&path).unwrap();
        assert!(reference.compare(&outcome(&[1.5])).is_empty());
        reference.save(&outcome(&[1.4, 1.5, 1.6]), &path).unwrap();
        let reference = Reference::read(&path).unwrap();
        assert_eq!(
            reference.compare(&outcome(&[1.55, 1.6, 1.65])),
            ["a: ratio 1.600 (± 0.050), reference 1.500: the same within the spread"]
        );
        assert_eq!(
            reference.compare(&outcome(&[1.8, 1.8, 1.8])),
            ["a: ratio 1.800 (± 0.000), reference 1.500: +20.0 %"]
        );
    }
}
