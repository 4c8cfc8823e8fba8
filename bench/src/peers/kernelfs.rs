//! tracefs and debugfs, which the classic tools read: mounted where they are not, and unmounted again.

use std::process::Command;

use anyhow::{Context, Result};

const PLACES: [(&str, &str); 2] = [("tracefs", "/sys/kernel/tracing"), ("debugfs", "/sys/kernel/debug")];

/// What was mounted here.
pub(crate) struct KernelFs(Vec<&'static str>);

/// Mounts what is missing. A kernel without one of them makes a tool say so, and that is listed.
pub(crate) fn mount() -> Result<KernelFs> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    let missing = PLACES.iter().filter(|(_, place)| !is_mounted(&mounts, place));
    let mounted = missing.filter(|(kind, place)| {
        let mut command = Command::new("mount");
        command.args(["-t", kind, "nodev", place]).output().is_ok_and(|output| output.status.success())
    });
    Ok(KernelFs(mounted.map(|(_, place)| *place).collect()))
}

fn is_mounted(mounts: &str, place: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(place))
}

impl Drop for KernelFs {
    fn drop(&mut self) {
        for place in self.0.iter().rev() {
            // Who began to use it meanwhile keeps it.
            let _ = Command::new("umount").arg(place).output();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_place() {
        let mounts = "proc /proc proc rw 0 0\nnodev /sys/kernel/tracing tracefs rw 0 0\n";
        assert!(is_mounted(mounts, "/sys/kernel/tracing"));
        assert!(!is_mounted(mounts, "/sys/kernel/debug"));
    }
}
