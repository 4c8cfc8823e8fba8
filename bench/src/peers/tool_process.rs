//! Process of a tool: start with its output in files, readiness, and kernel settings.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::tool::{Ready, Switch, sysfs};
use crate::process::{self, WatchedChild};

/// Time limit for a tool to trace; the slowest known one (bcc, which compiles) takes 5 s.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Starts a tool with its output in files, as users would.
pub(super) fn spawn(arguments: &[String], output: &Path) -> Result<Child> {
    let file = |name: &str| File::create(output.join(name)).with_context(|| format!("cannot make {name}"));
    let mut command = Command::new(&arguments[0]);
    command.args(&arguments[1..]).stdin(Stdio::null());
    // Without it, Python buffers whole blocks, and bcc's tools print nothing until they end.
    command.env("PYTHONUNBUFFERED", "1");
    let (events, stderr) = (output.join("events"), file("stderr")?);
    let writes_events_file = arguments.contains(&events.display().to_string());
    let stdout = if writes_events_file { Stdio::null() } else { file("events")?.into() };
    command.stdout(stdout).stderr(stderr);
    command.spawn().with_context(|| format!("cannot start {}", arguments[0]))
}

pub(super) fn wait_until_ready(ready: &Ready, tracer: &WatchedChild, output: &Path) -> Result<()> {
    let started = Instant::now();
    while !is_ready(ready, output) {
        if process::has_ended(tracer.id())? {
            bail!("it ended before it traced");
        }
        if started.elapsed() > READY_TIMEOUT {
            bail!("it did not trace within {} s", READY_TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Waits until ftrace's buffers are empty: events that a reader has not read when it is interrupted
/// are neither seen nor counted. After the time limit the reader is interrupted all the same.
pub(super) fn wait_until_drained() {
    let started = Instant::now();
    while started.elapsed() < READY_TIMEOUT && !buffers_are_empty(Path::new("/sys/kernel/tracing/per_cpu")) {
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn buffers_are_empty(folder: &Path) -> bool {
    let stats = std::fs::read_dir(folder).into_iter().flatten().flatten();
    stats.filter_map(|cpu| std::fs::read_to_string(cpu.path().join("stats")).ok()).all(|stats| {
        let entries = stats.lines().find_map(|line| line.strip_prefix("entries:"));
        entries.is_none_or(|entries| entries.trim() == "0")
    })
}

fn is_ready(ready: &Ready, output: &Path) -> bool {
    match ready {
        Ready::AtOnce => true,
        Ready::Prints(word) => {
            std::fs::read_to_string(output.join("events")).is_ok_and(|text| text.contains(word))
        }
        Ready::DeviceTraced(device) => std::fs::read_to_string(sysfs(device).join("trace/enable"))
            .is_ok_and(|enabled| enabled.trim() == "1"),
    }
}

/// Enabled kernel setting, restored on drop.
pub(super) struct EnabledSwitch<'a> {
    switch: &'a Switch,
    before: String,
}

impl EnabledSwitch<'_> {
    pub(super) fn enable(switch: &Switch) -> Result<EnabledSwitch<'_>> {
        let file = &switch.file;
        let before =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        std::fs::write(file, switch.on).with_context(|| format!("cannot write to {}", file.display()))?;
        Ok(EnabledSwitch { switch, before: before.trim().to_owned() })
    }
}

impl Drop for EnabledSwitch<'_> {
    fn drop(&mut self) {
        // A setting that cannot be restored is detected by the next benchmark, which checks for
        // other tracers.
        let _ = std::fs::write(&self.switch.file, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_empty_if_all_are() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, entries) in [("cpu0", 0), ("cpu1", 3)] {
            std::fs::create_dir(folder.path().join(cpu)).unwrap();
            let stats = format!("entries: {entries}\noverrun: 0\n");
            std::fs::write(folder.path().join(cpu).join("stats"), stats).unwrap();
        }
        assert!(!buffers_are_empty(folder.path()));
        std::fs::write(folder.path().join("cpu1/stats"), "entries: 0\n").unwrap();
        assert!(buffers_are_empty(folder.path()));
    }
}
