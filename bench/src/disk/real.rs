//! File on the machine's disk, deleted on drop, and the device number of that disk.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{BYTES, DiskTarget, kernel_number};

pub(crate) struct RealFile {
    path: PathBuf,
    device: String,
    number: u32,
}

impl RealFile {
    /// Makes the file in `folder` and writes it once: reads of a hole would not reach the disk.
    pub(crate) fn make(folder: &Path) -> Result<RealFile> {
        let number = std::fs::metadata(folder).with_context(|| format!("no {}", folder.display()))?.dev();
        let device = disk_of(Path::new("/sys/dev/block"), number)
            .with_context(|| format!("{} lies on no block device of its own", folder.display()))?;
        let path = folder.join("disk.dat");
        let file = RealFile { path, device: format!("/dev/{}", device.name), number: device.number };
        let mut made =
            File::create(&file.path).with_context(|| format!("cannot make {}", file.path.display()))?;
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0xb1), BYTES), &mut made)
            .with_context(|| format!("no room for {}", file.path.display()))?;
        made.sync_all().context("cannot write it to the disk")?;
        Ok(file)
    }

    pub(crate) fn place(&self) -> DiskTarget {
        let (target, device) = (self.path.clone(), self.device.clone());
        DiskTarget { name: "real disk", target, device, number: self.number }
    }
}

impl Drop for RealFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Disk {
    name: String,
    number: u32,
}

/// Finds the whole disk of a device: requests belong to it even if the file system is on a
/// partition.
fn disk_of(folder: &Path, device: u64) -> Option<Disk> {
    let own = folder.join(format!("{}:{}", libc::major(device), libc::minor(device))).canonicalize().ok()?;
    let whole = if own.join("partition").exists() { own.parent()? } else { &own };
    let number = std::fs::read_to_string(whole.join("dev")).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    let number = kernel_number(libc::makedev(major.parse().ok()?, minor.parse().ok()?));
    Some(Disk { name: whole.file_name()?.to_string_lossy().into_owned(), number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_resolves_to_its_disk() {
        let sys = tempfile::tempdir().unwrap();
        let part = sys.path().join("devices/sda/sda1");
        std::fs::create_dir_all(&part).unwrap();
        std::fs::write(part.join("partition"), "1\n").unwrap();
        std::fs::write(part.join("dev"), "8:1\n").unwrap();
        std::fs::write(part.parent().unwrap().join("dev"), "8:0\n").unwrap();
        let block = sys.path().join("block");
        std::fs::create_dir(&block).unwrap();
        std::os::unix::fs::symlink(&part, block.join("8:1")).unwrap();
        let disk = disk_of(&block, libc::makedev(8, 1)).unwrap();
        assert_eq!((disk.name.as_str(), disk.number), ("sda", 8 << 20));
        assert!(disk_of(&block, libc::makedev(0, 42)).is_none(), "an overlay, a btrfs");
    }
}
