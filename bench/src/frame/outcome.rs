//! Result of a benchmark, and its JSON file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::{Conditions, Figure};

/// Figures, tables and plots of a benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BenchReport {
    /// Method of the measurement, in sentences for the docs.
    pub(crate) how: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
    /// Notes for readers.
    pub(crate) notes: Vec<String>,
}

/// Table of formatted cells.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Bar chart of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Name of its file, for example `peers`.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Names of the groups of bars.
    pub(crate) groups: Vec<String>,
    pub(crate) series: Vec<Series>,
}

/// Bars of one colour: the index of the group and the value of each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Content of `target/bench/NAME.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) bench: String,
    pub(crate) machine: Machine,
    pub(crate) conditions: Conditions,
    #[serde(flatten)]
    pub(crate) report: BenchReport,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row. A tool's output may have several lines; a cell has one.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(|cell| cell.into().trim().replace('\n', " / ")).collect());
    }
}

impl Outcome {
    pub(crate) fn new(bench: &str, conditions: Conditions, mut report: BenchReport) -> Outcome {
        let invalid_reason = conditions.invalid_reason();
        let figures = std::mem::take(&mut report.figures).into_iter();
        report.figures = figures.map(|figure| figure.invalidated(invalid_reason.as_deref())).collect();
        Outcome { bench: bench.to_owned(), machine: Machine::this(), conditions, report }
    }

    /// Writes `FOLDER/NAME.json` and returns its path.
    pub(crate) fn write(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(format!("{}.json", self.bench));
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn read(path: &Path) -> Result<Outcome> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is of another version: measure again", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Goal;
    use crate::frame::figure::Verdict;

    #[test]
    fn written_outcome_is_read_back_with_its_invalid_reason() {
        let folder = tempfile::tempdir().unwrap();
        let figure = Figure::new("a", 1.0, f64::NAN, "ns").goal(Goal::AtMost(2.0));
        let report = BenchReport { figures: vec![figure], ..BenchReport::default() };
        let conditions = Conditions { steal: 50.0, ..Conditions::default() };
        let path = Outcome::new("x", conditions, report).write(folder.path()).unwrap();
        let figure = Outcome::read(&path).unwrap().report.figures.remove(0);
        assert!(matches!(figure.verdict, Verdict::None(why) if why.contains("50.0 %")));
        assert!(figure.spread.is_nan());
    }
}
