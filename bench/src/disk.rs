//! A loop device over a file on tmpfs: the fastest device that any machine has. Taken down when dropped.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Small enough for any /dev/shm, larger than any cache.
const BYTES: u64 = 1 << 30;

pub(crate) struct Disk {
    image: PathBuf,
    pub(crate) device: String,
}

impl Disk {
    /// Makes it and writes it once, so that reads find memory and not holes.
    pub(crate) fn make() -> Result<Disk> {
        let image = PathBuf::from(format!("/dev/shm/blkkin-bench.{}.img", std::process::id()));
        let mut disk = Disk { image, device: String::new() };
        let mut file =
            File::create(&disk.image).with_context(|| format!("cannot make {}", disk.image.display()))?;
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0xb1), BYTES), &mut file)
            .context("no room in /dev/shm for the disk to read from")?;
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]).arg(&disk.image);
        let output = losetup.output().context("cannot start losetup")?;
        if !output.status.success() {
            bail!("no loop device: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        disk.device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nobody else knows of either; what fails here is seen by `losetup --list` and in /dev/shm.
        if !self.device.is_empty() {
            let _ = Command::new("losetup").args(["--detach", &self.device]).status();
        }
        let _ = std::fs::remove_file(&self.image);
    }
}
