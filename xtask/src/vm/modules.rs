//! The modules of a guest: which, unpacked, and in the order in which they need one another.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kernel::Unpacked;

/// Modules of a guest; those that these need come with them. What a kernel has built in, or has not, is left out.
const MODULES: &[&str] = &[
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
    "mq-deadline",
    "bfq",
    "kyber-iosched",
];

impl Unpacked {
    /// The modules of a guest, as the kernel takes them, in the order in which they need one another; their names sort so.
    pub(super) fn modules(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        MODULES.iter().try_for_each(|name| self.with_needs(name, &mut found))?;
        let numbered = found.into_iter().enumerate();
        Ok(numbered.map(|(number, (name, bytes))| (format!("{number:02}-{name}.ko"), bytes)).collect())
    }

    /// Adds a module behind those that it needs, if it is not there yet. Modules need one another in no circle.
    fn with_needs(&self, name: &str, found: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        if found.iter().any(|(known, _)| known == name) {
            return Ok(());
        }
        let Some(bytes) = self.module(name)? else { return Ok(()) };
        needs(&bytes).iter().try_for_each(|need| self.with_needs(need, found))?;
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

/// What a module says that it needs: `depends=virtio,virtio_ring` among the strings of its .modinfo.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let words = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let words = String::from_utf8_lossy(words);
    words.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_says_what_it_needs() {
        assert_eq!(
            needs(b"\x7fELF\0license=GPL\0depends=virtio,virtio_ring\0name=x\0"),
            ["virtio", "virtio_ring"]
        );
        assert_eq!(needs(b"\0license=GPL\0depends=\0"), Vec::<String>::new());
        assert_eq!(needs(b""), Vec::<String>::new());
    }
}
