//! `hooks`: ns of each eBPF program, by the kernel's own clock and counter, and how often each runs for an operation.
//!
//! *In*: loads that do one thing many times; for each program run_time_ns and run_cnt, before and after
//! (BPF_ENABLE_STATS). *Out*: ns a run, runs an operation, and their product: what an operation pays inside of programs.
//!
//! The kernel's two looks at its clock are part of what it reads: an *empty* program is attached in a run of its own, and
//! its reading is subtracted. What the statistics themselves make dearer, and how a program is reached (a call through
//! the tracepoint, 20 to 30 ns), is not in it; `call` measures the whole by wall clock, without statistics.

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

use crate::disk::{Looped, Mounted, Place};
use crate::fio::{Job, Length, Op};
use crate::frame::number::with_spread;
use crate::frame::{Figure, Found, Rounds, Turns};
use crate::harness::{self, Running};
use crate::{Setting, affinity};

const TURNS: Turns = Turns { warm_up: 1, least: 5, most: 5, at_most: Duration::from_secs(300) };
/// Calls a second of the loops: below what loses records, since a full ring is cheaper.
const RATE: &str = "200000";

/// What is done many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// No tracer, one empty program.
    Empty,
    /// A call in a loop, in a task that is traced or not.
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

/// One program in one run.
#[derive(Clone, Copy, Debug, Default)]
struct Program {
    ns: f64,
    runs: f64,
}

/// Programs by name, in one run, and how many operations it did.
struct Reading {
    programs: BTreeMap<String, Program>,
    operations: f64,
}

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let (raw, mounted) = (Looped::make("raw")?, Mounted::make("ext4")?);
    let quick = setting.extent.is_quick();
    let places = [raw.place()?, mounted.place("fio.dat")?];
    let _stats = enable_stats(Stats::RunTime).context("the kernel keeps no statistics of programs")?;
    let measure = |load| read(load, &places, setting, if quick { 1 } else { 2 });
    let readings = TURNS.quick(quick).run(LOADS, measure, |_| true)?;
    Ok(found(&readings))
}

fn read(load: Load, places: &[Place; 2], setting: &Setting, seconds: u32) -> Result<Reading> {
    let duration = seconds.to_string();
    let cpu = affinity::load_cpu().to_string();
    let flood = |name| ["flood-one", &cpu, name, RATE, &duration].map(str::to_owned);
    match load {
        Load::Empty => {
            let before = counters()?;
            let _attached = empty::attach()?;
            let said = answer(own_load(&flood("getppid"))?)?;
            reading(&before, said)
        }
        Load::Call { name, traced } => under_tracer(traced, || own_load(&flood(name)), answer),
        Load::Fio(op) => {
            let job = Job { engine: "psync", op, jobs: 1, depth: 1 };
            let place = &places[usize::from(op == Op::WriteFsync)];
            let output = setting.folder.join("hooks-fio.json");
            let length = Length { run_ms: seconds * 1000, ramp_ms: 0 };
            let words = job.command(place, length, &cpu, &output);
            under_tracer(
                true,
                || start(Path::new(&words[0]), &words[1..]),
                |child| {
                    harness::answer(child)?;
                    operations(&output)
                },
            )
        }
    }
}

/// What `load` made programs do, in a task that is traced or in one beside.
fn under_tracer(
    traced: bool,
    load: impl FnOnce() -> Result<Child>,
    done: impl FnOnce(Child) -> Result<f64>,
) -> Result<Reading> {
    let before = counters()?;
    let tracer = harness::tracer()?;
    let child = if traced {
        let _followed = tracer.trace_children_of_this_thread()?;
        load()?
    } else {
        load()?
    };
    let running = Running::start(tracer);
    let operations = done(child)?;
    let reading = reading(&before, operations);
    running.finish()?;
    reading
}

/// By id: name, ns, runs.
fn counters() -> Result<BTreeMap<u32, (String, Program)>> {
    let programs = loaded_programs().map(|program| {
        let program = program.context("the kernel's programs cannot be listed")?;
        let name = program.name_as_str().unwrap_or_default().to_owned();
        let (ns, runs) = (program.run_time().as_nanos() as f64, program.run_count() as f64);
        Ok((program.id(), (name, Program { ns, runs })))
    });
    programs.collect()
}

/// Programs that came since, with what they have done.
fn reading(before: &BTreeMap<u32, (String, Program)>, operations: f64) -> Result<Reading> {
    let new = counters()?.into_iter().filter(|(id, _)| !before.contains_key(id));
    Ok(Reading { programs: new.map(|(_, named)| named).collect(), operations })
}

fn own_load(words: &[String]) -> Result<Child> {
    let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    harness::load(&arguments)
}

fn answer(child: Child) -> Result<f64> {
    harness::answer(child)?.trim().parse().context("a load said no number")
}

fn start(program: &Path, arguments: &[String]) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

/// Reads or writes that fio did.
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

fn found(readings: &[Vec<Reading>]) -> Found {
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
         is subtracted from each. Calls are made {RATE} times a second, so that no ring is full. Reading it makes each run \
         some 60 ns dearer; `call` has the whole by wall clock. A program that runs for fewer than {} of the \
         operations is left out of the table, not of the sum.",
        readings[0].len(),
        with_spread(floor, empty.spread()),
        table::RUNS_SHOWN
    );
    Found { how, figures, tables, ..Found::default() }
}

fn ns_of(reading: &Reading, name: &str) -> Option<f64> {
    let program = reading.programs.get(name)?;
    (program.runs > 0.0).then(|| program.ns / program.runs)
}
