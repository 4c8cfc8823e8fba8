//! Cgroups whose block I/O is limited (blk-throttle): a bio that is held back passes block_bio_queue in the kernel's
//! worker that lets it go, and so is tied to no call (docs/limits.md: blk-throttle).
//!
//! *In*: where cgroups are mounted, and their files of limits, which everybody may read. A file names the devices that
//! are limited and is empty otherwise (tg_prfill_limit, block/blk-throttle.c). *Out*: one line, or none where there is
//! no such hierarchy.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use super::check::{Check, Standing};

const NAME: &str = "I/O limits";
/// Cgroups that are looked at, the nearest to the root first: 50 ms where each has its four files. More are rare, and
/// the line then says that some were not.
const CGROUPS_MAX: usize = 2048;
/// Cgroups named in the line.
const NAMED_MAX: usize = 3;
/// cgroup2's file of limits.
const FILES: [&str; 1] = ["io.max"];
/// Those of the older hierarchy.
const FILES_V1: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// One line for all cgroups.
pub(super) fn check(root: &Path) -> Option<Check> {
    check_first(root, CGROUPS_MAX)
}

fn check_first(root: &Path, cgroups_max: usize) -> Option<Check> {
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let hierarchies: Vec<Hierarchy> = hierarchies(&mounts).collect();
    if hierarchies.is_empty() {
        return None;
    }
    let mut seen = Seen::default();
    hierarchies.iter().for_each(|hierarchy| seen.look(root, hierarchy, cgroups_max));
    Some(judge(&seen))
}

fn judge(seen: &Seen) -> Check {
    let of = if seen.more { format!("the first {}", seen.cgroups) } else { seen.cgroups.to_string() };
    if seen.limited.is_empty() {
        let standing = if seen.more { Standing::Unknown } else { Standing::Fine };
        return Check::new(NAME, standing, format!("none, in {of} cgroups"));
    }
    let named: Vec<&str> = seen.limited.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = if seen.limited.len() > NAMED_MAX { " …" } else { "" };
    let found = format!(
        "{} of {of} cgroups limit a device ({}{more}): a bio that the kernel holds back is tied to no call",
        seen.limited.len(),
        named.join(", ")
    );
    Check::new(NAME, Standing::Partly, found)
        .remedy("blkkin trace --device, which shows what was held back as the kernel's own")
}

/// Where cgroups lie, and what their limits are called there.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    top: PathBuf,
    files: &'static [&'static str],
}

/// A line is `36 35 98:0 /root /mount/point options … - type source options` (proc_pid_mountinfo(5)).
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

/// What was found in all hierarchies.
#[derive(Debug, Default)]
struct Seen {
    cgroups: usize,
    limited: Vec<String>,
    /// There are more than were looked at.
    more: bool,
}

impl Seen {
    fn look(&mut self, root: &Path, hierarchy: &Hierarchy, cgroups_max: usize) {
        let top = root.join(hierarchy.top.strip_prefix("/").unwrap_or(&hierarchy.top));
        let mut waiting = VecDeque::from([top.clone()]);
        while let Some(folder) = waiting.pop_front() {
            if self.cgroups == cgroups_max {
                self.more = true;
                return;
            }
            self.cgroups += 1;
            if hierarchy.files.iter().any(|name| is_set(&folder.join(name))) {
                let name = folder.strip_prefix(&top).unwrap_or(&folder);
                self.limited.push(format!("/{}", name.display()));
            }
            let folders = fs::read_dir(&folder).into_iter().flatten().flatten();
            let below = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            // No more wait than will be looked at, one to know that there are more.
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
    fn finds_the_hierarchies_that_limit_devices() {
        let found: Vec<_> = hierarchies(MOUNTS).collect();
        let expected: [(&str, &[&str]); 2] =
            [("/sys/fs/cgroup/blkio", &FILES_V1), ("/sys/fs/cgroup/unified", &FILES)];
        assert_eq!(found, expected.map(|(top, files)| Hierarchy { top: top.into(), files }));
        assert_eq!(hierarchies("a - b\n\n").count(), 0);
        assert_eq!(check(tempfile::tempdir().unwrap().path()), None);
    }

    #[test]
    fn names_the_cgroups_that_are_limited() {
        let temp = machine();
        let cgroups = temp.path().join("sys/fs/cgroup");
        fs::write(cgroups.join("unified/user.slice/io.max"), "").unwrap();
        let none = check(temp.path()).unwrap();
        assert_eq!((none.standing, none.found.as_str()), (Standing::Fine, "none, in 6 cgroups"));
        fs::write(
            cgroups.join("unified/system.slice/db/io.max"),
            "8:0 rbps=max wbps=1048576 riops=max wiops=max\n",
        )
        .unwrap();
        fs::write(cgroups.join("blkio/a/blkio.throttle.write_iops_device"), "7:1 100\n").unwrap();
        let found = check(temp.path()).unwrap();
        assert_eq!(found.standing, Standing::Partly);
        assert!(
            found.found.starts_with("2 of 6 cgroups limit a device (/a, /system.slice/db):"),
            "{}",
            found.found
        );
    }

    #[test]
    fn a_machine_with_too_many_cgroups_is_not_called_free_of_limits() {
        let temp = machine();
        assert_eq!(check_first(temp.path(), 6).unwrap().standing, Standing::Fine);
        let found = check_first(temp.path(), 5).unwrap();
        assert_eq!(
            (found.standing, found.found.as_str()),
            (Standing::Unknown, "none, in the first 5 cgroups")
        );
    }
}
