//! Mounts of tracefs and debugfs for the classic tools, unmounted on drop if they were missing.

use std::process::Command;

use anyhow::{Context, Result};

const MOUNTS: [(&str, &str); 2] = [("tracefs", "/sys/kernel/tracing"), ("debugfs", "/sys/kernel/debug")];

/// File systems that were mounted here.
pub(crate) struct KernelFs(Vec<&'static str>);

/// Mounts the missing file systems. If the kernel lacks one, tools fail and the report contains
/// their error.
pub(crate) fn mount() -> Result<KernelFs> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    let missing = MOUNTS.iter().filter(|(_, path)| !is_mounted(&mounts, path));
    let mounted = missing.filter(|(kind, path)| {
        let mut command = Command::new("mount");
        command.args(["-t", kind, "nodev", path]).output().is_ok_and(|output| output.status.success())
    });
    Ok(KernelFs(mounted.map(|(_, path)| *path).collect()))
}

fn is_mounted(mounts: &str, path: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(path))
}

impl Drop for KernelFs {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // A file system that another process uses stays mounted.
            let _ = Command::new("umount").arg(path).output();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_found_by_its_path() {
        let mounts = "proc /proc proc rw 0 0\nnodev /sys/kernel/tracing tracefs rw 0 0\n";
        assert!(is_mounted(mounts, "/sys/kernel/tracing"));
        assert!(!is_mounted(mounts, "/sys/kernel/debug"));
    }
}
