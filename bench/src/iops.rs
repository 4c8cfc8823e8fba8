//! `iops`: how many fewer operations a second there are while every one is traced: blkkin alone, with many rounds.
//!
//! On a loop device over tmpfs, where what a read costs is the kernel's own path and a tracer weighs most, and on the
//! machine's disk. fio's jobs have fixed CPUs; the loop device's threads and blkkin's are where the kernel places them,
//! as on a user's machine: where they fill every CPU, what blkkin takes is taken from the reads too.
//!
//! A read of a loop device goes from fio to a thread of the kernel and back, and takes 10 or 40 µs depending on whether
//! that thread happens to run on the same CPU, on another one, or on a virtual one that was halted. And a virtual CPU is
//! often one of two hyperthreads of a core whose other one is somebody else's: the same loop of multiplications takes
//! 34 ms or 56 ms, and changes between the two every second or few. So a round is short, that both of its runs see the
//! same machine; there are as many rounds as the spread needs; and where they do not suffice, no verdict. (Rounds of
//! 2.5 s instead of 0.6 s said 20.6 ± 7.3 % fewer for what is 12.6 %: the slow seconds hit the traced run oftener.)

use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::disk::{Looped, Place, RealFile};
use crate::fio::{Job, Length, Op};
use crate::frame::number::{count, number, with_spread};
use crate::frame::{Found, Rounds, Table, Turns};
use crate::peers::session::{Run, Session};
use crate::peers::tool::Tool;
use crate::peers::workload::Workload;
use crate::peers::{Fio, Measured, kernelfs};

const TURNS: Turns = Turns { warm_up: 1, least: 21, most: 61, at_most: Duration::from_secs(100) };
const LENGTH: Length = Length { run_ms: 500, ramp_ms: 100 };
const LENGTH_QUICK: Length = Length { run_ms: 300, ramp_ms: 100 };
/// What a tracer's own start takes is taken off, and known to 20 ms: of one run of this length it is nothing.
const LENGTH_OWN: Length = Length { run_ms: 6000, ramp_ms: 0 };
/// Per cent: a fifth of the goals.
const SPREAD_ENOUGH_FAST: f64 = 2.0;
const SPREAD_ENOUGH_REAL: f64 = 0.2;

const FAST: &[Job] = &[
    Job { engine: "psync", op: Op::RandomRead, jobs: 1, depth: 1 },
    Job { engine: "psync", op: Op::RandomRead, jobs: 2, depth: 1 },
    Job { engine: "psync", op: Op::RandomRead, jobs: 4, depth: 1 },
    Job { engine: "io_uring", op: Op::RandomRead, jobs: 1, depth: 32 },
];
const REAL: &[Job] = &[
    Job { engine: "psync", op: Op::RandomRead, jobs: 1, depth: 1 },
    Job { engine: "io_uring", op: Op::RandomRead, jobs: 1, depth: 32 },
];

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let _mounted = kernelfs::mount()?;
    let (raw, real) = (Looped::make("raw")?, RealFile::make(&setting.folder)?);
    let mut session = Session::new(setting)?;
    session.learn_start(Tool::Blkkin, &raw.place()?)?;
    let columns = [
        "workload",
        "untraced",
        "traced",
        "fewer, %",
        "p99, µs",
        "traced",
        "µs of blkkin an op",
        "MiB",
        "events",
        "lost",
    ];
    let (mut table, mut figures) = (Table::new("", &columns), Vec::new());
    let fast = FAST.iter().map(|job| (job, raw.place()));
    for (job, place) in fast.chain(REAL.iter().map(|job| (job, Ok(real.place())))) {
        let place = place?;
        let measured = measure(*job, place.clone(), &session, setting)?;
        table.row(row(&measured, own(*job, place, &session, setting)?));
        figures.push(measured.figure());
    }
    let how = "4 KiB, direct, `blkkin run` around fio, every call, bio and request recorded; untraced and traced in \
               turns, as many rounds as the spread needs (21 to 61); medians. *µs of blkkin an op*: the processor time of its \
               own threads in one more run, of 6 s. The disk's file system is the machine's own."
        .to_owned();
    Ok(Found { how, figures, tables: vec![table], ..Found::default() })
}

fn measure(job: Job, place: Place, session: &Session, setting: &Setting) -> Result<Measured> {
    let quick = setting.extent.is_quick();
    let enough = if place.name == "real disk" { SPREAD_ENOUGH_REAL } else { SPREAD_ENOUGH_FAST };
    let mut fio = Fio { job, place, length: if quick { LENGTH_QUICK } else { LENGTH } };
    let tools = [Tool::Untraced, Tool::Blkkin];
    let measure = |tool| session.run(tool, &mut fio);
    let precise = |runs: &[Vec<Run>]| {
        let ops = |runs: &[Run]| runs.iter().map(|run| run.ops).collect::<Rounds>();
        100.0 * Rounds::ratios(&ops(&runs[1]), &ops(&runs[0])).spread() < enough
    };
    let runs = TURNS.quick(quick).run(&tools, measure, precise)?;
    Ok(Measured {
        workload: fio.name(),
        short: fio.short(),
        unit: fio.unit(),
        goal: fio.goal(),
        tools: tools.into_iter().zip(runs).collect(),
        broken: Default::default(),
    })
}

/// µs of blkkin's own threads an operation.
fn own(job: Job, place: Place, session: &Session, setting: &Setting) -> Result<f64> {
    let length = if setting.extent.is_quick() { LENGTH_QUICK } else { LENGTH_OWN };
    let run = session.run(Tool::Blkkin, &mut Fio { job, place, length })?;
    Ok(1e6 * run.cpus / run.ops)
}

fn row(measured: &Measured, own: f64) -> Vec<String> {
    let [untraced, traced] = [0, 1].map(|index| &measured.tools[index].1);
    let each = |runs: &[Run], of: fn(&Run) -> f64| runs.iter().map(of).collect::<Rounds>();
    let shown = |rounds: &Rounds| with_spread(rounds.median(), rounds.spread());
    let most = each(traced, |run| run.resident as f64).most() / f64::from(1 << 20);
    let sum = |of: fn(&Run) -> u64| count(traced.iter().map(of).sum());
    vec![
        format!("{} ({} rounds)", measured.workload, untraced.len()),
        shown(&each(untraced, |run| run.ops)),
        shown(&each(traced, |run| run.ops)),
        shown(&measured.fewer(Tool::Blkkin)),
        number(each(untraced, |run| run.p99).median()),
        number(each(traced, |run| run.p99).median()),
        number(own),
        number(most),
        sum(|run| run.events.seen + run.events.lost),
        sum(|run| run.events.lost),
    ]
}
