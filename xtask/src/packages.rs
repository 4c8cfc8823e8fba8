//! Programs of the distribution: their purposes, package names per distribution, and the
//! installation of missing ones.
//!
//! A package counts as installed if its program is found, so a program that was built by hand is
//! accepted. Only apt is run; for other package managers the error contains the install command.

mod list;
mod manager;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::Purpose;
use crate::shell;
use list::PACKAGES;
pub(crate) use manager::Manager;

/// Program that a task runs, and the packages that contain it.
pub(crate) struct Package {
    /// Name of the program, or the path of a file of a package without programs.
    program: &'static str,
    purposes: &'static [Purpose],
    reason: &'static str,
    apt: &'static [&'static str],
    dnf: &'static str,
    pacman: &'static str,
    zypper: &'static str,
}

/// Returns the packages that `purposes` need and whose program is not found.
pub(crate) fn missing(purposes: &[Purpose]) -> Vec<&'static Package> {
    let wanted =
        PACKAGES.iter().filter(|package| package.purposes.iter().any(|purpose| purposes.contains(purpose)));
    wanted.filter(|package| !package.is_installed()).collect()
}

impl Package {
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
    let names: BTreeSet<&str> = packages.iter().flat_map(|package| package.apt).copied().collect();
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
        for package in PACKAGES {
            assert!(
                !package.purposes.is_empty() && !package.reason.is_empty() && !package.apt.is_empty(),
                "{}",
                package.program
            );
        }
    }
}
