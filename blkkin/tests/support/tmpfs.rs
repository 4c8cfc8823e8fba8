//! A small file system in memory, for tests of full disks; unmounted when dropped.

use std::fs;
use std::path::{Path, PathBuf};

use super::tools::{capture, tool};

/// The file system.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts one of this size (`64k`, `64m`) at a new folder, or returns why there is none.
    pub(crate) fn mount(folder: PathBuf, size: &str) -> Result<Tmpfs, String> {
        fs::create_dir(&folder).map_err(|error| error.to_string())?;
        let options = format!("size={size}");
        capture(tool("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder))?;
        Ok(Tmpfs(folder))
    }

    /// Returns its folder.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Processes that still write there have been killed; the lazy unmount ends with the last of them.
        let _ = capture(tool("umount").arg("--lazy").arg(&self.0)).inspect_err(|error| println!("{error}"));
        let _ = fs::remove_dir(&self.0);
    }
}
