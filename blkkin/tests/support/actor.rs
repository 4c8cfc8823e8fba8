//! Tasks that do what they are told and nothing else: forked, and held until the tracer knows them.
//!
//! What the tracer then says can be compared with the closure's own text, call by call: nothing starts up, nothing is
//! loaded, nothing is cleaned up.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_wire::ids::Pid;

/// A process that waits before its first step.
pub(crate) struct Actor {
    pid: libc::pid_t,
    gate: Option<PipeWriter>,
    ended: Option<i32>,
    outputs: Vec<PathBuf>,
}

impl Actor {
    /// Forks a process that will do `act` and end with the status that it gives.
    pub(crate) fn new(act: impl FnOnce() -> i32) -> Actor {
        Actor::fork(|| {}, act)
    }

    /// The same under a name that it has while it waits already.
    pub(crate) fn named(name: &CStr, act: impl FnOnce() -> i32) -> Actor {
        let take_name = || {
            // SAFETY: a string that outlives the call.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        };
        Actor::fork(take_name, act)
    }

    /// The same for a program: the gate's end is its exec. Its output goes to a file, and what it complains of to one beside that: in one
    /// file a complaint would stand in the midst of what another thread says.
    pub(crate) fn program<S: AsRef<OsStr>>(words: &[S], path: &Path) -> Actor {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let outputs = [path.to_owned(), path.with_extension("complaints")];
        let [output, complaints] = outputs.each_ref().map(|path| File::create(path).unwrap());
        let nothing = File::open("/dev/null").unwrap();
        let connect = || {
            for (from, to) in [(&nothing, 0), (&output, 1), (&complaints, 2)] {
                // SAFETY: numbers only.
                unsafe { libc::dup2(from.as_raw_fd(), to) };
            }
        };
        let mut program = Actor::fork(connect, move || {
            // Comes back only if it failed.
            let _ = command.exec();
            127
        });
        program.outputs = outputs.to_vec();
        program
    }

    /// What a program has said so far, and behind it what it has complained of.
    pub(crate) fn said(&self) -> String {
        let read = |path: &PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        self.outputs.iter().map(read).collect()
    }

    /// `prepare` is done at once, `act` when the gate opens. The process has one thread and a copy of everything;
    /// both may use what does not depend on other threads.
    fn fork(prepare: impl FnOnce(), act: impl FnOnce() -> i32) -> Actor {
        let (mut closed, gate) = std::io::pipe().unwrap();
        // SAFETY: the child does what it was given and ends by _exit; glibc keeps its allocator usable in it.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            drop(gate);
            say_panics();
            prepare();
            wait_at(&mut closed);
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(101);
            // SAFETY: ends the process, without what was meant for the test's own end.
            unsafe { libc::_exit(status) };
        }
        Actor { pid, gate: Some(gate), ended: None, outputs: Vec::new() }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid(self.pid as u32)
    }

    /// Lets it go.
    pub(crate) fn release(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(b"g").unwrap();
        }
    }

    /// Lets it go and waits for its end: its status, or 128 and the signal that killed it.
    pub(crate) fn play(&mut self) -> i32 {
        self.release();
        if let Some(status) = self.ended {
            return status;
        }
        let mut status = 0;
        // SAFETY: the number is of a child that nobody has waited for.
        let waited = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert_eq!(waited, self.pid);
        let code =
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) };
        self.ended = Some(code);
        code
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // SAFETY: the number is of a child that nobody has waited for.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Blocks until the gate is opened; ends the process when it never will be.
fn wait_at(closed: &mut PipeReader) {
    if closed.read(&mut [0]).unwrap_or(0) == 0 {
        // SAFETY: as in `Actor::new`.
        unsafe { libc::_exit(126) };
    }
}

/// A panic's words reach the terminal, not a buffer that ends with the process.
fn say_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let words = format!("in the actor: {panic}\n");
        // SAFETY: a string that lives across the call.
        unsafe { libc::write(2, words.as_ptr().cast(), words.len()) };
    }));
}
