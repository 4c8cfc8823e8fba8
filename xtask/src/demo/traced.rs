//! Shared parts of the scenarios: a traced run on a separate disk, the start of Zipkin, the
//! programs next to blkkin, a file outside the page cache, and the links into Zipkin.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

use super::output::{self, ProcessLine, print_line};
use super::{Disk, zipkin_pages};
use crate::interrupt;
use crate::servers::Zipkin;
use crate::shell;
use crate::workspace::Workspace;

/// Runs `command`, a `blkkin run` whose program works on `disk`, and removes the disk.
pub(super) fn run(command: &mut Command, disk: Disk) -> Result<ExitStatus> {
    if interrupt::received() {
        bail!("interrupted before the traced run; nothing remains on this machine");
    }
    // Cargo sets this variable for build scripts; the traced program would search its libraries
    // there first.
    let status = command.env_remove("LD_LIBRARY_PATH").status();
    let status = status.with_context(|| format!("cannot start {}", command.get_program().display()))?;
    disk.remove()?;
    Ok(status)
}

pub(super) fn require_success(status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("the traced run failed ({status})");
    }
    Ok(())
}

/// Makes the scenario's folder and starts a Zipkin, and waits until it responds.
pub(super) fn zipkin(workspace: &Workspace, name: &str) -> Result<(PathBuf, Zipkin)> {
    let folder = workspace.demo_dir().join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    output::heading("what runs");
    let mut zipkin = Zipkin::start(workspace, &folder)?;
    zipkin.wait()?;
    ProcessLine { name: "zipkin", what: &zipkin.url(), pid: zipkin.pid() }.print();
    Ok((folder, zipkin))
}

/// Returns the path of the program `name`, which `cargo build` with `words` puts next to blkkin.
pub(super) fn sibling_program(blkkin: &Path, name: &str, words: &str) -> Result<PathBuf> {
    let blkkin = blkkin.canonicalize().with_context(|| format!("no {}", blkkin.display()))?;
    let program = blkkin.with_file_name(name);
    if !program.is_file() {
        bail!("{} does not exist: run cargo build --release {words}", program.display());
    }
    Ok(program)
}

/// Writes a file and drops it from the page cache, so that reads reach the disk.
pub(super) fn cold_file(path: &Path, bytes: usize) -> Result<()> {
    fs::write(path, vec![0xb1; bytes]).with_context(|| format!("cannot make {}", path.display()))?;
    shell::run_quietly(Command::new("sync").arg(path))?;
    let from = format!("if={}", path.display());
    shell::run_quietly(Command::new("dd").args([&from, "iflag=nocache", "count=0", "status=none"]))
}

/// Prints links to `trace`, described as `what`, waits for the user, then removes the folder.
pub(super) fn show_in_zipkin(zipkin: Zipkin, trace: &str, what: &str, folder: &Path) -> Result<()> {
    print_line(&format!("  {what}, layer by layer"));
    print_line(&format!("    {}", zipkin_pages::trace_page(&zipkin, trace)));
    print_line("  dependencies between services");
    print_line(&format!("    {}", zipkin_pages::dependency_page(&zipkin)));
    output::wait_for_interrupt();
    drop(zipkin);
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}
