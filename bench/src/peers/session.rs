//! One workload under one tool: started, waited for until it traces, stopped, asked what it saw.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::said::{self, Events};
use super::tool::{Ready, Switch, Tool, Way, sysfs};
use super::workload::{TRIAL_READS, Trial, Workload};
use crate::Setting;
use crate::disk::Place;
use crate::frame::machine;
use crate::process::{self, Usage, Watched};

/// A tool that does not trace after so long does not run here; the slowest known (bcc, which compiles) takes 5 s.
const READY_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Of what a tool said that did not run: its end.
const REASON_LINES: usize = 3;
const TAIL_BYTES: u64 = 4096;
const COMPLAINTS: [&str; 7] =
    ["could not", "cannot", "unable", "failed", "not permitted", "exception", "no such"];

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
    start: BTreeMap<Tool, Duration>,
}

/// Which tools run here.
pub(crate) struct Peers {
    pub(crate) running: Vec<Tool>,
    /// With what they said.
    pub(crate) absent: Vec<(Tool, String)>,
    pub(crate) versions: Vec<String>,
}

/// What a tool took, and how long the load ran.
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
        self.start.insert(tool, taken.usage.map_or(Duration::ZERO, |usage| usage.processor));
        Ok(())
    }

    /// Runs `workload` under `tool`.
    pub(crate) fn run(&self, tool: Tool, workload: &mut dyn Workload) -> Result<Run> {
        let taken = self.carry_out(tool, workload)?;
        let done = workload.result(&self.load_output())?;
        let output = self.output(tool);
        let start = self.start.get(&tool).copied().unwrap_or_default();
        let processor = taken.usage.map_or(Duration::ZERO, |usage| usage.processor.saturating_sub(start));
        let bytes = if tool == Tool::Untraced { 0 } else { said::bytes(&output)? };
        let events = said::events(tool, &output)?;
        // Some hundred MB at times: the next run should not wait for their write-back.
        std::fs::remove_dir_all(&output).context("cannot remove what a tool wrote")?;
        Ok(Run {
            ops: done.ops,
            p99: done.p99,
            cpus: processor.as_secs_f64() / taken.time.as_secs_f64(),
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
                let _on = switches.iter().map(On::turn).collect::<Result<Vec<_>>>()?;
                let tracer = Watched::new(spawn(&beside, &output)?);
                let loaded = wait_until(&ready, &tracer, &output).and_then(|()| load(&words, workload));
                let usage = tracer.interrupt();
                // The tool's own words before what became of the load.
                let (_, time) =
                    loaded.with_context(|| format!("{} said: {}", tool.name(), reason(&output)))?;
                Ok(Taken { usage: Some(usage?), time })
            }
        }
    }
}

/// A switch of the kernel that is on; off when dropped.
struct On<'a>(&'a Switch);

impl On<'_> {
    fn turn(switch: &Switch) -> Result<On<'_>> {
        std::fs::write(&switch.file, switch.on)
            .with_context(|| format!("cannot write to {}", switch.file.display()))?;
        Ok(On(switch))
    }
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        // What cannot be turned off is seen by the next bench, which looks for other tracers.
        let _ = std::fs::write(&self.0.file, self.0.off);
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

/// A tool; what it says goes to files, as a user would keep it.
fn spawn(words: &[String], output: &Path) -> Result<Child> {
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

fn wait_until(ready: &Ready, tracer: &Watched, output: &Path) -> Result<()> {
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

/// Why, in a tool's own words: the last lines that complain, or else the last ones.
fn reason(output: &Path) -> String {
    let said = tail(&output.join("events")) + "\n" + &tail(&output.join("said"));
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let complains = |line: &&str| COMPLAINTS.iter().any(|word| line.to_lowercase().contains(word));
    let complaints: Vec<&str> = lines.iter().copied().filter(complains).collect();
    let shown = if complaints.is_empty() { lines } else { complaints };
    shown[shown.len().saturating_sub(REASON_LINES)..].join(" / ")
}

/// The end of a file, which may be long.
fn tail(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(from))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        std::io::Result::Ok(String::from_utf8_lossy(&end).into_owned())
    };
    read().unwrap_or_default()
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
