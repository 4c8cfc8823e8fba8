//! The binary at work beside a test, and what of it is in the kernel.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::blkkin;

/// What the kernel may take to do what it has promised (an RCU grace period, an exit); beyond it, it does not.
/// Emulated on a busy machine, a start alone takes ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// `blkkin trace`, attached, until it is told to end. Its report is JSON.
pub(crate) struct Live {
    process: Child,
    report: PathBuf,
}

impl Live {
    /// Starts it, and waits until it traces.
    pub(crate) fn trace(what: &[&str], report: PathBuf) -> Live {
        Live::start(blkkin(&["trace"]).args(what), report)
    }

    /// The same by a command of one's own, which ends in `trace` and what follows it.
    pub(crate) fn start(command: &mut Command, report: PathBuf) -> Live {
        command.arg(format!("--json={}", report.display()));
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        let live = Live { process, report };
        live.wait_until_at_work();
        live
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Asks it to end, as Ctrl-C would; its report. Not by SIGINT: who runs these tests in the background may have it
    /// ignored, and that is inherited.
    pub(crate) fn finish(mut self) -> Value {
        self.send(libc::SIGTERM);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
        serde_json::from_str(&fs::read_to_string(&self.report).unwrap()).unwrap()
    }

    /// Kills it.
    pub(crate) fn kill(mut self) -> ExitStatus {
        self.process.kill().unwrap();
        self.process.wait().unwrap()
    }

    fn send(&self, signal: libc::c_int) {
        // SAFETY: numbers only; the process has not been waited for.
        unsafe { libc::kill(self.process.id() as libc::pid_t, signal) };
    }

    /// The thread that drains is the last thing that it starts: by then its probes are attached and it listens to
    /// signals.
    fn wait_until_at_work(&self) {
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

impl Drop for Live {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Asks until it is so, or there is no hope.
pub(crate) fn eventually(mut so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if so() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
