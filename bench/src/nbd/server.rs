//! Server process.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::Instrumentation;
use crate::affinity;
use crate::broker::child::KillOnDrop;
use crate::process;

const READY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Server {
    folder: TempDir,
    process: KillOnDrop,
}

/// Result of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestStats {
    pub(super) requests: u64,
    /// Wall time of the requests.
    pub(super) wall: Duration,
    /// Processor time of the server in that time.
    pub(super) server: Duration,
}

impl Server {
    /// Starts the server in this mode.
    pub(super) fn start(program: &Path, file: &Path, mode: Instrumentation) -> Result<Server> {
        Server::run(|socket| {
            let mut command = Command::new(program);
            command.arg(file).arg("--unix").arg(socket);
            command.env_remove("BLKKIN_UST").env_remove("BLKKIN_UST_ROOTS");
            match mode {
                // The server prints that it is not traced.
                Instrumentation::Disabled => command.env("BLKKIN_UST", "0").stderr(Stdio::null()),
                Instrumentation::Unlimited => command.env("BLKKIN_UST_ROOTS", "0"),
                Instrumentation::Inactive | Instrumentation::Sampled => &mut command,
            };
            command
        })
    }

    /// Starts a server of the socket on its CPU, and waits until it listens.
    pub(super) fn run(command: impl FnOnce(&Path) -> Command) -> Result<Server> {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let socket = socket(folder.path());
        let mut command = command(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let cpus = [affinity::load_cpu()];
        // SAFETY: between fork and exec `pin` makes a system call and allocates nothing.
        unsafe { command.pre_exec(move || affinity::pin(&cpus)) };
        let name = command.get_program().to_string_lossy().into_owned();
        let mut process = KillOnDrop(command.spawn().with_context(|| format!("cannot start {name}"))?);
        // The server listens after its registration with LTTng.
        process::wait_until(&mut process.0, READY_TIMEOUT, "the server does not listen", || socket.exists())?;
        Ok(Server { folder, process })
    }

    pub(super) fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    /// Returns the processor time of all threads, ended ones included, in ns.
    pub(super) fn processor_time(&self) -> Result<Duration> {
        let mut clock = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both variables are local, and the child was not waited for, so its pid is not
        // reused.
        let failed = unsafe {
            libc::clock_getcpuclockid(self.process.0.id() as libc::pid_t, &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        if failed {
            bail!("the server's processor time cannot be read");
        }
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Stops the server after the requests in flight.
    pub(super) fn stop(mut self) -> Result<()> {
        process::signal(&self.process.0, libc::SIGTERM)?;
        self.process.0.wait()?;
        Ok(())
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}
