//! What an earlier run found, as ratios: `bench/reference.json`.
//!
//! A ratio of two things that ran in turns on one machine says something on another machine too; a time does not, so
//! no time is kept. A difference is shown only where it is larger than both spreads together.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::figure::Ratio;
use super::number::number;
use super::outcome::Outcome;

/// By bench, by figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reference(BTreeMap<String, BTreeMap<String, Ratio>>);

impl Reference {
    /// None is kept yet: then it is empty.
    pub(crate) fn read(path: &Path) -> Result<Reference> {
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{} cannot be understood", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Reference::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Puts this run in the place of that bench's earlier one.
    pub(crate) fn keep(&mut self, outcome: &Outcome, path: &Path) -> Result<()> {
        self.take(outcome);
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A line for each figure of both.
    pub(crate) fn compare(&self, outcome: &Outcome) -> Vec<String> {
        let Some(before) = self.0.get(&outcome.bench) else { return Vec::new() };
        let figures = outcome.found.figures.iter();
        figures
            .filter_map(|figure| Some(line(&figure.name, &figure.ratio?, before.get(&figure.name)?)))
            .collect()
    }

    fn take(&mut self, outcome: &Outcome) {
        let ratios = outcome.found.figures.iter().filter_map(|figure| {
            let Ratio { value, spread } = figure.ratio?;
            // Four digits: what is beyond is noise, and would change in every commit.
            let rounded = |value: f64| (value * 1e4).round() / 1e4;
            Some((figure.name.clone(), Ratio { value: rounded(value), spread: rounded(spread) }))
        });
        self.0.insert(outcome.bench.clone(), ratios.collect());
    }
}

fn line(name: &str, now: &Ratio, before: &Ratio) -> String {
    let difference = now.value - before.value;
    let known = difference.abs() > now.spread + before.spread;
    let verdict = match known {
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
    use crate::frame::{Conditions, Figure, Found, Rounds};

    fn outcome(ratios: &[f64]) -> Outcome {
        let rounds: Rounds = ratios.iter().copied().collect();
        let figures = vec![Figure::new("a", 1.0, 0.0, "ns").ratio(&rounds), Figure::new("b", 1.0, 0.0, "ns")];
        Outcome::new("x", Conditions::default(), Found { figures, ..Found::default() })
    }

    #[test]
    fn only_ratios_are_kept_and_compared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reference.json");
        let mut reference = Reference::read(&path).unwrap();
        assert!(reference.compare(&outcome(&[1.5])).is_empty());
        reference.keep(&outcome(&[1.4, 1.5, 1.6]), &path).unwrap();
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
