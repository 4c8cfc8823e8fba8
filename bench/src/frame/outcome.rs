//! What a bench found, and the file that keeps it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::{Conditions, Figure};

/// What a bench found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// How it was measured, for the docs: sentences.
    pub(crate) how: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
    /// What a reader must know besides.
    pub(crate) notes: Vec<String>,
}

/// Rows as they came out, already in words.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// What a person would rather look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Of its file: `memory-open`.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) shape: Shape,
    pub(crate) series: Vec<Series>,
}

/// How it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    /// Points joined by lines; both axes by powers of ten.
    LogLines,
    /// Points joined by lines; y begins at 0.
    Lines,
    /// For each of these names a group of bars, one a series; `points` hold the name's index and the value.
    Bars(Vec<String>),
}

/// One line or one colour of bars.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What `target/bench/NAME.json` holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) bench: String,
    pub(crate) machine: Machine,
    pub(crate) conditions: Conditions,
    #[serde(flatten)]
    pub(crate) found: Found,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// What a tool said may have lines; a row is one.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(|cell| cell.into().trim().replace('\n', " / ")).collect());
    }
}

impl Outcome {
    pub(crate) fn new(bench: &str, conditions: Conditions, mut found: Found) -> Outcome {
        let doubt = conditions.doubt();
        let figures = std::mem::take(&mut found.figures).into_iter();
        found.figures = figures.map(|figure| figure.doubted(doubt.as_deref())).collect();
        Outcome { bench: bench.to_owned(), machine: Machine::this(), conditions, found }
    }

    /// Writes `FOLDER/NAME.json`; where it is.
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
    fn what_is_written_is_read_again_and_doubt_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let figure = Figure::new("a", 1.0, f64::NAN, "ns").goal(Goal::AtMost(2.0));
        let found = Found { figures: vec![figure], ..Found::default() };
        let conditions = Conditions { steal: 50.0, ..Conditions::default() };
        let path = Outcome::new("x", conditions, found).write(folder.path()).unwrap();
        let figure = Outcome::read(&path).unwrap().found.figures.remove(0);
        assert!(matches!(figure.verdict, Verdict::None(why) if why.contains("50.0 %")));
        assert!(figure.spread.is_nan());
    }
}
