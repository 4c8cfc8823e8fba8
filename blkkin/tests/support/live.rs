//! A running `blkkin trace` next to a test, and polling of conditions.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::child::KillOnDrop;
use crate::common::blkkin;

/// Limit for what the kernel or a process does soon (an RCU grace period, an exit). Under emulation
/// on a busy machine a start alone takes ten seconds.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A `blkkin trace` that is attached until it is stopped. Its report is JSON.
pub(crate) struct LiveTrace {
    process: KillOnDrop,
    report: PathBuf,
}

impl LiveTrace {
    /// Starts `blkkin trace` and waits until it traces.
    pub(crate) fn trace(args: &[&str], report: PathBuf) -> LiveTrace {
        LiveTrace::start(blkkin(&["trace"]).args(args), report)
    }

    /// Starts a command that ends in `trace` and its arguments.
    pub(crate) fn start(command: &mut Command, report: PathBuf) -> LiveTrace {
        command.arg(format!("--json={}", report.display()));
        let process = KillOnDrop(command.stdout(Stdio::null()).spawn().unwrap());
        let live = LiveTrace { process, report };
        live.wait_until_tracing();
        live
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Stops it with SIGTERM and returns its report. SIGINT may be ignored: a background shell sets
    /// that, and children inherit it.
    pub(crate) fn finish(mut self) -> Value {
        self.send(libc::SIGTERM);
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "{status}");
        serde_json::from_str(&fs::read_to_string(&self.report).unwrap()).unwrap()
    }

    /// Kills it.
    pub(crate) fn kill(mut self) -> ExitStatus {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap()
    }

    fn send(&self, signal: libc::c_int) {
        // SAFETY: passes numbers only; the process has not been waited for.
        unsafe { libc::kill(self.process.0.id() as libc::pid_t, signal) };
    }

    /// Waits for the thread that drains the rings, which starts last: by then all probes are
    /// attached and signals are handled.
    fn wait_until_tracing(&self) {
        let threads = format!("/proc/{}/task", self.pid());
        let drains = || {
            let mut threads = fs::read_dir(&threads).into_iter().flatten().flatten();
            threads.any(|thread| {
                fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "drain")
            })
        };
        assert!(eventually(drains), "blkkin trace did not begin");
    }
}

/// Polls until the condition is true; returns false at the time limit.
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
