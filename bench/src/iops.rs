//! `iops`: the loss of operations per second while all of them are traced: blkkin alone, with many
//! rounds.
//!
//! It runs on a loop device over tmpfs, where a read costs only the kernel's own path and a tracer
//! weighs most, and on the machine's disk. fio's jobs have fixed CPUs. The kernel places the
//! threads of the loop device and of blkkin, as on a user's machine: if they use every CPU,
//! blkkin's time reduces the reads too.
//!
//! A read of a loop device goes from fio to a kernel thread and back. It takes 10 or 40 µs,
//! depending on whether that thread runs on the same CPU, on another one, or on a virtual CPU that
//! was halted. A virtual CPU is often one of two hyperthreads of a core whose other one runs
//! another guest: the same loop of multiplications takes 34 ms or 56 ms, and changes between the
//! two every second or every few seconds. So rounds are short, so that both runs of a round see the
//! same machine. Their number depends on the spread; if the maximum does not suffice, there is no
//! verdict. (Rounds of 2.5 s instead of 0.6 s measured a loss of 20.6 ± 7.3 % where it is 12.6 %:
//! the slow seconds hit the traced run more often.)

use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::disk::{DiskTarget, Looped, RealFile};
use crate::fio::{Job, Length, Op};
use crate::frame::number::{count, number, with_spread};
use crate::frame::{BenchReport, RoundPolicy, Rounds, Table};
use crate::peers::session::{Run, Session};
use crate::peers::tool::Tool;
use crate::peers::workload::Workload;
use crate::peers::{Fio, Measured, kernelfs};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 21, max_rounds: 61, time_limit: Duration::from_secs(100) };
const LENGTH: Length = Length { run_ms: 500, ramp_ms: 100 };
const LENGTH_QUICK: Length = Length { run_ms: 300, ramp_ms: 100 };
/// Length of the run for blkkin's own time. The start of a tracer is subtracted and known to 20 ms,
/// which is negligible here.
const LENGTH_OWN: Length = Length { run_ms: 6000, ramp_ms: 0 };
/// Spread in per cent that ends the rounds: a fifth of the goals.
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

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let _mounted = kernelfs::mount()?;
    let (raw, real) = (Looped::make("raw")?, RealFile::make(&setting.folder)?);
    let mut session = Session::new(setting)?;
    session.measure_start(Tool::Blkkin, &raw.place()?)?;
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
        table.row(row(&measured, overhead_us(*job, place, &session, setting)?));
        figures.push(measured.figure());
    }
    let how = "4 KiB, direct, `blkkin run` around fio, every call, bio and request recorded; untraced and traced in \
               turns, as many rounds as the spread requires (21 to 61); medians. *µs of blkkin an op*: the processor time of its \
               own threads in one more run, of 6 s. The disk's file system is the machine's own."
        .to_owned();
    Ok(BenchReport { how, figures, tables: vec![table], ..BenchReport::default() })
}

fn measure(job: Job, place: DiskTarget, session: &Session, setting: &Setting) -> Result<Measured> {
    let quick = setting.extent.is_quick();
    let enough = if place.name == "real disk" { SPREAD_ENOUGH_REAL } else { SPREAD_ENOUGH_FAST };
    let mut fio = Fio { job, place, length: if quick { LENGTH_QUICK } else { LENGTH } };
    let tools = [Tool::Untraced, Tool::Blkkin];
    let measure = |tool| session.run(tool, &mut fio);
    let precise = |runs: &[Vec<Run>]| {
        let ops = |runs: &[Run]| runs.iter().map(|run| run.ops).collect::<Rounds>();
        100.0 * Rounds::ratios(&ops(&runs[1]), &ops(&runs[0])).spread() < enough
    };
    let runs = POLICY.quick(quick).run(&tools, measure, precise)?;
    Ok(Measured {
        workload: fio.name(),
        short: fio.short(),
        unit: fio.unit(),
        goal: fio.goal(),
        tools: tools.into_iter().zip(runs).collect(),
        failed: Default::default(),
    })
}

/// Measures the µs of blkkin's own threads per operation.
fn overhead_us(job: Job, place: DiskTarget, session: &Session, setting: &Setting) -> Result<f64> {
    let length = if setting.extent.is_quick() { LENGTH_QUICK } else { LENGTH_OWN };
    let run = session.run(Tool::Blkkin, &mut Fio { job, place, length })?;
    Ok(1e6 * run.cpus / run.ops)
}

fn row(measured: &Measured, overhead_us: f64) -> Vec<String> {
    let [untraced, traced] = [0, 1].map(|index| &measured.tools[index].1);
    let each = |runs: &[Run], of: fn(&Run) -> f64| runs.iter().map(of).collect::<Rounds>();
    let shown = |rounds: &Rounds| with_spread(rounds.median(), rounds.spread());
    let max = each(traced, |run| run.resident as f64).max() / f64::from(1 << 20);
    let sum = |of: fn(&Run) -> u64| count(traced.iter().map(of).sum());
    vec![
        format!("{} ({} rounds)", measured.workload, untraced.len()),
        shown(&each(untraced, |run| run.ops)),
        shown(&each(traced, |run| run.ops)),
        shown(&measured.fewer(Tool::Blkkin)),
        number(each(untraced, |run| run.p99).median()),
        number(each(traced, |run| run.p99).median()),
        number(overhead_us),
        number(max),
        sum(|run| run.events.seen + run.events.lost),
        sum(|run| run.events.lost),
    ]
}
