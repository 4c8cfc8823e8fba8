//! Package managers: detection of the one on this machine, and its install commands.

use std::collections::BTreeSet;

use super::Package;
use crate::shell;

/// Package manager whose install command is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manager {
    Apt,
    Dnf,
    Pacman,
    Zypper,
    Unknown,
}

/// Returns this system's id in os-release(5): `debian`.
pub(crate) fn distribution() -> String {
    values(&os_release(), "ID").pop().unwrap_or_else(|| "linux".to_owned())
}

fn os_release() -> String {
    std::fs::read_to_string("/etc/os-release").unwrap_or_default()
}

/// Returns the words of a key of os-release(5).
fn values(text: &str, key: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_default().replace('"', "").split_whitespace().map(str::to_owned).collect()
}

impl Manager {
    pub(crate) fn detect() -> Self {
        if shell::which("apt-get").is_some() {
            return Self::Apt;
        }
        Self::from_os_release(&os_release())
    }

    /// Detects the package manager by the distribution families in `ID`, then `ID_LIKE`.
    fn from_os_release(text: &str) -> Self {
        let families = [values(text, "ID"), values(text, "ID_LIKE")].concat();
        let known = families.iter().find_map(|family| match family.as_str() {
            "debian" | "ubuntu" => Some(Self::Apt),
            "fedora" | "rhel" | "centos" => Some(Self::Dnf),
            "arch" | "manjaro" => Some(Self::Pacman),
            "suse" | "opensuse" | "opensuse-tumbleweed" | "opensuse-leap" | "sles" => Some(Self::Zypper),
            _ => None,
        });
        known.unwrap_or(Self::Unknown)
    }

    pub(super) fn names(self, package: &Package) -> String {
        match self {
            Self::Apt => package.apt.to_owned(),
            Self::Dnf => package.dnf.to_owned(),
            Self::Pacman => package.pacman.to_owned(),
            Self::Zypper => package.zypper.to_owned(),
            Self::Unknown => package.program.to_owned(),
        }
    }

    pub(super) fn remedy(self, packages: &[&Package]) -> String {
        let names: BTreeSet<String> = packages.iter().map(|package| self.names(package)).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(" ");
        match self {
            Self::Apt => format!("run: sudo apt-get install {names}"),
            Self::Dnf => format!("run: sudo dnf install {names}"),
            Self::Pacman => format!("run: sudo pacman -S {names}"),
            Self::Zypper => format!("run: sudo zypper install {names}"),
            Self::Unknown => format!("install the programs {names} by this system's package manager"),
        }
    }

    /// Returns the command that installs rustc's library source, if neither rustup nor apt provided
    /// it.
    pub(crate) fn rust_source_remedy(self) -> &'static str {
        match self {
            Self::Apt => "install rustup (https://rustup.rs), then: rustup component add rust-src",
            Self::Dnf => "sudo dnf install rustup && rustup-init, then: rustup component add rust-src",
            Self::Pacman => "sudo pacman -S rustup, then: rustup component add rust-src",
            Self::Zypper => "sudo zypper install rustup, then: rustup component add rust-src",
            Self::Unknown => "install rustup (https://rustup.rs), then: rustup component add rust-src",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PACKAGES;
    use super::*;

    #[test]
    fn package_manager_is_chosen_by_id_or_id_like() {
        let cases = [
            ("ID=fedora\n", Manager::Dnf),
            ("NAME=\"Rocky\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Manager::Dnf),
            ("ID=arch\n", Manager::Pacman),
            ("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n", Manager::Zypper),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Manager::Apt),
            ("ID=void\n", Manager::Unknown),
            ("", Manager::Unknown),
        ];
        for (text, manager) in cases {
            assert_eq!(Manager::from_os_release(text), manager, "{text}");
        }
    }

    #[test]
    fn remedy_lists_each_package_once() {
        let both: Vec<&Package> =
            PACKAGES.iter().filter(|package| ["losetup", "mount"].contains(&package.program)).collect();
        assert_eq!(Manager::Dnf.remedy(&both), "run: sudo dnf install util-linux");
    }
}
