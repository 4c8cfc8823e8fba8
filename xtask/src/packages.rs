//! Programs of the distribution: what each is for, what it is called where, and installing what is missing.
//!
//! A package counts as present when its program is found, not when a package database says so: a program that was
//! built by hand serves as well. Only apt is driven; elsewhere the missing packages and the command are named.

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

/// One program that a task calls.
pub(crate) struct Package {
    /// By its name; or, of what is no program, the path of a file that it has.
    program: &'static str,
    purposes: &'static [Purpose],
    reason: &'static str,
    apt: &'static [&'static str],
    dnf: &'static str,
    pacman: &'static str,
    zypper: &'static str,
}

/// The packages that `purposes` need and whose program is not found here.
pub(crate) fn missing(purposes: &[Purpose]) -> Vec<&'static Package> {
    let wanted =
        PACKAGES.iter().filter(|package| package.purposes.iter().any(|purpose| purposes.contains(purpose)));
    wanted.filter(|package| !package.is_there()).collect()
}

impl Package {
    fn is_there(&self) -> bool {
        match self.program.starts_with('/') {
            true => Path::new(self.program).is_file(),
            false => shell::which(self.program).is_some(),
        }
    }

    /// `fio: makes a known number of requests …`, for the plan.
    pub(crate) fn plan_line(&self) -> String {
        format!("{} (package {}): {}", self.program, Manager::of_this_machine().names(self), self.reason)
    }
}

/// Installs `packages` by apt; on a machine without apt the error names them and the command that installs them.
pub(crate) fn install(packages: &[&Package]) -> Result<()> {
    if shell::which("apt-get").is_none() {
        bail!("only apt is driven by this task: {}", Manager::of_this_machine().remedy(packages));
    }
    let names: BTreeSet<&str> = packages.iter().flat_map(|package| package.apt).copied().collect();
    apt_with_fresh_lists(|| {
        let mut command = apt_get()?;
        command.args(["install", "--no-install-recommends"]).args(&names);
        shell::run(&mut command)
    })
    .with_context(|| format!("cannot install {}", names.into_iter().collect::<Vec<_>>().join(" ")))
}

/// Runs `step`; when it fails, the package lists may be missing or too old, so they are fetched and it runs again.
/// That is the only reason to fetch lists: their age alone says nothing.
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
