//! Whether what daemons say can be heard (`--ust`): LTTng, and what it needs for many of them.
//!
//! *In*: the tools that are installed, a session daemon that runs, its limit of descriptors, and the room for rings. *Out*: one line.
//! Nothing of it keeps blkkin from tracing.
//!
//! A daemon that blkkin starts is given as many descriptors as may be given to it (`blkkin_ust_bridge::session::daemons`).
//!
//! Figures: a session daemon holds [`DESCRIPTORS`] descriptors for each process that it knows (LTTng 2.13), and each user whose
//! processes are heard has a ring for each CPU, in /dev/shm.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blkkin_ust_bridge::session::daemons::FILES_MAX;
use blkkin_ust_bridge::session::keeper::Plan;

use super::check::{Check, Standing};

const NAME: &str = "daemons (--ust)";
const DESCRIPTORS: u64 = 6;
/// The daemon's own, for itself and its consumers.
const OWN: u64 = 80;
/// Daemons on one node that are to be heard at the least.
const PROCESSES: u64 = 300;

/// One line.
pub(super) fn check(root: &Path) -> Check {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has = |name: &&str| !std::env::split_paths(&paths).any(|folder| folder.join(name).is_file());
    let missing: Vec<&str> = ["lttng", "lttng-sessiond", "lttng-relayd"].into_iter().filter(has).collect();
    if !missing.is_empty() {
        let found =
            format!("not heard: LTTng is not installed (no {}; Debian: lttng-tools)", missing.join(", "));
        return Check::new(NAME, Standing::Fine, found);
    }
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    judge(session_daemon(root), files_max(), room(&root.join("dev/shm")), cpus)
}

fn judge(daemon: Option<Limit>, files_max: u64, room: Option<u64>, cpus: u64) -> Check {
    let plan = Plan::default();
    let rings = plan.subbuf_size * u64::from(plan.num_subbuf) * cpus;
    let mib = |bytes: u64| bytes >> 20;
    if let Some(room) = room.filter(|room| *room < rings) {
        let found = format!("/dev/shm has {} MiB free; the rings of one user take {}", mib(room), mib(rings));
        let remedy = format!("mount -o remount,size={}M /dev/shm", mib(rings) * 4);
        return Check::new(NAME, Standing::Partly, found).remedy(remedy);
    }
    let users = room.map(|room| format!("/dev/shm has room for the rings of {} users", room / rings));
    let users = users.unwrap_or_else(|| "room for rings is not known".to_owned());
    let Limit { descriptors, used } = daemon.unwrap_or(Limit { descriptors: files_max, used: 0 });
    let processes = descriptors.saturating_sub(used.max(OWN)) / DESCRIPTORS;
    let needed = (used.max(OWN) + PROCESSES * DESCRIPTORS).next_power_of_two();
    let (found, remedy) = match daemon {
        Some(_) => (
            format!("a session daemon runs, with descriptors for {processes} processes more; {users}"),
            format!("LimitNOFILE={needed} for lttng-sessiond"),
        ),
        None => (
            format!(
                "LTTng is installed; no session daemon runs, so blkkin starts one, with descriptors for {processes} processes; {users}"
            ),
            format!("ulimit -Hn {needed}"),
        ),
    };
    if processes >= PROCESSES {
        return Check::new(NAME, Standing::Fine, found);
    }
    Check::new(NAME, Standing::Partly, found).remedy(remedy)
}

/// What is given to a daemon that is started from here: the hard limit, within ours.
fn files_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes into the structure, which outlives it.
    let said = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if said == 0 { limit.rlim_max.min(FILES_MAX).max(limit.rlim_cur) } else { FILES_MAX }
}

/// Of a session daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    descriptors: u64,
    used: u64,
}

/// That of root, or else any.
fn session_daemon(root: &Path) -> Option<Limit> {
    let entries = fs::read_dir(root.join("proc")).ok()?.flatten().map(|entry| entry.path());
    let is_one = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim_end() == "lttng-sessiond")
    };
    entries.filter(is_one).find_map(|process| {
        let limits = fs::read_to_string(process.join("limits")).ok()?;
        let used = fs::read_dir(process.join("fd")).map_or(0, |entries| entries.count() as u64);
        Some(Limit { descriptors: open_files(&limits)?, used })
    })
}

/// The soft limit (proc(5), /proc/PID/limits).
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_ascii_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

/// Bytes that are free there.
fn room(folder: &Path) -> Option<u64> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zero is a statvfs; the path ends with a nul and outlives the call, which writes only into it.
    let (said, found) = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut found), found)
    };
    (said == 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_shm_and_a_low_limit_are_said_with_what_to_do() {
        let fits = judge(Some(Limit { descriptors: 1 << 20, used: 100 }), 1024, Some(64 << 20), 2);
        assert_eq!(fits.standing, Standing::Fine);
        assert!(fits.found.contains("rings of 8 users"), "{fits:?}");
        let small = judge(None, 1 << 20, Some(4 << 20), 2);
        assert_eq!(
            (small.standing, &*small.remedy),
            (Standing::Partly, "mount -o remount,size=32M /dev/shm")
        );
        // The usual soft limit of a daemon started by hand.
        let low = judge(Some(Limit { descriptors: 1024, used: 40 }), 1 << 20, Some(64 << 20), 2);
        assert_eq!((low.standing, &*low.remedy), (Standing::Partly, "LimitNOFILE=2048 for lttng-sessiond"));
        assert!(low.found.contains("for 157 processes more"), "{low:?}");
        // One that is started here has what may be given.
        let ours = judge(None, 4096, Some(64 << 20), 2);
        assert_eq!(ours.standing, Standing::Fine);
        assert!(ours.found.contains("starts one, with descriptors for 669 processes;"), "{ours:?}");
        assert_eq!(&*judge(None, 1024, Some(64 << 20), 2).remedy, "ulimit -Hn 2048");
    }

    #[test]
    fn the_limit_is_the_session_daemons_own() {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("proc/7");
        fs::create_dir_all(process.join("fd")).unwrap();
        assert_eq!(session_daemon(root.path()), None);
        fs::write(process.join("comm"), "lttng-sessiond\n").unwrap();
        fs::write(process.join("fd/0"), "").unwrap();
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024                 524288               files     \n";
        fs::write(process.join("limits"), limits).unwrap();
        assert_eq!(session_daemon(root.path()), Some(Limit { descriptors: 1024, used: 1 }));
    }

    #[test]
    fn there_is_room_where_there_is_a_folder() {
        assert!(room(Path::new("/")).is_some());
        assert_eq!(room(Path::new("/none/such")), None);
    }
}
