//! Servers and blkkin services that run as long as a task needs them.
//!
//! *In*: a command. *Out*: a running process with its output in a log file. *Invariant*: the
//! process ends with the task. On drop it receives SIGTERM, and SIGKILL after a timeout or an
//! interrupt, by its own pid. The kernel kills it if the task is killed (`setpriv --pdeathsig`).
//! Each process has its own process group, so Ctrl-C at the terminal reaches only the task, which
//! ends its servers in order.

mod kafka;
#[path = "../../../bus/tests/support/single_broker.rs"]
mod single_broker;
mod zipkin;

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt;
use crate::shell;

pub(crate) use kafka::{Kafka, archive_classes};
pub(crate) use zipkin::Zipkin;

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit of a start: ten times the slowest start on two slow cores.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// Time between SIGTERM and SIGKILL: an agent needs up to this time to send its last records.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Process that belongs to the task.
pub(crate) struct Process {
    name: String,
    child: Child,
    log_path: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `folder/name.log`.
    pub(crate) fn start(name: &str, command: &Command, folder: &Path) -> Result<Self> {
        let log_path = folder.join(format!("{name}.log"));
        let log = File::create(&log_path).with_context(|| format!("cannot make {}", log_path.display()))?;
        let mut wrapped = shell::wrapped("setpriv", &["--pdeathsig", "KILL", "--"], command);
        // Cargo sets this variable for build scripts; a program would search its libraries there
        // first.
        wrapped.env_remove("LD_LIBRARY_PATH").process_group(0);
        wrapped.stdin(Stdio::null()).stderr(log.try_clone().context("cannot share a file")?).stdout(log);
        let child = wrapped.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log_path })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the output so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log_path).unwrap_or_default()
    }

    /// Waits until the output contains `text`.
    pub(crate) fn wait_for_log(&mut self, text: &str) -> Result<()> {
        let log_path = self.log_path.clone();
        self.wait_until(text, || fs::read_to_string(&log_path).is_ok_and(|log| log.contains(text)))
    }

    /// Waits until `condition` is true. An error if the process ends before, or after
    /// [`START_TIMEOUT`].
    pub(crate) fn wait_until(&mut self, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !condition() {
            interrupt::check()?;
            if let Some(status) = self.child.try_wait().context("cannot wait")? {
                bail!("{} ended ({status}): {}", self.name, self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("{} is not up after {START_TIMEOUT:?} ({what}): {}", self.name, self.log_tail());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns whether the process is running.
    pub(crate) fn is_up(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().and_then(|()| self.child.wait().map(drop)).context("cannot kill")
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub(crate) fn finish(&mut self) -> Result<ExitStatus> {
        self.terminate();
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        loop {
            match self.child.try_wait().context("cannot wait")? {
                Some(status) => return Ok(status),
                None if Instant::now() > deadline => {
                    self.kill()?;
                    bail!("{} did not end within {SHUTDOWN_TIMEOUT:?}: {}", self.name, self.log_tail());
                }
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Sends SIGTERM. The pid cannot be reused until the process has been waited for.
    pub(crate) fn terminate(&mut self) {
        if self.is_up() {
            // A process that ended in the meantime needs no signal.
            let _ =
                Command::new("kill").arg("-TERM").arg(self.pid().to_string()).stderr(Stdio::null()).status();
        }
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n  ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_up() {
            return;
        }
        // After Ctrl-C the user does not wait for orderly shutdowns.
        let ended = if interrupt::received() { self.kill() } else { self.finish().map(drop) };
        if let Err(error) = ended {
            eprintln!("{error:#}");
        }
    }
}

/// Returns different ports that are free now.
fn free_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    let listeners: [_; N] = std::array::from_fn(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener.and_then(|listener| listener.local_addr()).context("no free port")?;
    }
    Ok(ports)
}

/// Returns a port that is free now.
pub(crate) fn free_port() -> Result<SocketAddr> {
    free_ports::<1>().map(|[port]| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("blkkin-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn process_logs_and_ends_on_sigterm() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"]);
        let mut process = Process::start("writer", &command, &folder()).expect("sh");
        process.wait_for_log("up").expect("the process prints it");
        assert!(process.is_up());
        assert_eq!(process.finish().expect("it ends").code(), Some(7));
        assert!(process.log().contains("bye") && !process.is_up());
    }

    #[test]
    fn early_exit_is_an_error_with_log_tail() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room >&2; exit 3"]);
        let mut process = Process::start("early", &command, &folder()).expect("sh");
        let error = process.wait_for_log("up").expect_err("it ends").to_string();
        assert!(error.contains("early") && error.contains("no room"), "{error}");
    }
}
