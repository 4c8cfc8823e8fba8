//! A memory limit for processes of a test: a cgroup of their own, removed when dropped.
//!
//! Pages that they write count, so the kernel must write them back to make room.

use std::fs;
use std::path::{Path, PathBuf};

use blkkin_wire::ids::Pid;

/// Cgroup with a limit.
pub(crate) struct MemoryLimit(PathBuf);

impl MemoryLimit {
    /// Creates the cgroup, by the first or the second interface of the kernel.
    pub(crate) fn new(bytes: u64) -> Result<MemoryLimit, String> {
        let name = format!("blkkin-test-{}", std::process::id());
        let interfaces =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (root, file) in interfaces {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let limit = MemoryLimit(folder);
            if fs::write(limit.0.join(file), bytes.to_string()).is_ok() {
                return Ok(limit);
            }
        }
        Err("this machine has no memory cgroups".to_owned())
    }

    /// Moves a process into the cgroup.
    pub(crate) fn add(&self, pid: Pid) {
        fs::write(self.0.join("cgroup.procs"), pid.0.to_string()).unwrap();
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // An ended process leaves its cgroup a moment later.
        let removed = (0..100).any(|_| {
            let removed = fs::remove_dir(&self.0).is_ok();
            if !removed {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            removed
        });
        assert!(removed || std::thread::panicking(), "cannot remove {}", self.0.display());
    }
}
