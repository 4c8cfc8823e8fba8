//! Programs of the distribution: their purposes, package names per distribution, and the
//! installation of missing ones. `packages/packages.txt` lists them.
//!
//! A package counts as installed if its program is found, so a program that was built by hand is
//! accepted. Only apt is run; for other package managers the error contains the install command.

mod manager;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};

use crate::shell;
pub(crate) use manager::{Manager, distribution};

/// Purpose of a set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Build,
    /// Checks of all code, including the parts that need optional libraries.
    Lint,
    Demo,
    Tests,
    /// Demo with several nodes.
    Cluster,
    /// Demo with a storage daemon.
    Daemons,
    /// Screenshots in the documentation.
    Screenshots,
    /// Tests inside other kernels.
    Guests,
    /// Container image.
    Image,
    /// Load on loop devices, for benchmarks.
    Disks,
    /// Tools for comparison with blkkin, and the programs that they trace.
    Peers,
    /// Instruction counts.
    Count,
}

impl Purpose {
    const ALL: [Purpose; 12] = [
        Purpose::Build,
        Purpose::Lint,
        Purpose::Demo,
        Purpose::Tests,
        Purpose::Cluster,
        Purpose::Daemons,
        Purpose::Screenshots,
        Purpose::Guests,
        Purpose::Image,
        Purpose::Disks,
        Purpose::Peers,
        Purpose::Count,
    ];

    fn by_name(name: &str) -> Option<Purpose> {
        Purpose::ALL.into_iter().find(|purpose| format!("{purpose:?}") == name)
    }
}

/// Program that a task runs, and the packages that contain it.
pub(crate) struct Package {
    /// Name of the program, or the path of a file of a package without programs.
    program: &'static str,
    purposes: Vec<Purpose>,
    reason: &'static str,
    /// Package names, separated by spaces.
    apt: &'static str,
    dnf: &'static str,
    pacman: &'static str,
    zypper: &'static str,
}

static PACKAGES: LazyLock<Vec<Package>> = LazyLock::new(|| {
    let lines = include_str!("packages/packages.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| Package::parse(line).expect("invariant: a test parses every line")).collect()
});

/// Returns the packages that `purposes` need and whose program is not found.
pub(crate) fn missing(purposes: &[Purpose]) -> Vec<&'static Package> {
    let wanted =
        PACKAGES.iter().filter(|package| package.purposes.iter().any(|purpose| purposes.contains(purpose)));
    wanted.filter(|package| !package.is_installed()).collect()
}

impl Package {
    fn parse(line: &'static str) -> Option<Package> {
        let columns: Vec<&'static str> = line.split('|').map(str::trim).collect();
        let [program, purposes, reason, apt, dnf, pacman, zypper] = columns[..] else { return None };
        let purposes = purposes.split(' ').map(Purpose::by_name).collect::<Option<_>>()?;
        Some(Package { program, purposes, reason, apt, dnf, pacman, zypper })
    }

    fn is_installed(&self) -> bool {
        match self.program.starts_with('/') {
            true => Path::new(self.program).is_file(),
            false => shell::which(self.program).is_some(),
        }
    }

    /// Formats a line of the plan: `fio (package fio): makes a known number of requests …`.
    pub(crate) fn plan_line(&self) -> String {
        format!("{} (package {}): {}", self.program, Manager::detect().names(self), self.reason)
    }
}

/// Installs `packages` with apt. Without apt the error contains the command that installs them.
pub(crate) fn install(packages: &[&Package]) -> Result<()> {
    if shell::which("apt-get").is_none() {
        bail!("this task installs packages with apt only: {}", Manager::detect().remedy(packages));
    }
    let names: BTreeSet<&str> = packages.iter().flat_map(|package| package.apt.split(' ')).collect();
    apt_with_fresh_lists(|| {
        let mut command = apt_get()?;
        command.args(["install", "--no-install-recommends"]).args(&names);
        shell::run(&mut command)
    })
    .with_context(|| format!("cannot install {}", names.into_iter().collect::<Vec<_>>().join(" ")))
}

/// Runs `step`. If it fails, fetches apt's package lists and runs it again, because the lists may
/// be missing or outdated. The age of the lists alone is no reason to fetch them.
pub(crate) fn apt_with_fresh_lists<T>(step: impl Fn() -> Result<T>) -> Result<T> {
    step().or_else(|first| {
        println!("  fetching apt's package lists, because: {first:#}");
        shell::run(apt_get()?.arg("update"))
            .context("cannot fetch apt's package lists: is there a network?")?;
        step()
    })
}

fn apt_get() -> Result<Command> {
    let mut command = shell::privileged("env", "apt-get, to install the packages named above")?;
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y", "-o", "Dpkg::Use-Pty=0"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_a_purpose_and_a_reason() {
        for package in &*PACKAGES {
            assert!(!package.reason.is_empty() && !package.apt.is_empty(), "{}", package.program);
        }
    }
}
