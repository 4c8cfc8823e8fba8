//! A container as a runtime makes it for an image: the image's root file system, the machine's
//! processes, and a chosen set of root's capabilities. Its devices are those that every runtime
//! provides (OCI runtime specification, "Default Devices").
//!
//! Mounts are in the process's own mount namespace and end with it. Capabilities are dropped from
//! the bounding set before exec: a program that the container's root executes has only the rest.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Capabilities by their numbers (include/uapi/linux/capability.h).
pub(crate) const SYSLOG: i32 = 34;
pub(crate) const PERFMON: i32 = 38;
pub(crate) const BPF: i32 = 39;
pub(crate) const SYS_NICE: i32 = 23;
pub(crate) const SYS_PTRACE: i32 = 19;
const LAST: i32 = 40;
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Root, mounts and capabilities of the processes that are started in the container.
pub(crate) struct Container {
    pub(crate) root: PathBuf,
    /// Files or folders of the machine, and their paths in the container.
    pub(crate) mounts: Vec<(PathBuf, &'static str)>,
    pub(crate) capabilities: Vec<i32>,
}

impl Container {
    /// Returns a command that executes `program` in the container.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut steps = Vec::new();
        let in_root = |name: &str| self.root.join(name.trim_start_matches('/'));
        for (kind, name) in [("proc", "proc"), ("sysfs", "sys")] {
            fs::create_dir_all(in_root(name)).unwrap();
            steps.push((c_string(kind), c_path(&in_root(name)), c_string(kind), libc::MS_RDONLY));
        }
        let devices = DEVICES.map(|device| (PathBuf::from(device), device));
        for (source, target) in self.mounts.iter().chain(&devices) {
            let target = in_root(target);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            if source.is_dir() {
                fs::create_dir_all(&target).unwrap();
            } else {
                fs::write(&target, "").unwrap();
            }
            steps.push((c_path(source), c_path(&target), c_string(""), libc::MS_BIND));
        }
        let (root, capabilities) = (c_path(&self.root), self.capabilities.clone());
        let mut command = Command::new(program);
        command.env_clear();
        // SAFETY: makes only system calls, on memory that was allocated before the fork.
        unsafe { command.pre_exec(move || enter(&steps, &root, &capabilities)) };
        command
    }
}

type Step = (CString, CString, CString, libc::c_ulong);

fn enter(steps: &[Step], root: &CString, capabilities: &[i32]) -> io::Result<()> {
    let check = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let null = std::ptr::null();
    // SAFETY: all pointers are to C strings of the caller, or null where that is allowed.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_PRIVATE, null.cast()))?;
        for (source, target, kind, flags) in steps {
            check(libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), *flags, null.cast()))?;
        }
        check(libc::chroot(root.as_ptr()))?;
        check(libc::chdir(c"/".as_ptr()))?;
        for number in (0..=LAST).filter(|number| !capabilities.contains(number)) {
            check(libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0))?;
        }
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}
