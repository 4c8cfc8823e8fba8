//! `--cgroup`: a folder of the default hierarchy, whose inode number is the cgroup's id (what
//! `bpf_get_current_cgroup_id` gives), or that id.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkkin_wire::ids::CgroupId;

use crate::failure::Failure;

/// The cgroup that a word names.
pub(crate) fn cgroup(word: &str) -> Result<CgroupId, Failure> {
    if let Ok(id) = word.parse() {
        return Ok(CgroupId(id));
    }
    let root = hierarchy(word)?;
    let folder = folder(&root, word);
    let metadata = fs::metadata(&folder).map_err(|error| {
        let remedy = format!("a folder below {} (systemd-cgls shows them)", root.display());
        Failure::usage(format!("unknown cgroup `{word}`"), format!("{}: {error}", folder.display()), remedy)
    })?;
    Ok(CgroupId(metadata.ino()))
}

/// Where the hierarchy is that this cgroup is looked up in.
pub(crate) fn hierarchy(word: &str) -> Result<PathBuf, Failure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    default_hierarchy(&mounts).ok_or_else(|| {
        Failure::usage(
            format!("cannot look up cgroup `{word}`"),
            "the default hierarchy (cgroup2) is not mounted here, and the older ones are not followed",
            "mount -t cgroup2 none /sys/fs/cgroup, or --tree PID",
        )
    })
}

/// Where cgroup2 is mounted: on many machines /sys/fs/cgroup, on those with the older hierarchies below it.
/// A line is `36 35 98:0 /root /mount/point options … - type source options` (proc_pid_mountinfo(5)).
fn default_hierarchy(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?;
        (filesystem.split(' ').next() == Some("cgroup2")).then(|| PathBuf::from(point))
    })
}

/// As /proc/PID/cgroup writes it (`/system.slice/x.service`), relative to the hierarchy, or the folder itself.
fn folder(root: &Path, word: &str) -> PathBuf {
    let path = Path::new(word);
    if path.starts_with(root) { path.to_owned() } else { root.join(word.trim_start_matches('/')) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn finds_the_default_hierarchy_beside_the_older_ones() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw shared:3 - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(default_hierarchy(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(default_hierarchy("a - b"), None);
    }

    #[test]
    fn takes_a_path_in_each_way_that_people_write_it() {
        let root = Path::new("/sys/fs/cgroup");
        for word in ["a.slice/b", "/a.slice/b", "/sys/fs/cgroup/a.slice/b"] {
            assert_eq!(folder(root, word), Path::new("/sys/fs/cgroup/a.slice/b"));
        }
    }

    #[test]
    fn an_id_is_taken_as_it_is_and_an_unknown_name_refused() {
        assert_eq!(cgroup("4711").unwrap(), CgroupId(4711));
        assert!(cgroup("no/such/group").unwrap_err().what.contains("no/such/group"));
    }
}
