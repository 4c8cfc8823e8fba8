//! A tool while it runs: started with its output in files, waited for until it traces, and its switches in the kernel.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::tool::{Ready, Switch, sysfs};
use crate::process::{self, Watched};

/// A tool that does not trace after so long does not run here; the slowest known (bcc, which compiles) takes 5 s.
const READY_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A tool; what it says goes to files, as a user would keep it.
pub(super) fn spawn(words: &[String], output: &Path) -> Result<Child> {
    let file = |name: &str| File::create(output.join(name)).with_context(|| format!("cannot make {name}"));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    // Python's would wait for a whole block; bcc's tools say nothing until they end otherwise.
    command.env("PYTHONUNBUFFERED", "1");
    let (events, said) = (output.join("events"), file("said")?);
    let names_events = words.contains(&events.display().to_string());
    let stdout = if names_events { Stdio::null() } else { file("events")?.into() };
    command.stdout(stdout).stderr(said);
    command.spawn().with_context(|| format!("cannot start {}", words[0]))
}

pub(super) fn wait_until(ready: &Ready, tracer: &Watched, output: &Path) -> Result<()> {
    let begun = Instant::now();
    while !is_ready(ready, output) {
        if process::has_ended(tracer.id())? {
            bail!("it ended before it traced");
        }
        if begun.elapsed() > READY_WITHIN {
            bail!("it did not trace within {} s", READY_WITHIN.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Until ftrace's buffers are empty: what a reader has not read when it is interrupted, it has neither seen nor counted.
/// A reader that hangs is interrupted all the same.
pub(super) fn wait_until_read() {
    let begun = Instant::now();
    while begun.elapsed() < READY_WITHIN && !buffers_are_empty(Path::new("/sys/kernel/tracing/per_cpu")) {
        std::thread::sleep(LOOK_EVERY);
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
        Ready::Says(word) => {
            std::fs::read_to_string(output.join("events")).is_ok_and(|said| said.contains(word))
        }
        Ready::DeviceTraced(device) => std::fs::read_to_string(sysfs(device).join("trace/enable"))
            .is_ok_and(|enabled| enabled.trim() == "1"),
    }
}

/// A switch of the kernel that is on; as it was before when dropped.
pub(super) struct On<'a> {
    switch: &'a Switch,
    before: String,
}

impl On<'_> {
    pub(super) fn turn(switch: &Switch) -> Result<On<'_>> {
        let file = &switch.file;
        let before =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        std::fs::write(file, switch.on).with_context(|| format!("cannot write to {}", file.display()))?;
        Ok(On { switch, before: before.trim().to_owned() })
    }
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        // What cannot be turned back is seen by the next bench, which looks for other tracers.
        let _ = std::fs::write(&self.switch.file, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_empty_when_all_are() {
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
