//! Paths of cgroups by id.
//!
//! *In*: the id, which is the inode number of the cgroup's folder. *Out*: its path below the mount point; the id, if it
//! has no folder any more. The tree is read when an id is unknown, at most once a second.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::filter;

/// Minimum time between two walks of the tree.
const WALK_EVERY: Duration = Duration::from_secs(1);
/// Maximum depth of a walk.
const DEPTH_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct CgroupNames {
    paths: HashMap<u64, String>,
    walked: Option<Instant>,
}

impl CgroupNames {
    /// Returns the path of a cgroup: `/system.slice/postgresql.service`; `unknown` for 0.
    pub(super) fn path(&mut self, id: u64) -> String {
        if id == 0 {
            return "unknown".to_owned();
        }
        if !self.paths.contains_key(&id) && self.walked.is_none_or(|walked| walked.elapsed() > WALK_EVERY) {
            self.walked = Some(Instant::now());
            if let Some(root) = filter::cgroup_hierarchy() {
                // The root's id is 1, whatever its inode number.
                self.paths.insert(1, "/".to_owned());
                self.walk(&root, "", DEPTH_MAX);
            }
        }
        self.paths.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    fn walk(&mut self, folder: &Path, path: &str, depth: usize) {
        if depth == 0 {
            return;
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = format!("{path}/{}", entry.file_name().to_string_lossy());
                self.walk(&entry.path(), &path, depth - 1);
                self.paths.insert(entry.ino(), path);
            }
        }
    }
}
