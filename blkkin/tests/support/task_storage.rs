//! The kernel's answer to whether a task has state in the task storage of a tracer.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use blkkin_wire::ids::Pid;

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_TYPE_TASK_STORAGE: u32 = 29;

/// Task storage map of a tracer in this process.
pub(crate) struct TaskStorage {
    map: i32,
    value_bytes: usize,
}

/// `union bpf_attr` of a lookup (include/uapi/linux/bpf.h).
#[repr(C)]
struct Lookup {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl TaskStorage {
    /// Finds the map among this process's descriptors. One tracer must run in the process.
    pub(crate) fn of_this_process() -> TaskStorage {
        let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        let found = descriptors.filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            let number = |key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key))?;
                line.trim().parse::<usize>().ok()
            };
            let is_storage = number("map_type:")? == BPF_MAP_TYPE_TASK_STORAGE as usize;
            let map = entry.file_name().to_str()?.parse().ok()?;
            is_storage.then_some(TaskStorage { map, value_bytes: number("value_size:")? })
        });
        // A duplicate descriptor of the same map does as well.
        found.last().expect("a tracer has task storage")
    }

    /// Returns whether the main thread of this process has state.
    pub(crate) fn has_state_of(&self, pid: Pid) -> bool {
        self.has_state(&pidfd(pid.0, 0).unwrap())
    }

    /// Returns whether the calling thread has state; none before Linux 6.9, which cannot address it.
    pub(crate) fn has_state_of_this_thread(&self) -> Option<bool> {
        // SAFETY: no arguments.
        let tid = unsafe { libc::gettid() };
        pidfd(tid as u32, libc::PIDFD_THREAD).ok().map(|thread| self.has_state(&thread))
    }

    fn has_state(&self, task: &OwnedFd) -> bool {
        let (key, mut value) = (task.as_raw_fd(), vec![0u8; self.value_bytes.next_multiple_of(8)]);
        let lookup = Lookup {
            map: self.map as u32,
            reserved: 0,
            key: (&raw const key) as u64,
            value: value.as_mut_ptr() as u64,
            flags: 0,
        };
        // SAFETY: key and value live across the call and are as large as the map's.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, &raw const lookup, size_of::<Lookup>())
        };
        if result == 0 {
            return true;
        }
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
        false
    }
}

fn pidfd(pid: u32, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just returned, owned by no other value.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
