//! `fuzz`: runs the targets of `fuzz/`, which feed libFuzzer's inputs to blkkin's decoders.
//!
//! *In*: the seeds in `fuzz/seeds`, and the inputs that earlier runs kept in `target/fuzz/corpus`.
//! *Out*: a line per target, and an error for each input in `target/fuzz/crashes`.
//!
//! `cargo xtask test` runs each target for [`TEST_SECONDS`], on CPU time that other tests leave.
//!
//! The stable compiler instruments for coverage itself, so neither a nightly one nor `cargo-fuzz`
//! is needed. Its flags apply to every crate of the build, except build scripts and macros, which
//! `--target` separates.

use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::cargo_build;
use crate::setup::{self, Purpose};
use crate::workspace::Workspace;

/// Flags of rustc: counters of edges for libFuzzer, its view of comparisons, and checks that a
/// release omits.
const RUSTFLAGS: &[&str] = &[
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions=on",
    "-Coverflow-checks=on",
];

/// Time of each target in `cargo xtask test`.
const TEST_SECONDS: u64 = 10;

/// Limits of one input: memory in MiB, and time in s.
const LIMITS: [&str; 2] = ["-rss_limit_mb=512", "-timeout=10"];

/// Options of `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// Name of a target: of a file in fuzz/targets [default: every target]
    target: Option<String>,
    /// Time of all targets together, which share it equally
    #[arg(long, value_name = "N", default_value_t = 20)]
    minutes: u64,
}

/// Counts of one run, from libFuzzer's output.
#[derive(Debug, Default, PartialEq, Eq)]
struct RunStats {
    executions: u64,
    /// Edges of the control flow that any input reached.
    edges: u64,
    new_inputs: u64,
    /// File with the input that crashed the target.
    crash: Option<PathBuf>,
}

/// Result of one target.
pub(crate) struct TargetRun {
    target: String,
    program: PathBuf,
    stats: RunStats,
}

impl TargetRun {
    /// Formats the counts.
    pub(crate) fn summary(&self) -> String {
        let RunStats { executions, edges, new_inputs, crash } = &self.stats;
        format!(
            "fuzz: {:<18} {executions:>11} executions {edges:>6} edges {new_inputs:>6} new inputs {} crashes",
            self.target,
            crash.iter().len()
        )
    }

    /// Returns the target and its crash, with the command that repeats it; `None` without one.
    pub(crate) fn failure(&self) -> Option<String> {
        let input = self.stats.crash.as_ref()?;
        Some(format!(
            "fuzz: {0}: crash by {1}\n  {2} {1}",
            self.target,
            input.display(),
            self.program.display()
        ))
    }
}

/// Builds the targets and runs each.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    setup::run(workspace, &[Purpose::Build])?;
    let targets = targets(workspace)?;
    let targets = match &options.target {
        Some(wanted) if targets.contains(wanted) => vec![wanted.clone()],
        Some(wanted) => bail!("no target `{wanted}`; targets: {}", targets.join(", ")),
        None => targets,
    };
    let seconds = (options.minutes * 60 / targets.len() as u64).max(1);
    let programs = build(workspace)?;
    let mut failures = Vec::new();
    for target in &targets {
        let run = run_target(workspace, &programs, target, seconds)?;
        println!("{}", run.summary());
        failures.extend(run.failure());
    }
    if failures.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("{} targets crashed:\n{}", failures.len(), failures.join("\n"));
}

/// Runs each target whose name contains `filter`, or all, for [`TEST_SECONDS`], as many at a time as there are CPUs.
pub(crate) fn run_briefly(workspace: &Workspace, filter: Option<&str>) -> Result<Vec<TargetRun>> {
    let mut targets = targets(workspace)?;
    targets.retain(|target| filter.is_none_or(|part| format!("fuzz::{target}").contains(part)));
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let programs = build(workspace)?;
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let mut runs = Vec::new();
    for some in targets.chunks(cpus) {
        thread::scope(|scope| {
            let programs = &programs;
            let run = |target| run_target(workspace, programs, target, TEST_SECONDS);
            let threads: Vec<_> = some.iter().map(|target| scope.spawn(move || run(target))).collect();
            for thread in threads {
                runs.push(thread.join().unwrap_or_else(|_| bail!("a fuzz target's thread panicked"))?);
            }
            Ok::<(), anyhow::Error>(())
        })?;
    }
    Ok(runs)
}

fn run_target(workspace: &Workspace, programs: &[Value], target: &str, seconds: u64) -> Result<TargetRun> {
    let program = cargo_build::executable(programs, target)?;
    let stats = fuzz(workspace, target, &program, seconds)?;
    Ok(TargetRun { target: target.to_owned(), program, stats })
}

/// Returns the names of all targets.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.root().join("fuzz/targets");
    let mut targets = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        targets.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    targets.sort_unstable();
    Ok(targets)
}

fn build(workspace: &Workspace) -> Result<Vec<Value>> {
    println!("fuzz: building the targets (release, with coverage)");
    let manifest = workspace.root().join("fuzz/Cargo.toml");
    let mut command = workspace.cargo();
    command.args(["build", "--release", "--locked", "--target", "host-tuple", "--manifest-path"]);
    command.arg(&manifest).arg("--target-dir").arg(workspace.fuzz_dir()).args(cargo_build::MESSAGES);
    command.env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\x1f"));
    // No target loads the eBPF programs, so any file takes their place.
    command.env("BLKKIN_EBPF_OBJECT", &manifest);
    cargo_build::run(&mut command, "fuzz")
}

/// Runs one target for some seconds, or until it crashes.
fn fuzz(workspace: &Workspace, target: &str, program: &Path, seconds: u64) -> Result<RunStats> {
    let folder = |name| -> Result<PathBuf> {
        let folder = workspace.fuzz_dir().join(name).join(target);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    };
    let (corpus, crashes) = (folder("corpus")?, folder("crashes")?);
    let log = crashes.join("log");
    let mut command = Command::new(program);
    command.args(LIMITS).arg("-print_final_stats=1").arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", crashes.display()));
    command.arg(corpus).arg(workspace.root().join("fuzz/seeds").join(target));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&log).with_context(|| format!("cannot write {}", log.display()))?);
    let status = command.status().with_context(|| format!("cannot start {}", program.display()))?;
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let stats = parse(&String::from_utf8_lossy(&text));
    if stats.crash.is_none() && (!status.success() || stats.executions == 0) {
        bail!("{target} failed ({status}) without an input: see {}", log.display());
    }
    Ok(stats)
}

/// Reads the counts in libFuzzer's output.
fn parse(log: &str) -> RunStats {
    let mut stats = RunStats::default();
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse().ok());
    for line in log.lines() {
        if let Some(rest) = line.strip_prefix("stat::number_of_executed_units:") {
            stats.executions = number(rest).unwrap_or_default();
        } else if let Some(rest) = line.strip_prefix("stat::new_units_added:") {
            stats.new_inputs = number(rest).unwrap_or_default();
        } else if let Some((_, path)) = line.split_once("Test unit written to ") {
            stats.crash = Some(path.trim().into());
        } else if let Some((_, rest)) = line.split_once(" cov: ") {
            stats.edges = number(rest).unwrap_or(stats.edges);
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_crash_are_read_from_the_output() {
        let log = "#2\tINITED cov: 247 ft: 247 corp: 1/1b\n\
            #9\tNEW    cov: 249 ft: 260 corp: 2/2b\n\
            thread '<unnamed>' panicked: cov: much\n\
            artifact_prefix='/t/'; Test unit written to /t/crash-1\n\
            stat::number_of_executed_units: 17\n\
            stat::new_units_added:          1\n";
        let crash = Some(PathBuf::from("/t/crash-1"));
        assert_eq!(parse(log), RunStats { executions: 17, edges: 249, new_inputs: 1, crash });
        assert_eq!(parse(""), RunStats::default());
    }
}
