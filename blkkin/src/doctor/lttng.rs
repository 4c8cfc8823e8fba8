//! Checks LTTng, for `--ust`, and its resources for many daemons.
//!
//! *In*: the installed tools, whether the relay can have a network of its own, a running session
//! daemon, its descriptor limit, and the space for rings. *Out*: one check. None of its results prevents tracing.
//!
//! A daemon that blkkin starts gets as many descriptors as allowed
//! (`blkkin_ust_bridge::session::lttng_daemons`).
//!
//! Resources: a session daemon holds [`DESCRIPTORS`] descriptors for each registered process (LTTng
//! 2.13). Each user with traced processes has one ring per CPU, in /dev/shm.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blkkin_ust_bridge::session::lttng_daemons::FILES_MAX;
use blkkin_ust_bridge::session::private_network::PrivateNetwork;
use blkkin_ust_bridge::session::supervisor::SessionConfig;

use super::check::{Check, CheckStatus};

const NAME: &str = "daemons (--ust)";
const DESCRIPTORS: u64 = 6;
/// Descriptors of the session daemon itself and its consumers.
const OWN: u64 = 80;
/// Minimum number of instrumented processes on a node.
const PROCESSES: u64 = 300;

/// Checks LTTng.
pub(super) fn check(root: &Path) -> Check {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has = |name: &&str| !std::env::split_paths(&paths).any(|folder| folder.join(name).is_file());
    let missing: Vec<&str> = ["lttng", "lttng-sessiond", "lttng-relayd"].into_iter().filter(has).collect();
    if !missing.is_empty() {
        let found =
            format!("unavailable: LTTng is not installed (no {}; Debian: lttng-tools)", missing.join(", "));
        return Check::new(NAME, CheckStatus::Ok, found);
    }
    if let Err(error) = PrivateNetwork::create() {
        let found = format!("unavailable: lttng-relayd cannot have a network of its own: {error}");
        return Check::new(NAME, CheckStatus::Partial, found).remedy("sysctl user.max_user_namespaces=1000");
    }
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    judge(session_daemon(root), files_max(), free_bytes(&root.join("dev/shm")), cpus)
}

fn judge(daemon: Option<Limit>, files_max: u64, free_bytes: Option<u64>, cpus: u64) -> Check {
    let plan = SessionConfig::default();
    let rings = plan.subbuf_size * u64::from(plan.num_subbuf) * cpus;
    let mib = |bytes: u64| bytes >> 20;
    if let Some(free_bytes) = free_bytes.filter(|free_bytes| *free_bytes < rings) {
        let found =
            format!("/dev/shm has {} MiB free; the rings of one user take {}", mib(free_bytes), mib(rings));
        let remedy = format!("mount -o remount,size={}M /dev/shm", mib(rings) * 4);
        return Check::new(NAME, CheckStatus::Partial, found).remedy(remedy);
    }
    let users = free_bytes
        .map(|free_bytes| format!("/dev/shm has room for the rings of {} users", free_bytes / rings));
    let users = users.unwrap_or_else(|| "free space for rings is unknown".to_owned());
    let Limit { descriptors, used } = daemon.unwrap_or(Limit { descriptors: files_max, used: 0 });
    let processes = descriptors.saturating_sub(used.max(OWN)) / DESCRIPTORS;
    let needed = (used.max(OWN) + PROCESSES * DESCRIPTORS).next_power_of_two();
    let (found, remedy) = match daemon {
        Some(_) => (
            format!("a session daemon runs, with descriptors for {processes} more processes; {users}"),
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
        return Check::new(NAME, CheckStatus::Ok, found);
    }
    Check::new(NAME, CheckStatus::Partial, found).remedy(remedy)
}

/// Returns the descriptor limit of a daemon started here: the hard limit, up to blkkin's maximum.
fn files_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes into the structure, which outlives it.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if rc == 0 { limit.rlim_max.min(FILES_MAX).max(limit.rlim_cur) } else { FILES_MAX }
}

/// The descriptor limit of a session daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    descriptors: u64,
    used: u64,
}

/// Finds root's session daemon, else any.
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

/// Parses the soft limit (proc(5), /proc/PID/limits).
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_ascii_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

/// Returns the free bytes of a file system.
fn free_bytes(folder: &Path) -> Option<u64> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: zeros are a valid statvfs; the path ends with a NUL and outlives the call, which
    // writes only into the structure.
    let (rc, found) = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut found), found)
    };
    (rc == 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_shm_and_low_limit_are_reported_with_a_remedy() {
        let fits = judge(Some(Limit { descriptors: 1 << 20, used: 100 }), 1024, Some(64 << 20), 2);
        assert_eq!(fits.status, CheckStatus::Ok);
        assert!(fits.found.contains("rings of 8 users"), "{fits:?}");
        let small = judge(None, 1 << 20, Some(4 << 20), 2);
        assert_eq!(
            (small.status, &*small.remedy),
            (CheckStatus::Partial, "mount -o remount,size=32M /dev/shm")
        );
        // The usual soft limit of a daemon started by hand.
        let low = judge(Some(Limit { descriptors: 1024, used: 40 }), 1 << 20, Some(64 << 20), 2);
        assert_eq!((low.status, &*low.remedy), (CheckStatus::Partial, "LimitNOFILE=2048 for lttng-sessiond"));
        assert!(low.found.contains("for 157 more processes"), "{low:?}");
        // A daemon started here gets the hard limit.
        let check = judge(None, 4096, Some(64 << 20), 2);
        assert_eq!(check.status, CheckStatus::Ok);
        assert!(check.found.contains("starts one, with descriptors for 669 processes;"), "{check:?}");
        assert_eq!(&*judge(None, 1024, Some(64 << 20), 2).remedy, "ulimit -Hn 2048");
    }

    #[test]
    fn limit_is_read_from_the_session_daemon() {
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
    fn free_bytes_of_an_existing_folder_are_known() {
        assert!(free_bytes(Path::new("/")).is_some());
        assert_eq!(free_bytes(Path::new("/none/such")), None);
    }
}
