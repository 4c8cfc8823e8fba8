//! One workload under one tool: started, waited for until it traces, stopped, asked what it saw.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::running::{On, spawn, wait_until, wait_until_read};
use super::said::{self, Events, reason};
use super::tool::{Tool, Way};
use super::workload::{TRIAL_READS, Trial, Workload};
use crate::Setting;
use crate::disk::Place;
use crate::frame::machine;
use crate::process::{Usage, Watched};

/// A load that ran for less says nothing.
const SHORTEST: Duration = Duration::from_millis(10);

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Operations a second, and µs.
    pub(crate) ops: f64,
    pub(crate) p99: f64,
    /// Of the tool itself, without starting and stopping.
    pub(crate) cpus: f64,
    pub(crate) resident: u64,
    pub(crate) events: Events,
    /// Written by the tool.
    pub(crate) bytes: u64,
}

/// The tools, and what they take to start.
pub(crate) struct Session {
    blkkin: PathBuf,
    folder: PathBuf,
    start: BTreeMap<Tool, Start>,
}

/// Which tools run here.
pub(crate) struct Peers {
    pub(crate) running: Vec<Tool>,
    /// With what they said.
    pub(crate) absent: Vec<(Tool, String)>,
    pub(crate) versions: Vec<String>,
}

/// What starting and stopping a tool takes.
#[derive(Clone, Copy, Default)]
struct Start {
    processor: Duration,
    time: Duration,
}

/// What a tool took, and how long it and the load ran.
struct Taken {
    usage: Option<Usage>,
    time: Duration,
}

impl Session {
    pub(crate) fn new(setting: &Setting) -> Result<Session> {
        let folder = setting.folder.join("peers");
        Ok(Session { blkkin: setting.blkkin.clone(), folder, start: BTreeMap::new() })
    }

    /// Tries each with a few reads of the file at `place`, and remembers what starting it takes.
    pub(crate) fn which_run(&mut self, place: &Place) -> Peers {
        let mut peers = Peers { running: Vec::new(), absent: Vec::new(), versions: versions() };
        for tool in Tool::ALL {
            match self.learn_start(tool, place) {
                Ok(()) => peers.running.push(tool),
                Err(error) => peers.absent.push((tool, format!("{error:#}"))),
            }
        }
        peers
    }

    /// Remembers what starting and stopping `tool` takes. A tool that starts and sees nothing does not run here.
    pub(crate) fn learn_start(&mut self, tool: Tool, place: &Place) -> Result<()> {
        let taken = self.carry_out(tool, &mut Trial(place.clone()))?;
        let output = self.output(tool);
        let seen = said::events(tool, &output)?.seen;
        if tool != Tool::Untraced && seen < TRIAL_READS {
            bail!("it saw {seen} events of {TRIAL_READS} reads: {}", reason(&output));
        }
        let processor = taken.usage.map_or(Duration::ZERO, |usage| usage.processor);
        self.start.insert(tool, Start { processor, time: taken.time });
        Ok(())
    }

    /// Runs `workload` under `tool`.
    pub(crate) fn run(&self, tool: Tool, workload: &mut dyn Workload) -> Result<Run> {
        let taken = self.carry_out(tool, workload)?;
        let done = workload.result(&self.load_output())?;
        let output = self.output(tool);
        let start = self.start.get(&tool).copied().unwrap_or_default();
        let processor =
            taken.usage.map_or(Duration::ZERO, |usage| usage.processor.saturating_sub(start.processor));
        let time = taken.time.saturating_sub(start.time).max(SHORTEST);
        let bytes = if tool == Tool::Untraced { 0 } else { said::bytes(&output)? };
        let events = said::events(tool, &output)?;
        // Some hundred MB at times: the next run should not wait for their write-back.
        std::fs::remove_dir_all(&output).context("cannot remove what a tool wrote")?;
        Ok(Run {
            ops: done.ops,
            p99: done.p99,
            cpus: processor.as_secs_f64() / time.as_secs_f64(),
            resident: taken.usage.map_or(0, |usage| usage.resident_max),
            events,
            bytes,
        })
    }

    fn output(&self, tool: Tool) -> PathBuf {
        self.folder.join(format!("{tool:?}").to_lowercase())
    }

    /// Where a load leaves its own result: in memory, so that it disturbs no disk.
    fn load_output(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/blkkin-bench.{}.result", std::process::id()))
    }

    fn carry_out(&self, tool: Tool, workload: &mut dyn Workload) -> Result<Taken> {
        workload.prepare()?;
        let output = self.output(tool);
        fresh(&output)?;
        let words = workload.command(&self.load_output());
        match tool.way(&self.blkkin, workload.place(), workload.comm(), &output) {
            Way::Alone => {
                let (_, time) = load(&words, workload)?;
                Ok(Taken { usage: None, time })
            }
            Way::Around(mut around) => {
                around.extend(words);
                let begun = Instant::now();
                let tracer = Watched::new(spawn(&around, &output)?);
                let driven = workload.drive();
                let usage = tracer.wait()?;
                driven?;
                if !usage.status.success() {
                    bail!("{} ({}): {}", tool.name(), usage.status, reason(&output));
                }
                Ok(Taken { usage: Some(usage), time: begun.elapsed() })
            }
            Way::Beside { words: beside, ready, switches } => {
                let mut on = switches.iter().map(On::turn).collect::<Result<Vec<_>>>()?;
                let tracer = Watched::new(spawn(&beside, &output)?);
                let loaded = wait_until(&ready, &tracer, &output).and_then(|()| load(&words, workload));
                // No more events, so what is on its way arrives; then the tool, then what it reads from.
                if on.pop().is_some() {
                    wait_until_read();
                }
                let usage = tracer.interrupt();
                // The tool's own words before what became of the load.
                let (_, time) =
                    loaded.with_context(|| format!("{} said: {}", tool.name(), reason(&output)))?;
                Ok(Taken { usage: Some(usage?), time })
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

/// Runs the load by itself; what it took.
fn load(words: &[String], workload: &mut dyn Workload) -> Result<(Usage, Duration)> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let child = Watched::new(command.spawn().with_context(|| format!("cannot start {}", words[0]))?);
    let driven = workload.drive();
    let usage = child.wait()?;
    driven?;
    if !usage.status.success() {
        bail!("{} failed ({})", words[0], usage.status);
    }
    Ok((usage, begun.elapsed()))
}

fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn versions() -> Vec<String> {
    let asked = Tool::ALL.iter().filter_map(|tool| tool.version());
    let mut versions: Vec<String> = asked
        .map(|(program, option)| match program {
            "dpkg-query" => machine::said(program, &["--show", option, "bpfcc-tools"]),
            _ => machine::said(program, &[option]),
        })
        .filter_map(|said| said.lines().next().map(str::to_owned))
        .collect();
    versions.extend(machine::said("fio", &["--version"]).lines().map(str::to_owned));
    versions.sort_unstable();
    versions.dedup();
    versions
}
