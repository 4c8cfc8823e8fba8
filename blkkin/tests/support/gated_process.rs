//! Forked processes that wait until the tracer has marked them, then execute one closure or
//! program.
//!
//! A closure's process makes no system call of a start or an exit of its own: no loader, no
//! allocator set-up, no clean-up. So a test compares the recorded calls with the closure's text,
//! call by call.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_wire::ids::Pid;

/// A process that waits at a gate before its first step.
pub(crate) struct GatedProcess {
    pid: libc::pid_t,
    gate: Option<PipeWriter>,
    ended: Option<i32>,
    outputs: Vec<PathBuf>,
}

impl GatedProcess {
    /// Forks a process that executes `body` after the gate opens and exits with its result.
    pub(crate) fn new(body: impl FnOnce() -> i32) -> GatedProcess {
        GatedProcess::fork(|| {}, body)
    }

    /// Forks such a process with a comm that it has already while it waits.
    pub(crate) fn with_name(name: &CStr, body: impl FnOnce() -> i32) -> GatedProcess {
        let set_name = || {
            // SAFETY: the string outlives the call.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        };
        GatedProcess::fork(set_name, body)
    }

    /// Forks a process that waits and then executes a program. Its stdout goes to the file `path`,
    /// its stderr to a file next to it. In one file, lines of different threads could mix.
    pub(crate) fn program<S: AsRef<OsStr>>(args: &[S], path: &Path) -> GatedProcess {
        let mut command = Command::new(&args[0]);
        command.args(&args[1..]);
        let outputs = [path.to_owned(), path.with_extension("stderr")];
        let [output, errors] = outputs.each_ref().map(|path| File::create(path).unwrap());
        let nothing = File::open("/dev/null").unwrap();
        let connect = || {
            for (from, to) in [(&nothing, 0), (&output, 1), (&errors, 2)] {
                // SAFETY: passes numbers only.
                unsafe { libc::dup2(from.as_raw_fd(), to) };
            }
        };
        let mut program = GatedProcess::fork(connect, move || {
            // `exec` returns only if it failed.
            let _ = command.exec();
            127
        });
        program.outputs = outputs.to_vec();
        program
    }

    /// Returns what the program has written to stdout so far, followed by its stderr.
    pub(crate) fn output(&self) -> String {
        let read = |path: &PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        self.outputs.iter().map(read).collect()
    }

    /// Forks; the child executes `prepare` at once and `body` when the gate opens. The child has
    /// one thread and a copy of the memory, so both may use only what does not depend on other
    /// threads.
    fn fork(prepare: impl FnOnce(), body: impl FnOnce() -> i32) -> GatedProcess {
        let (mut closed, gate) = std::io::pipe().unwrap();
        // SAFETY: the child executes the closures and ends by _exit; glibc keeps its allocator
        // usable after fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            drop(gate);
            print_panics();
            prepare();
            wait_at_gate(&mut closed);
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
            // SAFETY: ends the process without the exit handlers of the test process.
            unsafe { libc::_exit(status) };
        }
        GatedProcess { pid, gate: Some(gate), ended: None, outputs: Vec::new() }
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid(self.pid as u32)
    }

    /// Opens the gate.
    pub(crate) fn release(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(b"g").unwrap();
        }
    }

    /// Opens the gate and waits for the exit: returns the status, or 128 plus the signal that
    /// killed the process.
    pub(crate) fn run_to_exit(&mut self) -> i32 {
        self.release();
        if let Some(status) = self.ended {
            return status;
        }
        let mut status = 0;
        // SAFETY: `pid` is a child that has not been waited for.
        let waited = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert_eq!(waited, self.pid);
        let code =
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) };
        self.ended = Some(code);
        code
    }
}

impl Drop for GatedProcess {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // SAFETY: `pid` is a child that has not been waited for.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Blocks until the gate opens; ends the process if the other end is closed instead.
fn wait_at_gate(closed: &mut PipeReader) {
    if closed.read(&mut [0]).unwrap_or(0) == 0 {
        // SAFETY: ends the forked process, as in `fork`.
        unsafe { libc::_exit(126) };
    }
}

/// Writes a panic's message to the terminal at once; a buffer would be lost with the process.
fn print_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let args = format!("in the forked process: {panic}\n");
        // SAFETY: the string outlives the call.
        unsafe { libc::write(2, args.as_ptr().cast(), args.len()) };
    }));
}
