//! Loop device over a file on tmpfs, removed on drop.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{BYTES, DiskTarget, kernel_number};
use crate::process;

pub(crate) struct Looped {
    image: PathBuf,
    pub(crate) device: String,
}

impl Looped {
    /// Makes the device and writes it once, so that reads hit memory and not holes.
    pub(crate) fn make(name: &str) -> Result<Looped> {
        let image = PathBuf::from(format!("/dev/shm/blkkin-bench.{}.{name}.img", std::process::id()));
        let mut disk = Looped { image, device: String::new() };
        let mut file =
            File::create(&disk.image).with_context(|| format!("cannot make {}", disk.image.display()))?;
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0xb1), BYTES), &mut file)
            .context("no room in /dev/shm for the disk to read from")?;
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]).arg(&disk.image);
        disk.device = process::run(&mut losetup).context("no loop device")?;
        Ok(disk)
    }

    /// Returns the raw device.
    pub(crate) fn place(&self) -> Result<DiskTarget> {
        let number = std::fs::metadata(&self.device).context("a loop device without a file in /dev")?.rdev();
        let (target, device) = (PathBuf::from(&self.device), self.device.clone());
        Ok(DiskTarget { name: "loop over tmpfs", target, device, number: kernel_number(number) })
    }
}

impl Drop for Looped {
    fn drop(&mut self) {
        // Only this object knows them; a failure is visible in `losetup --list` and in /dev/shm.
        if !self.device.is_empty() {
            let _ = Command::new("losetup").args(["--detach", &self.device]).status();
        }
        let _ = std::fs::remove_file(&self.image);
    }
}
