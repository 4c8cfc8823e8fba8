//! A mount of overlayfs over two folders of a disk.

use std::fs;
use std::path::PathBuf;

use super::disk::Disk;
use super::tools::{capture, tool};

/// Names of the mount points in the disk's folder: the second has the first as its lower layer.
pub(crate) const MERGED: [&str; 2] = ["merged", "merged-again"];

/// Folders of a mount of overlayfs, which ends with its disk.
pub(crate) struct Overlay {
    /// Layer that stays as it is.
    pub(crate) lower: PathBuf,
    /// Layer that gets what is written.
    pub(crate) upper: PathBuf,
    /// Mount point.
    pub(crate) merged: PathBuf,
}

impl Overlay {
    /// Mounts overlayfs on the disk.
    pub(crate) fn mount(disk: &Disk) -> Result<Overlay, String> {
        Overlay::mount_with(disk, "")
    }

    /// Mounts overlayfs on the disk with these further options, each after a comma.
    pub(crate) fn mount_with(disk: &Disk, options: &str) -> Result<Overlay, String> {
        let lower = disk.mount_point().canonicalize().unwrap().join("lower");
        fs::create_dir(&lower).unwrap();
        Overlay::mount_layers(disk, lower, MERGED[0], options)
    }

    /// Mounts another overlayfs, whose lower layer is this one.
    pub(crate) fn mount_above(&self, disk: &Disk) -> Result<Overlay, String> {
        Overlay::mount_layers(disk, self.merged.clone(), MERGED[1], "")
    }

    fn mount_layers(disk: &Disk, lower: PathBuf, name: &str, options: &str) -> Result<Overlay, String> {
        let folder = disk.mount_point().canonicalize().unwrap();
        let [upper, work, merged] =
            ["upper-of-", "work-of-", ""].map(|prefix| folder.join(format!("{prefix}{name}")));
        for folder in [&upper, &work, &merged] {
            fs::create_dir(folder).unwrap();
        }
        let (lower_dir, upper_dir, work_dir) = (lower.display(), upper.display(), work.display());
        let layers = format!("lowerdir={lower_dir},upperdir={upper_dir},workdir={work_dir}{options}");
        capture(tool("mount").args(["-t", "overlay", "-o", &layers, "overlay"]).arg(&merged))
            .map_err(|error| format!("no overlayfs: {error}"))?;
        Ok(Overlay { lower, upper, merged })
    }
}
