//! File system ext4 on a loop device over tmpfs, unmounted and removed on drop.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{DiskTarget, Looped};
use crate::process;

pub(crate) struct Mounted {
    point: PathBuf,
    mounted: bool,
    // Dropped after the unmount.
    disk: Looped,
}

impl Mounted {
    pub(crate) fn make(name: &str) -> Result<Mounted> {
        let disk = Looped::make(name)?;
        let point = std::env::temp_dir().join(format!("blkkin-bench.{}.{name}", std::process::id()));
        let mut mounted = Mounted { point, mounted: false, disk };
        std::fs::create_dir_all(&mounted.point)
            .with_context(|| format!("cannot make {}", mounted.point.display()))?;
        // Initialise everything now: ext4's lazy initialisation in the background would be traced.
        let now = "lazy_itable_init=0,lazy_journal_init=0";
        process::run(Command::new("mkfs.ext4").args([
            "-q",
            "-F",
            "-b",
            "4096",
            "-E",
            now,
            &mounted.disk.device,
        ]))?;
        process::run(Command::new("mount").args(["-t", "ext4", &mounted.disk.device]).arg(&mounted.point))?;
        mounted.mounted = true;
        Ok(mounted)
    }

    /// Returns a file on the file system, which the load may create.
    pub(crate) fn place(&self, file: &str) -> Result<DiskTarget> {
        let target = self.point.join(file);
        Ok(DiskTarget { name: "ext4 on loop over tmpfs", target, ..self.disk.place()? })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // An open file keeps the loop device; `losetup --list` shows it.
        if self.mounted {
            let _ = Command::new("umount").arg(&self.point).status();
        }
        let _ = std::fs::remove_dir(&self.point);
    }
}
