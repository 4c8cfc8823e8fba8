//! ext4 on a loop device over tmpfs. Unmounted and taken down when dropped.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Looped, Place};

pub(crate) struct Mounted {
    point: PathBuf,
    mounted: bool,
    // Below the mount: dropped after it.
    disk: Looped,
}

impl Mounted {
    pub(crate) fn make(name: &str) -> Result<Mounted> {
        let disk = Looped::make(name)?;
        let point = std::env::temp_dir().join(format!("blkkin-bench.{}.{name}", std::process::id()));
        let mut mounted = Mounted { point, mounted: false, disk };
        std::fs::create_dir_all(&mounted.point)
            .with_context(|| format!("cannot make {}", mounted.point.display()))?;
        // Everything at once: what ext4 would initialize later in the background would be traced too.
        let now = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-E", now, &mounted.disk.device]))?;
        run(Command::new("mount").args(["-t", "ext4", &mounted.disk.device]).arg(&mounted.point))?;
        mounted.mounted = true;
        Ok(mounted)
    }

    /// A file on it that a load may make.
    pub(crate) fn place(&self, file: &str) -> Result<Place> {
        let target = self.point.join(file);
        Ok(Place { name: "ext4 on loop over tmpfs", target, ..self.disk.place()? })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Who still has a file open there keeps the loop device; `losetup --list` shows it.
        if self.mounted {
            let _ = Command::new("umount").arg(&self.point).status();
        }
        let _ = std::fs::remove_dir(&self.point);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
