//! Stock kernels of Debian: package selection, download, and the unpacked files below `target/vm`.
//!
//! apt lists the packages and the newest is chosen, because their names contain a version that
//! changes with each update. A kernel that this machine's release lacks comes from another release
//! of Debian on the same mirror, with separate package lists. Nothing is installed. An unpacked
//! kernel stays until its folder is deleted.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use blkkin_guest_boot::UnpackedKernel;

use super::apt::Apt;
use crate::shell;
use crate::workspace::Workspace;

/// Debian kernel for virtual machines: small, with BTF.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Version numbers, for example 6 and 12.
    version: &'static [u32],
    /// Debian release that has this kernel, if the machine's release lacks it.
    suite: &'static str,
}

const KERNELS: [&Kernel; 3] = [&Kernel::LINUX_6_12, &Kernel::LINUX_6_1, &Kernel::LINUX_5_10];

/// Returns the kernels that are not unpacked yet; empty if this machine cannot run guests.
pub(crate) fn missing(workspace: &Workspace) -> Vec<&'static Kernel> {
    let wanted = KERNELS.into_iter().filter(|_| std::env::consts::ARCH == "x86_64");
    wanted.filter(|kernel| kernel.unpacked(workspace).is_none()).collect()
}

impl Kernel {
    pub(crate) const LINUX_6_12: Kernel = Kernel { version: &[6, 12], suite: "trixie" };
    pub(crate) const LINUX_6_1: Kernel = Kernel { version: &[6, 1], suite: "bookworm" };
    pub(crate) const LINUX_5_10: Kernel = Kernel { version: &[5, 10], suite: "bullseye" };

    /// Formats the version, for example `6.12`.
    fn name(&self) -> String {
        self.version.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
    }

    pub(crate) fn unpacked(&self, workspace: &Workspace) -> Option<UnpackedKernel> {
        UnpackedKernel::find(self.folder(workspace))
    }

    /// Formats a line of the plan.
    pub(crate) fn plan_line(&self) -> String {
        format!(
            "{self} of Debian, below target/vm (25 to 40 MB), not installed: runs in QEMU for the tests inside it"
        )
    }

    /// Downloads and unpacks it.
    pub(crate) fn fetch(&self, workspace: &Workspace) -> Result<()> {
        if shell::which("apt-get").is_none() {
            bail!("no apt on this machine, and the kernels are Debian packages");
        }
        let (apt, package) = self.find(workspace)?;
        println!("  {self}: {package}");
        let folder = self.folder(workspace);
        let partial = folder.with_extension("partial");
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
        shell::run(apt.command("apt-get").current_dir(&partial).args(["-qq", "download", &package]))?;
        unpack(&partial)?;
        fs::rename(&partial, &folder).with_context(|| format!("cannot rename {}", partial.display()))
    }

    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.vm_dir().join(format!("linux-{}", self.name()))
    }

    /// Finds the package and the apt configuration that has it: this machine's, or one of another
    /// release.
    fn find(&self, workspace: &Workspace) -> Result<(Apt, String)> {
        let own = Apt::default();
        if let Ok(package) = self.newest(&own) {
            return Ok((own, package));
        }
        let other = Apt::of_suite(self.suite, &workspace.vm_dir().join(format!("apt-{}", self.suite)))?;
        shell::run(other.command("apt-get").args(["-qq", "update"]))
            .with_context(|| format!("cannot fetch the package lists of Debian {}", self.suite))?;
        let package = self.newest(&other)?;
        Ok((other, package))
    }

    fn newest(&self, apt: &Apt) -> Result<String> {
        let start = format!("linux-image-{}", self.name());
        let names = shell::capture(apt.command("apt-cache").args(["pkgnames", &start]))?;
        let newest = names.lines().filter(|name| self.is_build(name)).max_by_key(|name| numbers(name));
        newest.map(str::to_owned).with_context(|| format!("apt has no package {start}…-cloud-amd64"))
    }

    /// Accepts `linux-image-6.12.117+deb12-cloud-amd64`, but not unsigned packages nor the
    /// metapackage of the newest version.
    fn is_build(&self, package: &str) -> bool {
        let numbers = numbers(package);
        package.ends_with("-cloud-amd64")
            && numbers.starts_with(self.version)
            && numbers.len() > self.version.len()
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {}", self.name())
    }
}

/// Parses the numbers of a package's version, for example `6.12.117+deb12`.
fn numbers(package: &str) -> Vec<u32> {
    let version = package.trim_start_matches("linux-image-").trim_end_matches("-cloud-amd64");
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Unpacks the image and the modules from the package in `folder`.
fn unpack(folder: &Path) -> Result<()> {
    // Debian 13 moved modules below /usr.
    let script = "set -eo pipefail; cd \"$1\"; dpkg-deb --fsys-tarfile ./*.deb | tar --extract --wildcards \
                  './boot/vmlinuz-*' './lib/modules/*/kernel/*' || \
                  dpkg-deb --fsys-tarfile ./*.deb | tar --extract --wildcards \
                  './boot/vmlinuz-*' './usr/lib/modules/*/kernel/*'; \
                  mkdir modules; find . -path '*/kernel/*' -name '*.ko*' -exec mv -t modules {} +; \
                  rm ./*.deb; mv boot/vmlinuz-* vmlinuz";
    shell::run_quietly(Command::new("bash").args(["-c", script, "unpack"]).arg(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_build_is_chosen_by_version_numbers() {
        let names = [
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.12.111+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.99+deb12-cloud-amd64",
            "linux-image-6.12.118+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.118+deb12-amd64",
        ];
        let kernel = &Kernel::LINUX_6_12;
        let newest = names.into_iter().filter(|name| kernel.is_build(name)).max_by_key(|name| numbers(name));
        assert_eq!(newest, Some("linux-image-6.12.117+deb12-cloud-amd64"));
    }

    #[test]
    fn version_prefix_of_another_is_rejected() {
        assert!(Kernel::LINUX_6_1.is_build("linux-image-6.1.0-56-cloud-amd64"));
        assert!(!Kernel::LINUX_6_1.is_build("linux-image-6.12.117+deb12-cloud-amd64"));
        assert!(!Kernel::LINUX_6_1.is_build("linux-image-6.10.1-cloud-amd64"));
    }
}
