//! `hooks`: ns of each eBPF program, by the kernel's clock and counter, and its runs per operation.
//!
//! *In*: loads that repeat one operation; run_time_ns and run_cnt of each program, before and after
//! (BPF_ENABLE_STATS). *Out*: ns per run, runs per operation, and their product: the time of an
//! operation inside programs.
//!
//! The kernel's two clock reads are part of its figure: an *empty* program is attached in a
//! separate run, and its figure is subtracted. Not included are the cost of the statistics and of
//! reaching a program (a call through the tracepoint, 20 to 30 ns); `call` measures the whole by
//! wall clock, without statistics.

mod empty;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use serde_json::Value;

use crate::disk::{DiskTarget, Looped, Mounted};
use crate::fio::{Job, Length, Op};
use crate::frame::number::with_spread;
use crate::frame::{BenchReport, Figure, RoundPolicy, Rounds};
use crate::harness::{self, RunningTracer};
use crate::{Setting, affinity};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 5, max_rounds: 5, time_limit: Duration::from_secs(300) };
/// Calls per second of the loops: below the rate of losses, because a full ring is cheaper.
const RATE: &str = "200000";

/// Repeated operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// An empty program without a tracer.
    Empty,
    /// System call in a loop, in a task that is traced or not.
    Call {
        name: &'static str,
        traced: bool,
    },
    Fio(Op),
}

const LOADS: &[Load] = &[
    Load::Empty,
    Load::Call { name: "getppid", traced: true },
    Load::Call { name: "pread64-4k", traced: true },
    Load::Call { name: "pread64-4k", traced: false },
    Load::Fio(Op::RandomRead),
    Load::Fio(Op::WriteFsync),
];

/// Counters of a program in one run.
#[derive(Clone, Copy, Debug, Default)]
struct Program {
    ns: f64,
    runs: f64,
}

/// Counters of all programs in one run, and its number of operations.
struct Reading {
    programs: BTreeMap<String, Program>,
    operations: f64,
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let (raw, mounted) = (Looped::make("raw")?, Mounted::make("ext4")?);
    let quick = setting.extent.is_quick();
    let places = [raw.place()?, mounted.place("fio.dat")?];
    let _stats = enable_stats(Stats::RunTime).context("the kernel keeps no statistics of programs")?;
    let measure = |load| read(load, &places, setting, if quick { 1 } else { 2 });
    let readings = POLICY.quick(quick).run(LOADS, measure, |_| true)?;
    Ok(build_report(&readings))
}

fn read(load: Load, places: &[DiskTarget; 2], setting: &Setting, seconds: u32) -> Result<Reading> {
    let duration = seconds.to_string();
    let cpu = affinity::load_cpu().to_string();
    let flood = |name| ["flood-one", &cpu, name, RATE, &duration].map(str::to_owned);
    match load {
        Load::Empty => {
            let before = counters()?;
            let _attached = empty::attach()?;
            let count = parse_count(own_load(&flood("getppid"))?)?;
            reading(&before, count)
        }
        Load::Call { name, traced } => under_tracer(traced, || own_load(&flood(name)), parse_count),
        Load::Fio(op) => {
            let job = Job { engine: "psync", op, jobs: 1, depth: 1 };
            let place = &places[usize::from(op == Op::WriteFsync)];
            let output = setting.folder.join("hooks-fio.json");
            let length = Length { run_ms: seconds * 1000, ramp_ms: 0 };
            let arguments = job.command(place, length, &cpu, &output);
            under_tracer(
                true,
                || start(Path::new(&arguments[0]), &arguments[1..]),
                |child| {
                    harness::wait_for_output(child)?;
                    operations(&output)
                },
            )
        }
    }
}

/// Runs `load` under a tracer, in a task that is traced or not, and returns the programs' counters.
fn under_tracer(
    traced: bool,
    load: impl FnOnce() -> Result<Child>,
    read_count: impl FnOnce(Child) -> Result<f64>,
) -> Result<Reading> {
    let before = counters()?;
    let tracer = harness::load_tracer()?;
    let child = if traced {
        let _followed = tracer.trace_children_of_this_thread()?;
        load()?
    } else {
        load()?
    };
    let running = RunningTracer::start(tracer);
    let operations = read_count(child)?;
    let reading = reading(&before, operations);
    running.finish()?;
    reading
}

/// Reads name, ns and runs of all programs, by id.
fn counters() -> Result<BTreeMap<u32, (String, Program)>> {
    let programs = loaded_programs().map(|program| {
        let program = program.context("the kernel's programs cannot be listed")?;
        let name = program.name_as_str().unwrap_or_default().to_owned();
        let (ns, runs) = (program.run_time().as_nanos() as f64, program.run_count() as f64);
        Ok((program.id(), (name, Program { ns, runs })))
    });
    programs.collect()
}

/// Returns the counters of programs that were loaded since.
fn reading(before: &BTreeMap<u32, (String, Program)>, operations: f64) -> Result<Reading> {
    let new = counters()?.into_iter().filter(|(id, _)| !before.contains_key(id));
    Ok(Reading { programs: new.map(|(_, named)| named).collect(), operations })
}

fn own_load(arguments: &[String]) -> Result<Child> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    harness::spawn_load(&arguments)
}

fn parse_count(child: Child) -> Result<f64> {
    harness::wait_for_output(child)?.trim().parse().context("a load printed no number")
}

fn start(program: &Path, arguments: &[String]) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

/// Reads the number of reads or writes of fio.
fn operations(output: &PathBuf) -> Result<f64> {
    let json: Value = serde_json::from_slice(&std::fs::read(output)?).context("fio wrote no JSON")?;
    let of = |side: &str| json["jobs"][0][side]["total_ios"].as_f64().unwrap_or(0.0);
    Ok(of("read") + of("write"))
}

impl Load {
    fn title(self) -> String {
        match self {
            Load::Empty => "an empty program".to_owned(),
            Load::Call { name, traced: true } => format!("{name}, traced"),
            Load::Call { name, traced: false } => format!("{name}, in a task that is not traced"),
            Load::Fio(op) => format!("{} of 4 KiB by fio", op.name()),
        }
    }
}

fn build_report(readings: &[Vec<Reading>]) -> BenchReport {
    let empty: Rounds = readings[0].iter().filter_map(|reading| ns_of(reading, empty::NAME)).collect();
    let floor = empty.median();
    let (mut figures, mut tables) = (Vec::new(), Vec::new());
    figures.push(Figure::of("what the kernel reads for an empty program", &empty, "ns"));
    for (load, readings) in LOADS.iter().zip(readings).skip(1) {
        let (table, sum) = table::of(*load, readings, floor);
        figures.push(Figure::of(format!("in programs, {}", load.title()), &sum, "ns an operation"));
        tables.push(table);
    }
    let how = format!(
        "The kernel's run_time_ns and run_cnt of each program, {} rounds in turns; the reading for an empty program, {}, \
         is subtracted from each. Calls are made {RATE} times per second, so that no ring is full. The statistics cost each run \
         some 60 ns; `call` measures the whole by wall clock. A program that runs for fewer than {} of the \
         operations is left out of the table, not of the sum.",
        readings[0].len(),
        with_spread(floor, empty.spread()),
        table::RUNS_SHOWN
    );
    BenchReport { how, figures, tables, ..BenchReport::default() }
}

fn ns_of(reading: &Reading, name: &str) -> Option<f64> {
    let program = reading.programs.get(name)?;
    (program.runs > 0.0).then(|| program.ns / program.runs)
}
