//! Run of a workload under a tool: start, wait until it traces, load, stop, count its events.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::tool::{Launch, Tool};
use super::tool_output::{self, Events, reason};
use super::tool_process::{EnabledSwitch, spawn, wait_until_drained, wait_until_ready};
use super::workload::{TRIAL_READS, Trial, Workload};
use crate::Setting;
use crate::disk::DiskTarget;
use crate::frame::machine;
use crate::process::{Usage, WatchedChild};

/// Minimum run time for a meaningful rate.
const RUN_TIME_MIN: Duration = Duration::from_millis(10);

/// Result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Operations per second, and the 99th percentile in µs.
    pub(crate) ops: f64,
    pub(crate) p99: f64,
    /// CPUs of the tool itself, without its start and stop.
    pub(crate) cpus: f64,
    pub(crate) resident: u64,
    pub(crate) events: Events,
    /// Size of the tool's output.
    pub(crate) bytes: u64,
}

/// Runner of the tools, with the cost of their starts.
pub(crate) struct Session {
    blkkin: PathBuf,
    folder: PathBuf,
    start: BTreeMap<Tool, Start>,
}

/// Tools that run on this machine.
pub(crate) struct AvailableTools {
    pub(crate) available: Vec<Tool>,
    /// Tools that do not run, with their error.
    pub(crate) unavailable: Vec<(Tool, String)>,
    pub(crate) versions: Vec<String>,
}

/// Cost of starting and stopping a tool.
#[derive(Clone, Copy, Default)]
struct Start {
    processor: Duration,
    time: Duration,
}

/// Resource usage of a tool, and the duration of its run with the load.
struct ToolUsage {
    usage: Option<Usage>,
    time: Duration,
}

impl Session {
    pub(crate) fn new(setting: &Setting) -> Result<Session> {
        let folder = setting.folder.join("peers");
        Ok(Session { blkkin: setting.blkkin.clone(), folder, start: BTreeMap::new() })
    }

    /// Tries each tool with some reads of the file at `place`, and records the cost of its start.
    pub(crate) fn detect_tools(&mut self, place: &DiskTarget) -> AvailableTools {
        let mut peers =
            AvailableTools { available: Vec::new(), unavailable: Vec::new(), versions: versions() };
        for tool in Tool::ALL {
            match self.measure_start(tool, place) {
                Ok(()) => peers.available.push(tool),
                Err(error) => peers.unavailable.push((tool, format!("{error:#}"))),
            }
        }
        peers
    }

    /// Records the cost of starting and stopping `tool`. A tool that starts and sees no events is
    /// unavailable.
    pub(crate) fn measure_start(&mut self, tool: Tool, place: &DiskTarget) -> Result<()> {
        let usage_of_tool = self.run_under(tool, &mut Trial(place.clone()))?;
        let output = self.output(tool);
        let seen = tool_output::events(tool, &output)?.seen;
        if tool != Tool::Untraced && seen < TRIAL_READS {
            bail!("it saw {seen} events of {TRIAL_READS} reads: {}", reason(&output));
        }
        let processor = usage_of_tool.usage.map_or(Duration::ZERO, |usage| usage.processor);
        self.start.insert(tool, Start { processor, time: usage_of_tool.time });
        Ok(())
    }

    /// Runs `workload` under `tool`.
    pub(crate) fn run(&self, tool: Tool, workload: &mut dyn Workload) -> Result<Run> {
        let usage_of_tool = self.run_under(tool, workload)?;
        let done = workload.result(&self.load_output())?;
        let output = self.output(tool);
        let start = self.start.get(&tool).copied().unwrap_or_default();
        let processor = usage_of_tool
            .usage
            .map_or(Duration::ZERO, |usage| usage.processor.saturating_sub(start.processor));
        let time = usage_of_tool.time.saturating_sub(start.time).max(RUN_TIME_MIN);
        let bytes = if tool == Tool::Untraced { 0 } else { tool_output::bytes(&output)? };
        let events = tool_output::events(tool, &output)?;
        // Up to some hundred MB: the next run should not wait for their write-back.
        std::fs::remove_dir_all(&output).context("cannot remove what a tool wrote")?;
        Ok(Run {
            ops: done.ops,
            p99: done.p99,
            cpus: processor.as_secs_f64() / time.as_secs_f64(),
            resident: usage_of_tool.usage.map_or(0, |usage| usage.resident_max),
            events,
            bytes,
        })
    }

    fn output(&self, tool: Tool) -> PathBuf {
        self.folder.join(format!("{tool:?}").to_lowercase())
    }

    /// Returns the file of a load's own result: in memory, so that it does not disturb a disk.
    fn load_output(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/blkkin-bench.{}.result", std::process::id()))
    }

    fn run_under(&self, tool: Tool, workload: &mut dyn Workload) -> Result<ToolUsage> {
        workload.prepare()?;
        let output = self.output(tool);
        make_empty(&output)?;
        let arguments = workload.command(&self.load_output());
        match tool.launch(&self.blkkin, workload.place(), workload.comm(), &output) {
            Launch::LoadOnly => {
                let (_, time) = load(&arguments, workload)?;
                Ok(ToolUsage { usage: None, time })
            }
            Launch::Wrapping(mut wrapper) => {
                wrapper.extend(arguments);
                let started = Instant::now();
                let tracer = WatchedChild::new(spawn(&wrapper, &output)?);
                let drive_result = workload.drive();
                let usage = tracer.wait()?;
                drive_result?;
                if !usage.status.success() {
                    bail!("{} ({}): {}", tool.name(), usage.status, reason(&output));
                }
                Ok(ToolUsage { usage: Some(usage), time: started.elapsed() })
            }
            Launch::Alongside { arguments: alongside, ready, switches } => {
                let mut switches_on =
                    switches.iter().map(EnabledSwitch::enable).collect::<Result<Vec<_>>>()?;
                let tracer = WatchedChild::new(spawn(&alongside, &output)?);
                let loaded =
                    wait_until_ready(&ready, &tracer, &output).and_then(|()| load(&arguments, workload));
                // Stop new events, so that pending ones arrive; then the tool, then its source.
                if switches_on.pop().is_some() {
                    wait_until_drained();
                }
                let usage = tracer.interrupt();
                // Report the tool's error before that of the load.
                let (_, time) = loaded.with_context(|| format!("{}: {}", tool.name(), reason(&output)))?;
                Ok(ToolUsage { usage: Some(usage?), time })
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // 2 kB in memory.
        let _ = std::fs::remove_file(self.load_output());
    }
}

/// Runs the load alone and returns its usage.
fn load(arguments: &[String], workload: &mut dyn Workload) -> Result<(Usage, Duration)> {
    let mut command = Command::new(&arguments[0]);
    command.args(&arguments[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let child = WatchedChild::new(command.spawn().with_context(|| format!("cannot start {}", arguments[0]))?);
    let drive_result = workload.drive();
    let usage = child.wait()?;
    drive_result?;
    if !usage.status.success() {
        bail!("{} failed ({})", arguments[0], usage.status);
    }
    Ok((usage, started.elapsed()))
}

fn make_empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn versions() -> Vec<String> {
    let queries = Tool::ALL.iter().filter_map(|tool| tool.version());
    let mut versions: Vec<String> = queries
        .map(|(program, option)| match program {
            "dpkg-query" => machine::command_output(program, &["--show", option, "bpfcc-tools"]),
            _ => machine::command_output(program, &[option]),
        })
        .filter_map(|text| text.lines().next().map(str::to_owned))
        .collect();
    versions.extend(machine::command_output("fio", &["--version"]).lines().map(str::to_owned));
    versions.sort_unstable();
    versions.dedup();
    versions
}
