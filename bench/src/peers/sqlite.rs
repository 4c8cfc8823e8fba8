//! SQLite: inserts of one row, each its own transaction with a rollback journal and fsync, SQLite's
//! defaults.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::workload::{LoadResult, Workload};
use crate::disk::DiskTarget;

const SCRIPT: &str = include_str!("../../scripts/sqlite.py");

pub(crate) struct Sqlite {
    place: DiskTarget,
    seconds: f64,
    script: PathBuf,
}

impl Sqlite {
    /// Writes the script next to the database.
    pub(crate) fn new(place: DiskTarget, seconds: f64) -> Result<Sqlite> {
        let script = place.target.with_extension("py");
        std::fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
        Ok(Sqlite { place, seconds, script })
    }
}

impl Workload for Sqlite {
    fn name(&self) -> String {
        format!("SQLite inserts, {}", self.place.name)
    }

    fn short(&self) -> String {
        "SQLite".to_owned()
    }

    fn unit(&self) -> &'static str {
        "inserts/s"
    }

    fn place(&self) -> &DiskTarget {
        &self.place
    }

    fn comm(&self) -> &'static str {
        "python3"
    }

    fn prepare(&mut self) -> Result<()> {
        match std::fs::remove_file(&self.place.target) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("cannot remove the last database")
            }
            _ => Ok(()),
        }
    }

    fn command(&self, output: &Path) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        vec![
            "python3".to_owned(),
            path(&self.script),
            path(&self.place.target),
            self.seconds.to_string(),
            path(output),
        ]
    }

    fn result(&mut self, output: &Path) -> Result<LoadResult> {
        let text = std::fs::read(output).context("SQLite's load wrote no result")?;
        let json: Value = serde_json::from_slice(&text)?;
        let number = |name: &str| json[name].as_f64().with_context(|| format!("no {name}"));
        Ok(LoadResult { ops: number("ops")?, p99: number("p99")? })
    }
}
