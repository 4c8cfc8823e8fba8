//! `--cgroup`: a folder of the default hierarchy, whose inode number is the cgroup's id (as
//! `bpf_get_current_cgroup_id` returns it), or that id.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkkin_wire::ids::CgroupId;

use crate::error::CliError;

/// Resolves a cgroup.
pub(crate) fn cgroup(name: &str) -> Result<CgroupId, CliError> {
    if let Ok(id) = name.parse() {
        return Ok(CgroupId(id));
    }
    let root = hierarchy(name)?;
    let folder = folder(&root, name);
    let metadata = fs::metadata(&folder).map_err(|error| {
        let remedy = format!("a folder below {} (systemd-cgls shows them)", root.display());
        CliError::usage(format!("unknown cgroup `{name}`"), format!("{}: {error}", folder.display()), remedy)
    })?;
    Ok(CgroupId(metadata.ino()))
}

/// Returns the mount point of the default hierarchy.
pub(crate) fn hierarchy(name: &str) -> Result<PathBuf, CliError> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    default_hierarchy(&mounts).ok_or_else(|| {
        CliError::usage(
            format!("cannot look up cgroup `{name}`"),
            "the default hierarchy (cgroup2) is not mounted here, and the older ones are not supported",
            "mount -t cgroup2 none /sys/fs/cgroup, or --tree PID",
        )
    })
}

/// Finds the mount point of cgroup2: usually /sys/fs/cgroup, below it with the older hierarchies. A
/// line is `36 35 98:0 /root /mount/point options … - type source options` (proc_pid_mountinfo(5)).
fn default_hierarchy(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?;
        (filesystem.split(' ').next() == Some("cgroup2")).then(|| PathBuf::from(point))
    })
}

/// Resolves a path as /proc/PID/cgroup shows it (`/system.slice/x.service`), relative to the
/// hierarchy, or absolute.
fn folder(root: &Path, name: &str) -> PathBuf {
    let path = Path::new(name);
    if path.starts_with(root) { path.to_owned() } else { root.join(name.trim_start_matches('/')) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn finds_the_default_hierarchy_among_older_ones() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw shared:3 - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(default_hierarchy(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(default_hierarchy("a - b"), None);
    }

    #[test]
    fn resolves_all_forms_of_a_path() {
        let root = Path::new("/sys/fs/cgroup");
        for name in ["a.slice/b", "/a.slice/b", "/sys/fs/cgroup/a.slice/b"] {
            assert_eq!(folder(root, name), Path::new("/sys/fs/cgroup/a.slice/b"));
        }
    }

    #[test]
    fn id_is_accepted_and_unknown_name_refused() {
        assert_eq!(cgroup("4711").unwrap(), CgroupId(4711));
        assert!(cgroup("no/such/group").unwrap_err().what.contains("no/such/group"));
    }
}
