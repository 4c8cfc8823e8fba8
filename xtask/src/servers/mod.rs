//! Real servers and services of blkkin's for as long as a task needs them.
//!
//! *In*: what to start. *Out*: a process that is up, what it says in a file. *Invariant*: it ends with the task, however that
//! ends: asked to when it is dropped and killed where that does not help or nobody waits, by its own id; and killed by the kernel where the
//! task itself is killed (`setpriv --pdeathsig`). Ctrl-C at the terminal is the task's alone, which ends its servers in order:
//! each has a process group of its own.

mod kafka;
mod zipkin;

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt;

pub(crate) use kafka::Kafka;
pub(crate) use zipkin::Zipkin;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// Ten times what the slowest start takes on two slow cores.
const PATIENCE: Duration = Duration::from_secs(90);
/// From SIGTERM to SIGKILL: an agent gives its last records this long.
const FAREWELL: Duration = Duration::from_secs(20);

/// A process of the task's.
pub(crate) struct Process {
    name: String,
    child: Child,
    said: PathBuf,
}

impl Process {
    /// Starts `command`; what it says goes to `folder/name.log`.
    pub(crate) fn start(name: &str, command: &Command, folder: &Path) -> Result<Self> {
        let said = folder.join(format!("{name}.log"));
        let log = File::create(&said).with_context(|| format!("cannot make {}", said.display()))?;
        let mut bound = Command::new("setpriv");
        bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(name, value),
                None => bound.env_remove(name),
            };
        }
        // Cargo's, for build scripts: a program would look for its libraries there first.
        bound.env_remove("LD_LIBRARY_PATH").process_group(0);
        bound.stdin(Stdio::null()).stderr(log.try_clone().context("cannot share a file")?).stdout(log);
        let child = bound.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, said })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All it has said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits until it has said `words`.
    pub(crate) fn wait_for_words(&mut self, words: &str) -> Result<()> {
        let said = self.said.clone();
        self.wait_until(words, || fs::read_to_string(&said).is_ok_and(|said| said.contains(words)))
    }

    /// Waits until `is` so; an error when it ends before, or takes too long.
    pub(crate) fn wait_until(&mut self, what: &str, is: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is() {
            interrupt::check()?;
            if let Some(status) = self.child.try_wait().context("cannot wait")? {
                bail!("{} ended ({status}): {}", self.name, self.last_words());
            }
            if Instant::now() > deadline {
                bail!("{} is not up after {PATIENCE:?} ({what}): {}", self.name, self.last_words());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Whether it runs still.
    pub(crate) fn is_up(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL, at once.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().and_then(|()| self.child.wait().map(drop)).context("cannot kill")
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn finish(&mut self) -> Result<ExitStatus> {
        self.ask_to_end();
        let deadline = Instant::now() + FAREWELL;
        loop {
            match self.child.try_wait().context("cannot wait")? {
                Some(status) => return Ok(status),
                None if Instant::now() > deadline => {
                    self.kill()?;
                    bail!("{} did not end within {FAREWELL:?}: {}", self.name, self.last_words());
                }
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// SIGTERM. Its id is its own until it has been waited for.
    pub(crate) fn ask_to_end(&mut self) {
        if self.is_up() {
            // One that has ended meanwhile needs no signal.
            let _ =
                Command::new("kill").arg("-TERM").arg(self.pid().to_string()).stderr(Stdio::null()).status();
        }
    }

    fn last_words(&self) -> String {
        let said = self.said();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n  ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_up() {
            return;
        }
        // Who presses Ctrl-C does not wait for farewells.
        let ended = if interrupt::came() { self.kill() } else { self.finish().map(drop) };
        if let Err(error) = ended {
            eprintln!("{error:#}");
        }
    }
}

/// Ports that are free at this moment, each another.
fn free_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    let listeners: [_; N] = std::array::from_fn(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener.and_then(|listener| listener.local_addr()).context("no free port")?;
    }
    Ok(ports)
}

/// A port that is free at this moment.
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
    fn a_process_says_its_words_and_ends_when_asked() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"]);
        let mut process = Process::start("talker", &command, &folder()).expect("sh");
        process.wait_for_words("up").expect("it says so");
        assert!(process.is_up());
        assert_eq!(process.finish().expect("it ends").code(), Some(7));
        assert!(process.said().contains("bye") && !process.is_up());
    }

    #[test]
    fn one_that_ends_too_early_is_an_error_with_its_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room >&2; exit 3"]);
        let mut process = Process::start("early", &command, &folder()).expect("sh");
        let error = process.wait_for_words("up").expect_err("it ends").to_string();
        assert!(error.contains("early") && error.contains("no room"), "{error}");
    }
}
