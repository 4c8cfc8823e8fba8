//! A room of a test's own, in which root's `/run/lttng` is its own: whoever else uses LTTng on this machine, and what runs in the room,
//! do not find each other. So tests that start session daemons may run beside one another, and beside a machine's own.
//!
//! It is a mount namespace, held by a process that waits; both end when it is dropped, or with the test's process. What is in `/dev/shm`
//! is everybody's: of LTTng that is one word by which programs that wait hear that *a* session daemon has come, and look for theirs.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::tools::tool;

const MAKE: &str =
    "mkdir -p /run/lttng && mount -t tmpfs tmpfs /run/lttng && echo ready && exec sleep 100000";

/// It.
pub(crate) struct Room(Child);

impl Room {
    /// A new one.
    pub(crate) fn make() -> Result<Room, String> {
        let mut command = tool("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", MAKE]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: prctl is async-signal-safe and touches no memory of ours.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut room = Room(child);
        let mut line = String::new();
        if let Some(said) = room.0.stdout.take() {
            let _ = BufReader::new(said).read_line(&mut line);
        }
        let ready = line.trim() == "ready";
        ready.then_some(room).ok_or_else(|| "no mount namespace of its own here".to_owned())
    }

    /// A program that is to run there; in `/`.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = tool("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.0.id())).args(["--", program]);
        command
    }

    /// What was to run here runs there; its process is the same.
    pub(crate) fn moved(&self, command: &Command) -> Command {
        let mut there = self.program(&command.get_program().to_string_lossy());
        there.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        there
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
