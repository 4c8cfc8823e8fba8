//! The demo's disk: ext4 on a loop device over a file. Made whole or not at all, and taken down when dropped.
//!
//! The file is below `target/`, on a real disk, with direct I/O where that file system can: then the times are those
//! of the disk and not of the page cache. Where it cannot, the loop device is buffered.
//!
//! Its paths are fixed, and they are the only record: what is mounted there, and the loop devices over that file,
//! are ours and nobody else's, whatever number the kernel gave them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Room for the demo's 10 MB of data and ext4's journal.
const IMAGE_BYTES: u64 = 128 << 20;

pub(crate) struct Disk {
    image: PathBuf,
    mount_point: PathBuf,
    device: String,
}

impl Disk {
    /// A new disk in `folder`, after removing what an earlier one left there.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
        let mut disk =
            Self { image: folder.join("disk.img"), mount_point: folder.join("mnt"), device: String::new() };
        disk.clear().context("cannot remove what an earlier demo left")?;
        // From here on dropping it takes down as much as there is.
        let file =
            fs::File::create(&disk.image).with_context(|| format!("cannot make {}", disk.image.display()))?;
        file.set_len(IMAGE_BYTES).with_context(|| format!("cannot make {}", disk.image.display()))?;
        disk.device = attach(&disk.image)?;
        shell::run_quietly(tool("mkfs.ext4").args(["-q", "-F", "-b", "4096", &disk.device]))?;
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

    /// As dropping it, with an error that can be seen.
    pub(crate) fn remove(self) -> Result<()> {
        self.clear()
    }

    /// Takes the file system off it: all that was written is on the device, which stays.
    pub(crate) fn unmount(&self) -> Result<()> {
        // One on another, if demos were killed between the two steps more than once.
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
            eprintln!("demo: could not take its disk down: {error:#}; the next demo tries again");
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

/// By its path where the user's PATH has no /usr/sbin.
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

/// Loop devices over `image`, also when it has been deleted under them.
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

/// The kernel writes space, tab, newline and backslash in a path as an octal escape (fs/proc_namespace.c, mangle).
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (escape, character)| path.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_unescaped() {
        assert_eq!(unescaped("/home/me/my\\040checkout"), "/home/me/my checkout");
    }

    #[test]
    fn the_root_is_mounted_and_this_file_is_on_no_loop_device() {
        assert!(is_mounted(Path::new("/")).expect("procfs"));
        assert_eq!(devices_over(Path::new("/blkkin/no/such.img")).expect("sysfs"), Vec::<String>::new());
    }
}
