//! `iops`: how many fewer reads a second there are while every one is traced, on a device that costs nothing.
//!
//! A loop device over tmpfs: what a read costs is the kernel's own path, so this is the worst case for a tracer.
//! Untraced and traced runs alternate. fio, the loop device's threads and blkkin's own are where the kernel places
//! them, as on a user's machine: where they fill every CPU, what blkkin's threads take is taken from the reads too,
//! and is part of the figure.
//!
//! A read goes from fio to a thread of the kernel and back, and it takes 10 or 40 µs depending on whether that thread
//! happens to run on the same CPU, on another one, or on a virtual one that was halted; neighbours change that from
//! run to run. What is compared is therefore the *best* untraced run with the best traced one, and the spread is
//! how far the upper quartile is below.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::Setting;
use crate::disk::Disk;
use crate::figure::{Figure, Goal, Rounds};
use crate::fio::{self, Job, RAMP, Run, SECONDS};
use crate::process;

const ROUNDS: usize = 11;
/// Per cent.
const FEWER_MAX: f64 = 10.0;
/// Above this the device is fast enough for the goal to be asked for.
const FAST: f64 = 100_000.0;

const JOBS: &[Job] = &[
    Job { name: "psync, 1 job", engine: "psync", jobs: 1, depth: 1 },
    Job { name: "psync, 2 jobs", engine: "psync", jobs: 2, depth: 1 },
    Job { name: "psync, 4 jobs", engine: "psync", jobs: 4, depth: 1 },
    Job { name: "io_uring, depth 32", engine: "io_uring", jobs: 1, depth: 32 },
];

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Vec<Figure>> {
    let disk = Disk::make()?;
    let start = start_time(setting)?;
    let mut figures = Vec::new();
    for job in JOBS {
        figures.extend(measure(*job, &disk, setting, start)?);
    }
    Ok(figures)
}

/// Processor time, in s, that blkkin takes to start and to end, with a command that does nothing.
fn start_time(setting: &Setting) -> Result<f64> {
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let mut blkkin = Command::new(&setting.blkkin);
        let mut child = blkkin.args(["run", "--", "true"]).stderr(Stdio::null()).spawn()?;
        rounds.push(process::wait(&mut child)?.processor.as_secs_f64());
    }
    Ok(rounds.median())
}

fn measure(job: Job, disk: &Disk, setting: &Setting, start: f64) -> Result<Vec<Figure>> {
    let (mut plain, mut traced) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(fio::plain(job, &disk.device)?);
        traced.push(fio::traced(job, &disk.device, &setting.blkkin, &setting.folder)?);
    }
    let title = |what: &str| format!("{}: {what}", job.name);
    let (without, with) = (each(&plain, |run| run.iops), each(&traced, |run| run.iops));
    let times = [&plain, &traced].map(|runs| each(runs, |run| run.latency_us).fastest());
    let fewer = fewer(title("fewer reads"), &without, &with)
        .note(format!("mean time of a read {:.2} µs, traced {:.2} µs", times[0], times[1]));
    let fast = without.most() > FAST;
    Ok(vec![
        Figure::new(title("untraced"), without.most(), without.spread_of_most(), "reads/s"),
        Figure::new(title("traced"), with.most(), with.spread_of_most(), "reads/s")
            .note(own(&traced, start)?),
        if fast { fewer.goal(Goal::AtMost(FEWER_MAX)) } else { fewer },
    ])
}

/// Per cent.
fn fewer(title: String, without: &Rounds, with: &Rounds) -> Figure {
    let share = |part: f64, of: f64| 100.0 * part / of;
    let spread =
        share(without.spread_of_most(), without.most()).max(share(with.spread_of_most(), with.most()));
    Figure::new(title, 100.0 - share(with.most(), without.most()), spread, "%")
}

fn each(runs: &[Run], of: impl Fn(&Run) -> f64) -> Rounds {
    runs.iter().map(of).collect()
}

/// What blkkin itself took, its start left out.
fn own(traced: &[Run], start: f64) -> Result<String> {
    let a_read = each(traced, |run| {
        let taken = run.blkkin.map_or(0.0, |(usage, _)| usage.processor.as_secs_f64() - start);
        taken * 1e6 / (run.iops * f64::from(SECONDS + RAMP))
    });
    let usages = || traced.iter().filter_map(|run| run.blkkin);
    let Some(resident) = usages().map(|(usage, _)| usage.resident_max).max() else {
        bail!("invariant: every traced run has a tracer");
    };
    let lost: u64 = usages().map(|(_, books)| books.lost).sum();
    let events: u64 = usages().map(|(_, books)| books.fired).sum();
    Ok(format!(
        "blkkin's own threads: {:.2} µs a read, {} MiB at most; {lost} lost of {events} records",
        a_read.median(),
        resident >> 20,
    ))
}
