//! Cgroups with block I/O limits (blk-throttle): a throttled bio passes block_bio_queue in a kernel
//! worker, so it has no system call as its parent (docs/limits.md: blk-throttle).
//!
//! *In*: the cgroup mounts, and their limit files, which are world-readable. A file names the
//! limited devices and is empty otherwise (tg_prfill_limit, block/blk-throttle.c). *Out*: one
//! check, or none without such a hierarchy.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use super::check::{Check, CheckStatus};

const NAME: &str = "I/O limits";
/// Maximum number of cgroups to examine, nearest to the root first: 50 ms if each has its four
/// files. Machines with more are rare; the line then mentions it.
const CGROUPS_MAX: usize = 2048;
/// Maximum number of cgroups to name.
const NAMED_MAX: usize = 3;
/// The limit file of cgroup2.
const FILES: [&str; 1] = ["io.max"];
/// The limit files of the older hierarchy.
const FILES_V1: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// Checks all cgroups.
pub(super) fn check(root: &Path) -> Option<Check> {
    check_first(root, CGROUPS_MAX)
}

fn check_first(root: &Path, cgroups_max: usize) -> Option<Check> {
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let hierarchies: Vec<Hierarchy> = hierarchies(&mounts).collect();
    if hierarchies.is_empty() {
        return None;
    }
    let mut found = LimitedCgroups::default();
    hierarchies.iter().for_each(|hierarchy| found.scan(root, hierarchy, cgroups_max));
    Some(judge(&found))
}

fn judge(found: &LimitedCgroups) -> Check {
    let of = if found.truncated { format!("the first {}", found.cgroups) } else { found.cgroups.to_string() };
    if found.limited.is_empty() {
        let status = if found.truncated { CheckStatus::Unknown } else { CheckStatus::Ok };
        return Check::new(NAME, status, format!("none, in {of} cgroups"));
    }
    let named: Vec<&str> = found.limited.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = if found.limited.len() > NAMED_MAX { " …" } else { "" };
    let found = format!(
        "{} of {of} cgroups limit a device ({}{more}): a throttled bio has no system call as its parent",
        found.limited.len(),
        named.join(", ")
    );
    Check::new(NAME, CheckStatus::Partial, found)
        .remedy("blkkin trace --device, which shows throttled bios as kernel work")
}

/// A cgroup hierarchy and its limit files.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    top: PathBuf,
    files: &'static [&'static str],
}

/// Finds the hierarchies. A line is `36 35 98:0 /root /mount/point options … - type source options`
/// (proc_pid_mountinfo(5)).
fn hierarchies(mountinfo: &str) -> impl Iterator<Item = Hierarchy> + '_ {
    mountinfo.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
        let files = match kind {
            "cgroup2" => &FILES[..],
            "cgroup" if options.split(',').any(|option| option == "blkio") => &FILES_V1[..],
            _ => return None,
        };
        Some(Hierarchy { top: mount.split(' ').nth(4)?.into(), files })
    })
}

/// The limited cgroups of all hierarchies.
#[derive(Debug, Default)]
struct LimitedCgroups {
    cgroups: usize,
    limited: Vec<String>,
    /// Some cgroups were not examined.
    truncated: bool,
}

impl LimitedCgroups {
    fn scan(&mut self, root: &Path, hierarchy: &Hierarchy, cgroups_max: usize) {
        let top = root.join(hierarchy.top.strip_prefix("/").unwrap_or(&hierarchy.top));
        let mut waiting = VecDeque::from([top.clone()]);
        while let Some(folder) = waiting.pop_front() {
            if self.cgroups == cgroups_max {
                self.truncated = true;
                return;
            }
            self.cgroups += 1;
            if hierarchy.files.iter().any(|name| is_set(&folder.join(name))) {
                let name = folder.strip_prefix(&top).unwrap_or(&folder);
                self.limited.push(format!("/{}", name.display()));
            }
            let folders = fs::read_dir(&folder).into_iter().flatten().flatten();
            let below = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            // Queue only as many as will be examined, plus one to notice the rest.
            let room = (cgroups_max + 1).saturating_sub(self.cgroups + waiting.len());
            waiting.extend(below.map(|entry| entry.path()).take(room));
        }
    }
}

fn is_set(limits: &Path) -> bool {
    fs::read_to_string(limits).is_ok_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const MOUNTS: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw shared:3 - cgroup cgroup rw,cpu\n\
        33 31 0:30 / /sys/fs/cgroup/blkio rw shared:4 - cgroup cgroup rw,blkio\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        42 31 0:39 / /mnt rw - ext4 /dev/vda rw,blkio\n";

    fn machine() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("proc/self")).unwrap();
        fs::write(temp.path().join("proc/self/mountinfo"), MOUNTS).unwrap();
        for folder in ["blkio/a", "unified/system.slice/db", "unified/user.slice", "cpu"] {
            fs::create_dir_all(temp.path().join("sys/fs/cgroup").join(folder)).unwrap();
        }
        temp
    }

    #[test]
    fn finds_hierarchies_with_limits() {
        let found: Vec<_> = hierarchies(MOUNTS).collect();
        let expected: [(&str, &[&str]); 2] =
            [("/sys/fs/cgroup/blkio", &FILES_V1), ("/sys/fs/cgroup/unified", &FILES)];
        assert_eq!(found, expected.map(|(top, files)| Hierarchy { top: top.into(), files }));
        assert_eq!(hierarchies("a - b\n\n").count(), 0);
        assert_eq!(check(tempfile::tempdir().unwrap().path()), None);
    }

    #[test]
    fn limited_cgroups_are_named() {
        let temp = machine();
        let cgroups = temp.path().join("sys/fs/cgroup");
        fs::write(cgroups.join("unified/user.slice/io.max"), "").unwrap();
        let none = check(temp.path()).unwrap();
        assert_eq!((none.status, none.found.as_str()), (CheckStatus::Ok, "none, in 6 cgroups"));
        fs::write(
            cgroups.join("unified/system.slice/db/io.max"),
            "8:0 rbps=max wbps=1048576 riops=max wiops=max\n",
        )
        .unwrap();
        fs::write(cgroups.join("blkio/a/blkio.throttle.write_iops_device"), "7:1 100\n").unwrap();
        let found = check(temp.path()).unwrap();
        assert_eq!(found.status, CheckStatus::Partial);
        assert!(
            found.found.starts_with("2 of 6 cgroups limit a device (/a, /system.slice/db):"),
            "{}",
            found.found
        );
    }

    #[test]
    fn too_many_cgroups_are_reported_as_unknown() {
        let temp = machine();
        assert_eq!(check_first(temp.path(), 6).unwrap().status, CheckStatus::Ok);
        let found = check_first(temp.path(), 5).unwrap();
        assert_eq!(
            (found.status, found.found.as_str()),
            (CheckStatus::Unknown, "none, in the first 5 cgroups")
        );
    }
}
