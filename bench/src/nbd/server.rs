//! The server as a process of its own, and what fio asks of it.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use super::Way;
use crate::affinity;

const READY_WITHIN: Duration = Duration::from_secs(10);
/// A second, of a server that keeps not all.
pub(super) const ROOTS: u32 = 1_000;
const LOOK_EVERY: Duration = Duration::from_millis(2);

pub(super) struct Server {
    folder: TempDir,
    process: Child,
}

/// What came of asking it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) requests: u64,
    /// As long as it was asked.
    pub(super) wall: Duration,
    /// Processor time of the server meanwhile.
    pub(super) server: Duration,
    /// µs; not a number where nobody measured it.
    pub(super) p99: f64,
}

impl Server {
    /// On these CPUs, in this way.
    pub(super) fn start(program: &Path, file: &Path, cpus: &[usize], way: Way) -> Result<Server> {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let mut command = Command::new(program);
        command.arg(file).arg("--unix").arg(socket(folder.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.env_remove("BLKKIN_UST").env_remove("BLKKIN_UST_ROOTS");
        match way {
            // It says that it is not traced.
            Way::Ignorant => command.env("BLKKIN_UST", "0").stderr(Stdio::null()),
            Way::Sampled => command.env("BLKKIN_UST_ROOTS", ROOTS.to_string()),
            Way::Stopped | Way::Traced => &mut command,
        };
        let cpus = cpus.to_vec();
        // SAFETY: between fork and exec `pin` makes a system call and nothing else: it allocates nothing.
        unsafe { command.pre_exec(move || affinity::pin(&cpus)) };
        let process = command.spawn().context("the server cannot be started")?;
        let mut server = Server { folder, process };
        let begun = Instant::now();
        // It listens once LTTng knows it.
        while !server.socket().exists() {
            if server.process.try_wait()?.is_some() || begun.elapsed() > READY_WITHIN {
                bail!("the server does not listen");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(server)
    }

    pub(super) fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    /// As many as fio asks for with 16 in flight, for so long.
    pub(super) fn ask(&self, length: Duration) -> Result<Asked> {
        let output = self.folder.path().join("fio.json");
        let mut fio = Command::new("fio");
        fio.args(["--name=x", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=16", "--thread"]);
        fio.args(["--time_based", "--norandommap", "--output-format=json"]);
        fio.arg(format!("--runtime={}ms", length.as_millis())).arg(format!("--output={}", output.display()));
        fio.arg(format!("--uri=nbd+unix:///?socket={}", self.socket().display()));
        let before = self.processor_time()?;
        let done = fio.stdin(Stdio::null()).output().context("fio is not installed")?;
        let server = self.processor_time()?.saturating_sub(before);
        if !done.status.success() {
            bail!("fio: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        let said = fs::read_to_string(&output).context("fio wrote nothing")?;
        let begin = said.find('{').context("fio wrote no JSON")?;
        let told: Value = serde_json::from_str(&said[begin..]).context("fio wrote no JSON")?;
        let read = &told["jobs"][0]["read"];
        let number = |value: &Value| value.as_f64().context("fio's JSON lacks a number");
        Ok(Asked {
            requests: read["total_ios"].as_u64().context("fio's JSON lacks a number")?,
            wall: Duration::from_secs_f64(number(&read["runtime"])? / 1e3),
            server,
            p99: number(&read["clat_ns"]["percentile"]["99.000000"])? / 1e3,
        })
    }

    /// Of all its threads, those that have ended too, in ns.
    pub(super) fn processor_time(&self) -> Result<Duration> {
        let mut clock = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both places are ours, and the child was not waited for, so the number is still its own.
        let failed = unsafe {
            libc::clock_getcpuclockid(self.process.id() as libc::pid_t, &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        if failed {
            bail!("the server's processor time cannot be read");
        }
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Lets it end what is under way.
    pub(super) fn stop(mut self) -> Result<()> {
        // SAFETY: a child of ours that nobody has waited for, so the number is still its own.
        if unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM) } != 0 {
            return Err(io::Error::last_os_error()).context("cannot end the server");
        }
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Of one that has ended both fail.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}
