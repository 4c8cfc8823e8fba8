//! Prometheus server and promtool, for the tests of scraping and alert rules.
//!
//! They are unpacked from the distribution's package and not installed, because the installation
//! would start a server that listens on every address of the machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::debian;
use crate::packages::apt_with_fresh_lists;
use crate::shell;
use crate::workspace::Workspace;

pub(super) const PLAN: &str = "Prometheus, unpacked from the distribution's package below target/toolchain (100 MB): must scrape blkkin's services";

/// Programs of the package that are kept.
const PROGRAMS: [&str; 2] = ["prometheus", "promtool"];

/// Returns the folder of the programs. Tests receive it in the variable BLKKIN_PROMETHEUS.
pub(crate) fn prometheus(workspace: &Workspace) -> PathBuf {
    let installed = PROGRAMS.map(shell::which).into_iter().collect::<Option<Vec<_>>>();
    let folder = installed.and_then(|programs| Some(programs.first()?.parent()?.to_owned()));
    folder.unwrap_or_else(|| unpacked(workspace))
}

fn unpacked(workspace: &Workspace) -> PathBuf {
    workspace.toolchain_dir().join("prometheus")
}

/// Returns the folder to unpack to, if the programs are missing.
pub(super) fn missing(workspace: &Workspace) -> Option<PathBuf> {
    let folder = prometheus(workspace);
    let is_there = PROGRAMS.iter().all(|program| folder.join(program).is_file());
    (!is_there).then(|| unpacked(workspace))
}

/// Unpacks under another name and renames the folder, so that it is always complete.
pub(super) fn fetch(folder: &Path) -> Result<()> {
    if shell::which("apt-get").is_none() {
        bail!("no apt on this machine: install prometheus with its package manager");
    }
    let partial = folder.with_extension("partial");
    let package = ["prometheus".to_owned()];
    apt_with_fresh_lists(|| debian::download(&package, &partial.join("packages")))?;
    debian::unpack(&partial)?;
    for program in PROGRAMS {
        let unpacked_program = partial.join("usr/bin").join(program);
        fs::rename(&unpacked_program, partial.join(program))
            .with_context(|| format!("no {}", unpacked_program.display()))?;
    }
    for rest in ["packages", "usr", "etc", "lib", "var"] {
        debian::remove(&partial.join(rest))?;
    }
    debian::remove(folder)?;
    fs::rename(&partial, folder).with_context(|| format!("cannot rename {}", partial.display()))
}
