//! Disk of the demo: ext4 on a loop device over a file. It is made completely or not at all, and
//! removed on drop.
//!
//! The file is below `target/`, on a real disk. If its file system supports direct I/O, the times
//! are those of the disk and not of the page cache. Otherwise the loop device is buffered.
//!
//! Its paths are fixed and are the only record. The file systems mounted there, and the loop
//! devices over that file, belong to the demo, whatever number the kernel assigned.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Image size for the demo's 10 MB of data and ext4's journal.
const IMAGE_BYTES: u64 = 128 << 20;

pub(crate) struct Disk {
    image: PathBuf,
    mount_point: PathBuf,
    device: String,
}

impl Disk {
    /// Makes a new disk in `folder`, after removing the remains of an earlier one.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
        let mut disk =
            Self { image: folder.join("disk.img"), mount_point: folder.join("mnt"), device: String::new() };
        disk.clear().context("cannot remove the disk of an earlier demo")?;
        // From here on, drop removes whatever exists.
        let file =
            fs::File::create(&disk.image).with_context(|| format!("cannot make {}", disk.image.display()))?;
        file.set_len(IMAGE_BYTES).with_context(|| format!("cannot make {}", disk.image.display()))?;
        disk.device = attach(&disk.image)?;
        // All tables are written now: a kernel thread would write 8 MiB of them within 5 s after the mount,
        // which the demo would show as not recorded.
        let tables = "lazy_itable_init=0,lazy_journal_init=0";
        shell::run_quietly(tool("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-E", tables, &disk.device]))?;
        fs::create_dir_all(&disk.mount_point)
            .with_context(|| format!("cannot make {}", disk.mount_point.display()))?;
        shell::run_quietly(tool("mount").args(["-t", "ext4", &disk.device]).arg(&disk.mount_point))?;
        Ok(disk)
    }

    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Removes the disk like drop, and returns the error.
    pub(crate) fn remove(self) -> Result<()> {
        self.clear()
    }

    /// Unmounts the file system, which writes all data to the device. The device stays.
    pub(crate) fn unmount(&self) -> Result<()> {
        // More than one file system, if several demos were killed between mount and unmount.
        while is_mounted(&self.mount_point)? {
            shell::run_quietly(tool("umount").arg(&self.mount_point))?;
        }
        Ok(())
    }

    fn clear(&self) -> Result<()> {
        self.unmount()?;
        for device in devices_over(&self.image)? {
            shell::run_quietly(tool("losetup").args(["--detach", &device]))?;
        }
        if self.mount_point.exists() {
            fs::remove_dir(&self.mount_point)
                .with_context(|| format!("cannot remove {}", self.mount_point.display()))?;
        }
        if self.image.exists() {
            fs::remove_file(&self.image)
                .with_context(|| format!("cannot remove {}", self.image.display()))?;
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("demo: cannot remove the disk: {error:#}; the next demo tries again");
        }
    }
}

fn attach(image: &Path) -> Result<String> {
    let attach = |direct: &str| {
        let device = shell::capture(tool("losetup").args(["--find", "--show", direct]).arg(image))?;
        Ok::<_, anyhow::Error>(device.trim().to_owned())
    };
    attach("--direct-io=on")
        .or_else(|_| attach("--direct-io=off"))
        .context("no loop device for the demo's disk (see losetup --list)")
}

/// Prepares a program by its path, for users whose PATH has no /usr/sbin.
fn tool(program: &str) -> Command {
    Command::new(shell::which(program).unwrap_or_else(|| program.into()))
}

fn is_mounted(mount_point: &Path) -> Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    Ok(mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|found| unescaped(found) == mount_point.to_string_lossy()))
}

/// Lists loop devices over `image`, even if the file has been deleted.
fn devices_over(image: &Path) -> Result<Vec<String>> {
    let image = image.to_string_lossy();
    let is_ours = |backing: &str| backing.trim_end().trim_end_matches(" (deleted)") == image;
    let entries = fs::read_dir("/sys/block").context("cannot read /sys/block")?;
    let blocks = entries.filter_map(|entry| entry.ok().map(|found| found.path()));
    let ours = blocks
        .filter(|block| fs::read_to_string(block.join("loop/backing_file")).is_ok_and(|file| is_ours(&file)));
    Ok(ours
        .filter_map(|block| block.file_name().map(|name| format!("/dev/{}", name.to_string_lossy())))
        .collect())
}

/// Decodes the kernel's octal escapes of space, tab, newline and backslash in paths
/// (fs/proc_namespace.c, mangle).
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (escape, character)| path.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_paths_are_unescaped() {
        assert_eq!(unescaped("/home/me/my\\040checkout"), "/home/me/my checkout");
    }

    #[test]
    fn root_is_mounted_and_unknown_image_has_no_loop_device() {
        assert!(is_mounted(Path::new("/")).expect("procfs"));
        assert_eq!(devices_over(Path::new("/blkkin/no/such.img")).expect("sysfs"), Vec::<String>::new());
    }
}
