//! Server process, and its load by fio.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use super::Instrumentation;
use crate::affinity;

const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Sampled roots per second in [`Instrumentation::Sampled`].
pub(super) const ROOTS: u32 = 1_000;
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(super) struct Server {
    folder: TempDir,
    process: Child,
}

/// Result of a run or slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestStats {
    pub(super) requests: u64,
    /// Wall time of the requests.
    pub(super) wall: Duration,
    /// Processor time of the server in that time.
    pub(super) server: Duration,
    /// 99th percentile in µs; NaN if not measured.
    pub(super) p99: f64,
}

impl Server {
    /// Starts the server on these CPUs, in this mode.
    pub(super) fn start(
        program: &Path,
        file: &Path,
        cpus: &[usize],
        mode: Instrumentation,
    ) -> Result<Server> {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let mut command = Command::new(program);
        command.arg(file).arg("--unix").arg(socket(folder.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.env_remove("BLKKIN_UST").env_remove("BLKKIN_UST_ROOTS");
        match mode {
            // The server prints that it is not traced.
            Instrumentation::Disabled => command.env("BLKKIN_UST", "0").stderr(Stdio::null()),
            Instrumentation::Sampled => command.env("BLKKIN_UST_ROOTS", ROOTS.to_string()),
            Instrumentation::Inactive | Instrumentation::Traced => &mut command,
        };
        let cpus = cpus.to_vec();
        // SAFETY: between fork and exec `pin` makes a system call and allocates nothing.
        unsafe { command.pre_exec(move || affinity::pin(&cpus)) };
        let process = command.spawn().context("the server cannot be started")?;
        let mut server = Server { folder, process };
        let started = Instant::now();
        // The server listens after its registration with LTTng.
        while !server.socket().exists() {
            if server.process.try_wait()?.is_some() || started.elapsed() > READY_TIMEOUT {
                bail!("the server does not listen");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    pub(super) fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    /// Runs fio with 16 requests in flight for `length`.
    pub(super) fn run(&self, length: Duration) -> Result<RequestStats> {
        let output = self.folder.path().join("fio.json");
        let mut fio = Command::new("fio");
        fio.args(["--name=x", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=16", "--thread"]);
        fio.args(["--time_based", "--norandommap", "--output-format=json"]);
        fio.arg(format!("--runtime={}ms", length.as_millis())).arg(format!("--output={}", output.display()));
        fio.arg(format!("--uri=nbd+unix:///?socket={}", self.socket().display()));
        let before = self.processor_time()?;
        let run = fio.stdin(Stdio::null()).output().context("fio is not installed")?;
        let server = self.processor_time()?.saturating_sub(before);
        if !run.status.success() {
            bail!("fio: {}", String::from_utf8_lossy(&run.stderr).trim());
        }
        let text = fs::read_to_string(&output).context("fio wrote nothing")?;
        let begin = text.find('{').context("fio wrote no JSON")?;
        let per_request: Value = serde_json::from_str(&text[begin..]).context("fio wrote no JSON")?;
        let read = &per_request["jobs"][0]["read"];
        let number = |value: &Value| value.as_f64().context("fio's JSON lacks a number");
        Ok(RequestStats {
            requests: read["total_ios"].as_u64().context("fio's JSON lacks a number")?,
            wall: Duration::from_secs_f64(number(&read["runtime"])? / 1e3),
            server,
            p99: number(&read["clat_ns"]["percentile"]["99.000000"])? / 1e3,
        })
    }

    /// Returns the processor time of all threads, ended ones included, in ns.
    pub(super) fn processor_time(&self) -> Result<Duration> {
        let mut clock = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both variables are local, and the child was not waited for, so its pid is not
        // reused.
        let failed = unsafe {
            libc::clock_getcpuclockid(self.process.id() as libc::pid_t, &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        if failed {
            bail!("the server's processor time cannot be read");
        }
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Stops the server after the requests in flight.
    pub(super) fn stop(mut self) -> Result<()> {
        // SAFETY: a child that was not waited for, so its pid is not reused.
        if unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM) } != 0 {
            return Err(io::Error::last_os_error()).context("cannot end the server");
        }
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}
