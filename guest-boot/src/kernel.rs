//! Kernel of a guest, and its modules: decompression and load order.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::programs;

/// Bootable kernel and its modules.
#[derive(Clone, Debug)]
pub struct UnpackedKernel {
    /// Kernel image.
    pub image: PathBuf,
    /// Folder with the unpacked files: `vmlinuz` and `modules/`.
    pub folder: PathBuf,
}

impl UnpackedKernel {
    /// Finds an unpacked kernel in a folder.
    pub fn find(folder: PathBuf) -> Option<Self> {
        let image = folder.join("vmlinuz");
        image.is_file().then_some(Self { image, folder })
    }

    /// Returns these modules and their dependencies in load order, decompressed. Their names sort in that order.
    /// A module that is built in or missing is omitted.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
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
        let bytes = programs::output(Command::new("busybox").args(["unxz", "-c"]).arg(&packed));
        bytes.with_context(|| format!("cannot unpack {}", packed.display())).map(Some)
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
