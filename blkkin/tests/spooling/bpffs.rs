//! A private BPF file system, in which an agent pins its counters.

use std::fs;
use std::path::Path;
use std::process::Command;

use blkkin_wire::ids::StartEpoch;
use tempfile::TempDir;

/// A mounted BPF file system, unmounted when dropped.
pub(crate) struct Bpffs(TempDir);

impl Bpffs {
    pub(crate) fn mount() -> Result<Bpffs, String> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Ok(Bpffs(folder)),
            other => Err(format!("no BPF file system can be mounted: {other:?}")),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the starts that have pinned counters, or may have.
    pub(crate) fn epochs(&self) -> Vec<StartEpoch> {
        let entries = fs::read_dir(self.path().join("blkkin")).into_iter().flatten();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        // A directory that is being removed is no run.
        let runs = entries.map(name).filter(|name| !name.starts_with("removed-"));
        runs.map(|name| StartEpoch(u64::from_str_radix(&name, 16).unwrap())).collect()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}
