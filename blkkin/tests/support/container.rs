//! A container as a runtime makes one for an image: its root file system, the machine's processes, and of root's rights those
//! that it is given. Of the machine's devices it has those that every runtime gives (OCI runtime specification, "Default Devices").
//!
//! Mounts are in a namespace of the process's own and go with it. Capabilities are taken out of the bounding set before exec,
//! which is how a container's root gets fewer: what it executes has what is left.

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

/// What is started in it has these.
pub(crate) struct Container {
    pub(crate) root: PathBuf,
    /// Of the machine, and where they are in the container; a file or a folder.
    pub(crate) mounts: Vec<(PathBuf, &'static str)>,
    pub(crate) capabilities: Vec<i32>,
}

impl Container {
    /// `program` of the container, to be given its words and started.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut steps = Vec::new();
        let place = |name: &str| self.root.join(name.trim_start_matches('/'));
        for (kind, name) in [("proc", "proc"), ("sysfs", "sys")] {
            fs::create_dir_all(place(name)).unwrap();
            steps.push((c_text(kind), c_path(&place(name)), c_text(kind), libc::MS_RDONLY));
        }
        let devices = DEVICES.map(|device| (PathBuf::from(device), device));
        for (from, to) in self.mounts.iter().chain(&devices) {
            let to = place(to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            if from.is_dir() {
                fs::create_dir_all(&to).unwrap();
            } else {
                fs::write(&to, "").unwrap();
            }
            steps.push((c_path(from), c_path(&to), c_text(""), libc::MS_BIND));
        }
        let (root, keep) = (c_path(&self.root), self.capabilities.clone());
        let mut command = Command::new(program);
        command.env_clear();
        // SAFETY: system calls alone, on memory that was made before the fork.
        unsafe { command.pre_exec(move || enter(&steps, &root, &keep)) };
        command
    }
}

type Step = (CString, CString, CString, libc::c_ulong);

fn enter(steps: &[Step], root: &CString, keep: &[i32]) -> io::Result<()> {
    let done = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let null = std::ptr::null();
    // SAFETY: all pointers are to C strings of the caller's, or null where that is allowed.
    unsafe {
        done(libc::unshare(libc::CLONE_NEWNS))?;
        done(libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_PRIVATE, null.cast()))?;
        for (from, to, kind, flags) in steps {
            done(libc::mount(from.as_ptr(), to.as_ptr(), kind.as_ptr(), *flags, null.cast()))?;
        }
        done(libc::chroot(root.as_ptr()))?;
        done(libc::chdir(c"/".as_ptr()))?;
        for number in (0..=LAST).filter(|number| !keep.contains(number)) {
            done(libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0))?;
        }
        done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}
