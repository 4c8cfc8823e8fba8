//! A service of blkkin as a process that a test starts, kills and stops; its stderr is in a
//! file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::broker::child::KillOnDrop;
use crate::common;

/// A service process, killed when dropped.
pub(crate) struct Service {
    args: Vec<String>,
    process: KillOnDrop,
    output: PathBuf,
    /// Bytes of output of earlier processes under this name; none before the first restart.
    earlier_output: Option<usize>,
}

impl Service {
    /// Starts `blkkin` with these arguments; its stderr is appended to `NAME.log` in this folder.
    pub(crate) fn start(folder: &Path, name: &str, args: &[&str]) -> Service {
        let output = folder.join(format!("{name}.log"));
        let args = args.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let process = spawn(&args, &output);
        Service { args, process, output, earlier_output: None }
    }

    /// Starts `blkkin` by a changed command, for example with other variables or an inherited
    /// socket. The file has only this process's output, and the service cannot be restarted.
    pub(crate) fn start_with(
        folder: &Path,
        name: &str,
        args: &[&str],
        change: impl FnOnce(Command) -> Command,
    ) -> Service {
        let output = folder.join(format!("{name}.log"));
        fs::write(&output, "").unwrap();
        let process = spawn_with_stderr(change(common::blkkin(args)), &output);
        Service { args: Vec::new(), process, output, earlier_output: None }
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns the output of this process and of earlier ones under this name.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Kills the service with SIGKILL. Returns false if it had already ended successfully.
    pub(crate) fn kill(&mut self) -> bool {
        if self.has_ended() {
            return false;
        }
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
        true
    }

    /// Restarts the service after its end.
    pub(crate) fn restart(&mut self) {
        self.earlier_output = Some(self.output().len());
        self.process = spawn(&self.args, &self.output);
    }

    /// Returns whether the service has ended; it must have ended without an error. One error is
    /// allowed after a restart: a broker may learn of a killed member after its successor joined
    /// under the same name, and then fences the successor (docs/kafka.md). A service manager would
    /// start it again.
    pub(crate) fn has_ended(&mut self) -> bool {
        let ended = self.process.0.try_wait().unwrap();
        ended.is_some_and(|status| {
            let (output, fenced) = (self.output(), "Static consumer fenced");
            let was_fenced =
                self.earlier_output.is_some_and(|earlier_output| output[earlier_output..].contains(fenced));
            if !status.success() && !was_fenced {
                // A list of failures has only the first line.
                let last_line = output.lines().last().unwrap_or_default();
                panic!("{status}; {}; last line: {last_line}\n{output}", faults());
            }
            true
        })
    }

    /// Stops the service with SIGTERM, as a service manager would; returns its status and output.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        if self.process.0.try_wait().unwrap().is_none() {
            // SAFETY: passes numbers only; the process has not been waited for.
            unsafe { libc::kill(self.process.0.id() as libc::pid_t, libc::SIGTERM) };
        }
        self.wait()
    }

    /// Stops the service like [`Service::finish`] and returns its output. Asserts that it ended without an error.
    #[track_caller]
    pub(crate) fn finish_without_error(self) -> String {
        let (status, output) = self.finish();
        assert_eq!(status, Some(0), "{output}");
        output
    }

    /// Waits until the service ends; returns its status and output.
    pub(crate) fn wait(&mut self) -> (Option<i32>, String) {
        let status = self.process.0.wait().unwrap();
        (status.code(), self.output())
    }

    /// Waits until the output contains this text.
    pub(crate) fn wait_for_output(&self, text: &str, time_limit: Duration) {
        let started = Instant::now();
        while !self.output().contains(text) {
            assert!(started.elapsed() < time_limit, "no `{text}` in:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn spawn(args: &[String], output: &Path) -> KillOnDrop {
    assert!(!args.is_empty(), "a service with a changed command cannot be restarted");
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    spawn_with_stderr(common::blkkin(&args), output)
}

fn spawn_with_stderr(mut command: Command, output: &Path) -> KillOnDrop {
    let stderr = fs::OpenOptions::new().append(true).create(true).open(output).unwrap();
    KillOnDrop(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap())
}

/// Returns the last two lines of the kernel's log about memory faults, of any process.
fn faults() -> String {
    let log = kernel_log();
    let is_fault = |line: &&str| line.contains("segfault at") || line.contains("general protection");
    let faults = log.lines().filter(is_fault).collect::<Vec<_>>();
    format!("faults in the kernel's log: {:?}", &faults[faults.len().saturating_sub(2)..])
}

/// Returns the kernel's log, empty if it cannot be read.
pub(crate) fn kernel_log() -> String {
    let log = Command::new("dmesg").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&log).into_owned()
}
