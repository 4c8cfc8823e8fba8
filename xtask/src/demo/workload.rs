//! Traced workload: a table of orders in SQLite, written durably and read back from the disk.
//!
//! The workload is deterministic: no random numbers and no time in the data. Between writes and
//! reads, dd's `nocache` (posix_fadvise) drops the database from the page cache, so that the reads
//! reach the disk. SQLite's cache is per process, and a new process reads.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Number of insert transactions; rollback journal, data and deletion of each are made durable.
const INSERTS: u32 = 200;
/// Number of look-ups of one row each.
const READS: u32 = 200;
/// Number of rows inserted before the trace starts, so that reads spread over 8 MB.
const ROWS_BEFORE: u32 = 2000;
/// Step between rows that read-ahead cannot predict; coprime to `ROWS_BEFORE`.
const READ_STRIDE: u32 = 797;

pub(crate) struct Workload {
    script: PathBuf,
}

impl Workload {
    pub(crate) const DESCRIPTION: &str = "sqlite3 makes 200 durable inserts, one transaction each, and a second sqlite3 reads 200 rows from the disk";

    /// Writes the scripts into `folder` and makes the database on the disk mounted at `disk`.
    pub(crate) fn prepare(folder: &Path, disk: &Path) -> Result<Self> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display())).map(|()| path)
        };
        let database = disk.join("orders.db");
        let inserts = write("inserts.sql", &inserts())?;
        let reads = write("reads.sql", &reads())?;
        let script = write("workload.sh", &script(&database, &inserts, &reads))?;
        shell::run_quietly(Command::new("sqlite3").arg(&database).arg(rows_before()))
            .context("cannot make the database")?;
        Ok(Self { script })
    }

    pub(crate) fn script(&self) -> &Path {
        &self.script
    }
}

fn rows_before() -> String {
    format!(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, note BLOB);\n\
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS_BEFORE})\n\
         INSERT INTO orders SELECT i, 'item ' || i, zeroblob(3500) FROM n;\n"
    )
}

fn inserts() -> String {
    let statements = (1..=INSERTS).map(|number| {
        format!("INSERT INTO orders (item, note) VALUES ('traced item {number}', zeroblob(500));\n")
    });
    "PRAGMA synchronous = FULL;\n".to_owned() + &statements.collect::<String>()
}

/// Writes the read statements. Only one line is printed, which shows that the inserts exist.
fn reads() -> String {
    let mut text = ".output /dev/null\nPRAGMA mmap_size = 0;\n".to_owned();
    for read in 1..=READS {
        let id = read * READ_STRIDE % ROWS_BEFORE + 1;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "SELECT item, length(note) FROM orders WHERE id = {id};");
    }
    text + ".output stdout\nSELECT 'last order: ' || item FROM orders WHERE id = (SELECT max(id) FROM orders);\n"
}

fn script(database: &Path, inserts: &Path, reads: &Path) -> String {
    format!(
        "set -e\n\
         sqlite3 '{database}' < '{inserts}'\n\
         dd if='{database}' iflag=nocache count=0 status=none\n\
         sqlite3 '{database}' < '{reads}'\n",
        database = database.display(),
        inserts = inserts.display(),
        reads = reads.display()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_read_has_another_id() {
        let ids: BTreeSet<u32> = (1..=READS).map(|read| read * READ_STRIDE % ROWS_BEFORE + 1).collect();
        assert_eq!(ids.len(), READS as usize);
        assert!(ids.iter().all(|id| (1..=ROWS_BEFORE).contains(id)));
    }

    #[test]
    fn description_matches_scripts() {
        assert!(Workload::DESCRIPTION.contains(&format!("{INSERTS} durable inserts")));
        assert!(Workload::DESCRIPTION.contains(&format!("{READS} rows")));
        assert_eq!(inserts().matches("INSERT").count(), INSERTS as usize);
    }
}
