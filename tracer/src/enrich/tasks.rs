//! Marks of traced tasks in the kernel's task storage map.
//!
//! A mark is written through a pidfd, so it cannot hit a task that reused the pid. A command
//! started by blkkin is not marked directly. Its parent's thread is marked *follow on fork*: the
//! kernel side arms the children when they are forked and traces them from their exec on. So the
//! command never runs untraced, and no call of the tracer between fork and exec is attributed to
//! the command.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use blkkin_probe_abi::settings::{TASK_ACTIVE, TASK_FOLLOW_ON_FORK};
use blkkin_wire::ids::Pid;

use crate::error::TracerError;

/// The task storage map, as user space writes it.
#[derive(Debug)]
pub struct TaskMarks {
    map: OwnedFd,
    value_bytes: usize,
}

/// Guard that keeps the thread's mark: while it lives, children of the thread are traced from their
/// exec on.
#[derive(Debug)]
pub struct FollowOnForkGuard<'a> {
    marks: &'a TaskMarks,
    thread: OwnedFd,
}

impl TaskMarks {
    /// Wraps a map whose values have this size and begin with the flags.
    pub fn new(map: BorrowedFd<'_>, value_bytes: usize) -> io::Result<Self> {
        Ok(TaskMarks { map: map.try_clone_to_owned()?, value_bytes })
    }

    /// Marks the calling process's main thread to have its children traced.
    pub fn follow_on_fork(&self) -> Result<FollowOnForkGuard<'_>, TracerError> {
        let pid = std::process::id();
        let thread = pidfd(pid, 0).map_err(|error| mark_error(pid, &error))?;
        self.write(&thread, TASK_FOLLOW_ON_FORK, BPF_ANY).map_err(|error| mark_error(pid, &error))?;
        Ok(FollowOnForkGuard { marks: self, thread })
    }

    /// Marks the threads of a process and of its living descendants; returns their number. An
    /// unmarked thread can clone another during a pass, so passes repeat until one finds no new
    /// thread.
    pub fn mark_tree(&self, pid: Pid) -> Result<usize, TracerError> {
        let mut marked = HashSet::new();
        loop {
            let before = marked.len();
            self.mark_descendants(pid.0, &mut marked)?;
            if marked.is_empty() {
                return Err(TracerError::Mark { pid: pid.0, reason: "no such process".to_owned() });
            }
            if marked.len() == before {
                return Ok(before);
            }
        }
    }

    fn mark_descendants(&self, pid: u32, marked: &mut HashSet<u32>) -> Result<(), TracerError> {
        let mut waiting = vec![pid];
        while let Some(process) = waiting.pop() {
            for thread in numbers(&format!("/proc/{process}/task")) {
                if marked.insert(thread) {
                    self.mark(thread, thread == process).map_err(|error| mark_error(thread, &error))?;
                }
                let children = fs::read_to_string(format!("/proc/{process}/task/{thread}/children"));
                let children = children.unwrap_or_default();
                waiting.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
            }
        }
        Ok(())
    }

    fn mark(&self, thread: u32, leads: bool) -> io::Result<()> {
        let flags = if leads { 0 } else { libc::PIDFD_THREAD };
        match pidfd(thread, flags).and_then(|fd| self.write(&fd, TASK_ACTIVE, BPF_NOEXIST)) {
            // The task has ended meanwhile, or is traced already.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EEXIST)) => Ok(()),
            // PIDFD_THREAD exists since 6.9.
            Err(error) if !leads && error.raw_os_error() == Some(libc::EINVAL) => Err(io::Error::other(
                "this kernel cannot address a single thread (possible since 6.9); start the program with `blkkin run`",
            )),
            other => other,
        }
    }

    fn write(&self, task: &OwnedFd, flags: u32, how: u64) -> io::Result<()> {
        let key = task.as_raw_fd();
        let mut value = vec![0u8; self.value_bytes];
        value[..4].copy_from_slice(&flags.to_ne_bytes());
        element(BPF_MAP_UPDATE_ELEM, self.map.as_raw_fd(), &key, value.as_ptr(), how)
    }
}

impl Drop for FollowOnForkGuard<'_> {
    fn drop(&mut self) {
        let key = self.thread.as_raw_fd();
        // The map may be gone already, and the mark with it.
        let _ = element(BPF_MAP_DELETE_ELEM, self.marks.map.as_raw_fd(), &key, std::ptr::null(), BPF_ANY);
    }
}

const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_ANY: u64 = 0;
/// Keeps state that the fork hook has created meanwhile: the task may be inside a call.
const BPF_NOEXIST: u64 = 1;

/// `union bpf_attr` for the element commands (include/uapi/linux/bpf.h).
#[repr(C)]
struct Element {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn element(command: libc::c_long, map: i32, key: &i32, value: *const u8, flags: u64) -> io::Result<()> {
    let attributes = Element {
        map: map as u32,
        reserved: 0,
        key: std::ptr::from_ref(key) as u64,
        value: value as u64,
        flags,
    };
    // SAFETY: key and value live across the call and are as large as the map's.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const attributes, size_of::<Element>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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

fn numbers(directory: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn mark_error(pid: u32, error: &io::Error) -> TracerError {
    TracerError::Mark { pid, reason: error.to_string() }
}
