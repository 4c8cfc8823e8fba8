//! A program that writes and does not sync: the kernel writes its data back later.
//!
//! *In*: blkkin and a mounted disk. *Out*: two tables of the report: which program wrote what the
//! kernel's workers wrote back, and the share of the disk's own count that is explained.
//!
//! *Rejected*: waiting for the kernel's own write-back. It comes half a minute later; one `sync`
//! from outside the traced command has the same effect.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::output::print_line;
use crate::shell;

/// Time between the start of blkkin and `sync`; blkkin starts in some 0.6 s, and dd needs 10 ms.
const BEFORE_SYNC: Duration = Duration::from_secs(3);

/// Tables of the report that are printed.
const TABLES: [&str; 2] = ["written by", "explained"];

/// Traces dd, which writes 4 MiB through the page cache and exits, until the data are on the disk.
pub(super) fn run(blkkin: &Path, disk: &Path) -> Result<()> {
    let file = disk.join("buffered");
    print_line("demo: dd writes 4 MiB and does not sync; 3 s later another program runs sync");
    let of = format!("of={}", file.display());
    let report = trace(
        Command::new(blkkin).args(["run", "--show", "writers,explained"]),
        &["dd", "if=/dev/zero", "bs=64k", "count=64", "status=none", &of],
        disk,
    )?;
    for name in TABLES {
        print_line("");
        table(&report, name).with_context(|| format!("no table `{name}`:\n{report}"))?.for_each(print_line);
    }
    print_line("");
    Ok(())
}

/// Traces `writer`, which writes to the disk without a sync, with `run`, until the data are on the disk: a
/// sync follows after [`BEFORE_SYNC`]. Returns the report.
pub(crate) fn trace(run: &mut Command, writer: &[&str], disk: &Path) -> Result<String> {
    run.args(["--await-writeback", "60s", "--"]).args(writer);
    let child = run.stdin(Stdio::null()).stderr(Stdio::piped()).env_remove("LD_LIBRARY_PATH").spawn();
    let child = child.with_context(|| format!("cannot start {}", run.get_program().display()))?;
    std::thread::sleep(BEFORE_SYNC);
    let synced = shell::run_quietly(Command::new("sync").arg("--file-system").arg(disk));
    let output = child.wait_with_output().context("cannot read the report")?;
    synced?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("the traced run failed ({}):\n{report}", output.status);
    }
    Ok(report)
}

/// Returns the lines of a table: from its title to the next empty line.
fn table<'a>(report: &'a str, name: &str) -> Option<impl Iterator<Item = &'a str>> {
    let first = report.lines().position(|line| line.starts_with(name))?;
    Some(report.lines().skip(first).take_while(|line| !line.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_at_an_empty_line() {
        let report = "calls  x\n  read\n\nwritten by  y\n  file\n  /a\n\nlost: nothing\n";
        let found: Option<Vec<_>> = table(report, "written by").map(Iterator::collect);
        assert_eq!(found, Some(vec!["written by  y", "  file", "  /a"]));
        assert!(table(report, "explained").is_none());
    }
}
