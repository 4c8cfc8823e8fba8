//! A mount namespace with its own `/run/lttng`, so that LTTng session daemons of several tests and
//! of the machine do not find each other.
//!
//! A waiting process holds the namespace. Both end when it is dropped, or with the test's process.
//! `/dev/shm` stays shared: LTTng keeps one futex word there, by which waiting programs notice that
//! any session daemon has started and then look for their own.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::tools::tool;
use crate::broker::child::{KillOnDrop, end_with_test};

const HOLD: &str =
    "mkdir -p /run/lttng && mount -t tmpfs tmpfs /run/lttng && echo ready && exec sleep 100000";

/// The namespace, with the process that holds it.
pub(crate) struct LttngNamespace(KillOnDrop);

impl LttngNamespace {
    /// Creates a namespace, or returns why this machine allows none.
    pub(crate) fn new() -> Result<LttngNamespace, String> {
        let mut command = tool("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", HOLD]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = end_with_test(&mut command).spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut namespace = LttngNamespace(KillOnDrop(child));
        let mut line = String::new();
        if let Some(stdout) = namespace.0.0.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let ready = line.trim() == "ready";
        ready.then_some(namespace).ok_or_else(|| "no private mount namespace on this machine".to_owned())
    }

    /// Returns a command that runs `program` in the namespace, in `/`.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = tool("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.0.0.id())).args(["--", program]);
        command
    }

    /// Returns the same command inside the namespace, with its arguments and environment; `nsenter`
    /// executes it in the same process.
    pub(crate) fn enter(&self, command: &Command) -> Command {
        let mut inside = self.command(&command.get_program().to_string_lossy());
        inside.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}
