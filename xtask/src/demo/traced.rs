//! What the demos share: a traced run on a disk of its own, and, of those that end in Zipkin, its start, the programs that lie beside
//! blkkin, a file that is read from the disk, and where to look.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

use super::story::{self, Line, say};
use super::{Disk, look};
use crate::interrupt;
use crate::servers::Zipkin;
use crate::shell;
use crate::workspace::Workspace;

/// Runs `command`, which is `blkkin run` with a program that works on `disk`, and takes the disk down.
pub(super) fn run(command: &mut Command, disk: Disk) -> Result<ExitStatus> {
    if interrupt::came() {
        bail!("interrupted before the traced run; nothing is left behind");
    }
    // Cargo's, for build scripts: the traced program would look for its libraries there first.
    let status = command.env_remove("LD_LIBRARY_PATH").status();
    let status = status.with_context(|| format!("cannot start {}", command.get_program().display()))?;
    disk.remove()?;
    Ok(status)
}

pub(super) fn succeeded(status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("the traced run failed ({status})");
    }
    Ok(())
}

/// Its folder, made where it is missing, and a Zipkin that answers.
pub(super) fn zipkin(workspace: &Workspace, name: &str) -> Result<(PathBuf, Zipkin)> {
    let folder = workspace.demo_dir().join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    story::heading("what runs");
    let mut zipkin = Zipkin::start(workspace, &folder)?;
    zipkin.wait()?;
    Line { name: "zipkin", what: &zipkin.url(), pid: zipkin.pid() }.say();
    Ok((folder, zipkin))
}

/// The program `name`, which is built beside blkkin by `cargo build` with `words`.
pub(super) fn beside(blkkin: &Path, name: &str, words: &str) -> Result<PathBuf> {
    let blkkin = blkkin.canonicalize().with_context(|| format!("no {}", blkkin.display()))?;
    let program = blkkin.with_file_name(name);
    if !program.is_file() {
        bail!("{} is not there: cargo build --release {words}", program.display());
    }
    Ok(program)
}

/// A file that is on the disk and not in memory, so that what is read of it is read there.
pub(super) fn cold_file(path: &Path, bytes: usize) -> Result<()> {
    fs::write(path, vec![0xb1; bytes]).with_context(|| format!("cannot make {}", path.display()))?;
    shell::run_quietly(Command::new("sync").arg(path))?;
    let from = format!("if={}", path.display());
    shell::run_quietly(Command::new("dd").args([&from, "iflag=nocache", "count=0", "status=none"]))
}

/// Shows where `trace`, which is `what`, is to be seen, until whoever runs the demo has seen it; then all goes.
pub(super) fn show(zipkin: Zipkin, trace: &str, what: &str, folder: &Path) -> Result<()> {
    say(&format!("  {what}, layer by layer"));
    say(&format!("    {}", look::trace_page(&zipkin, trace)));
    say("  who asks whom");
    say(&format!("    {}", look::dependency_page(&zipkin)));
    story::stay();
    drop(zipkin);
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}
