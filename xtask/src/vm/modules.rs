//! Kernel modules of a guest: selection, decompression, and load order.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::UnpackedKernel;

/// Modules of a guest of the tests; their dependencies are added. A module that is built in or missing in a
/// kernel is omitted.
pub(super) const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "loop",
    "null_blk",
    "dm-mod",
    "crypto_null",
    "ecb",
    "dm-crypt",
    "dm-delay",
    "dm-flakey",
    "raid1",
    "raid0",
    "raid10",
    "dm-thin-pool",
    "sd_mod",
    "sg",
    "scsi_debug",
    "nbd",
    "ublk_drv",
    "zonefs",
    "xfs",
    "btrfs",
    "overlay",
    "mq-deadline",
    "bfq",
    "kyber-iosched",
];

impl UnpackedKernel {
    /// Returns these modules and their dependencies in load order, decompressed. Their names sort in that order.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        names.iter().try_for_each(|name| self.add_with_dependencies(name, &mut found))?;
        let numbered = found.into_iter().enumerate();
        Ok(numbered.map(|(number, (name, bytes))| (format!("{number:02}-{name}.ko"), bytes)).collect())
    }

    /// Adds a module after its dependencies, if it is not in the list. Module dependencies have no
    /// cycles.
    fn add_with_dependencies(&self, name: &str, found: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        if found.iter().any(|(known, _)| known == name) {
            return Ok(());
        }
        let Some(bytes) = self.module(name)? else { return Ok(()) };
        dependencies(&bytes)
            .iter()
            .try_for_each(|dependency| self.add_with_dependencies(dependency, found))?;
        found.push((name.to_owned(), bytes));
        Ok(())
    }

    fn module(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let plain = self.folder.join(format!("modules/{name}.ko"));
        if plain.is_file() {
            return fs::read(&plain).map(Some).with_context(|| format!("cannot read {}", plain.display()));
        }
        let packed = plain.with_extension("ko.xz");
        if !packed.is_file() {
            return Ok(None);
        }
        let output = Command::new("busybox").args(["unxz", "-c"]).arg(&packed).output();
        let output = output.context("cannot start busybox")?;
        if !output.status.success() {
            bail!("busybox cannot unpack {}", packed.display());
        }
        Ok(Some(output.stdout))
    }
}

/// Parses a module's dependencies: `depends=virtio,virtio_ring` in its .modinfo section.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_modinfo() {
        assert_eq!(
            dependencies(b"\x7fELF\0license=GPL\0depends=virtio,virtio_ring\0name=x\0"),
            ["virtio", "virtio_ring"]
        );
        assert_eq!(dependencies(b"\0license=GPL\0depends=\0"), Vec::<String>::new());
        assert_eq!(dependencies(b""), Vec::<String>::new());
    }
}
