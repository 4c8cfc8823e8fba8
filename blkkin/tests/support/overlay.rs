//! A mount of overlayfs over two folders of a disk.

use std::fs;
use std::path::PathBuf;

use super::disk::Disk;
use super::tools::{capture, tool};

/// Name of the mount point in the disk's folder.
pub(crate) const MERGED: &str = "merged";

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
        let [lower, upper, work, merged] = ["lower", "upper", "work", MERGED]
            .map(|name| disk.mount_point().canonicalize().unwrap().join(name));
        for folder in [&lower, &upper, &work, &merged] {
            fs::create_dir(folder).unwrap();
        }
        let layers =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        capture(tool("mount").args(["-t", "overlay", "-o", &layers, "overlay"]).arg(&merged))
            .map_err(|error| format!("no overlayfs: {error}"))?;
        Ok(Overlay { lower, upper, merged })
    }
}
