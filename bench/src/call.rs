//! `call`: the additional cost of a system call while a tracer runs.
//!
//! Each round measures every call three times: without a tracer; in a traced process; and in a
//! process that is not traced while a tracer runs, which still pays for the hooks. The tracer is
//! loaded again in each round, so that differences between loads (where the kernel places the
//! programs) are part of the spread. Comparisons are between the three measurements of one round.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use blkkin_tracer::{Filter, PathPattern, TracerConfig};

use crate::calls::Call;
use crate::frame::{BenchReport, Figure, Goal, RoundPolicy, Rounds, Table};
use crate::harness::{self, RunningTracer};
use crate::{Setting, affinity};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 9, max_rounds: 15, time_limit: Duration::from_secs(300) };
/// Chunks of 1,000 calls per round.
const CHUNKS: &str = "400";
const CHUNKS_QUICK: &str = "40";
/// Maximum additional ns of a traced call.
const TRACED_MAX: f64 = 300.0;
/// Maximum additional ns of a call of a task that is not traced.
const NOT_TRACED_MAX: f64 = 190.0;
/// Spread in ns that ends the rounds: a twentieth of the larger goal.
const SPREAD_ENOUGH: f64 = 15.0;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    NoTracer,
    Traced,
    NotTraced,
    /// Traced, with a path filter that excludes the file.
    Excluded,
}

/// Counters of the tracers of all rounds.
#[derive(Default)]
struct TracerStats {
    lost: u64,
    recorded: u64,
    reader_time: Duration,
}

/// ns per call in one round.
type Times = BTreeMap<(Call, Task), f64>;

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let chunks = if setting.extent.is_quick() { CHUNKS_QUICK } else { CHUNKS };
    let arguments = |wanted: fn(Call) -> bool| -> Vec<&str> {
        let calls = Call::ALL.into_iter().filter(|call| wanted(*call)).map(Call::name);
        ["measure", chunks].into_iter().chain(calls).collect()
    };
    let (all, on_a_file) = (arguments(|_| true), arguments(Call::is_on_a_file));
    let mut stats = TracerStats::default();
    let enough = |rounds: &[Vec<Times>]| {
        let traced = Call::ALL.into_iter().filter(|call| call.is_traced());
        traced
            .map(|call| overhead(&rounds[0], call, Task::Traced).spread())
            .all(|spread| spread < SPREAD_ENOUGH)
    };
    let policy = POLICY.quick(setting.extent.is_quick());
    let rounds = policy.run(&[()], |()| round(&all, &on_a_file, &mut stats), enough)?.remove(0);
    Ok(build_report(&rounds, &stats))
}

fn round(arguments: &[&str], on_a_file: &[&str], stats: &mut TracerStats) -> Result<Times> {
    let mut times = Times::new();
    insert_times(&mut times, Task::NoTracer, &harness::wait_for_output(harness::spawn_load(arguments)?)?)?;
    let tracer = harness::load_tracer()?;
    let traced = harness::spawn_traced_load(&tracer, arguments)?;
    let running = RunningTracer::start(tracer);
    insert_times(&mut times, Task::Traced, &harness::wait_for_output(traced)?)?;
    insert_times(&mut times, Task::NotTraced, &harness::wait_for_output(harness::spawn_load(arguments)?)?)?;
    let done = running.finish()?;
    stats.lost += done.stats.lost();
    stats.recorded += done.stats.calls.recorded;
    stats.reader_time += done.reader_time;
    let tracer = harness::load_tracer_with(&excluding_config()?)?;
    let excluded = harness::spawn_traced_load(&tracer, on_a_file)?;
    let running = RunningTracer::start(tracer);
    insert_times(&mut times, Task::Excluded, &harness::wait_for_output(excluded)?)?;
    running.finish()?;
    Ok(times)
}

/// Configuration with a path filter that no file of the load matches.
fn excluding_config() -> Result<TracerConfig> {
    let paths = vec![PathPattern::parse("/no/such/folder")?];
    Ok(TracerConfig { filter: Filter { paths, ..Filter::default() }, ..TracerConfig::default() })
}

fn insert_times(times: &mut Times, task: Task, output: &str) -> Result<()> {
    for line in output.lines() {
        let (name, value) = line.split_once(' ').context("a load prints: name, ns")?;
        let call = Call::by_name(name).context("a load prints the calls that it was given")?;
        times.insert((call, task), value.parse()?);
    }
    Ok(())
}

fn each(rounds: &[Times], of: impl Fn(&Times) -> Option<f64>) -> Rounds {
    rounds.iter().filter_map(of).collect()
}

/// Returns the additional ns over the untraced call of the same round.
fn overhead(rounds: &[Times], call: Call, task: Task) -> Rounds {
    each(rounds, |times| Some(times.get(&(call, task))? - times.get(&(call, Task::NoTracer))?))
}

fn build_report(rounds: &[Times], stats: &TracerStats) -> BenchReport {
    let mut table = Table::new(
        "",
        &["call", "untraced, ns", "traced", "above", "not traced", "above", "excluded", "above"],
    );
    let mut figures = Vec::new();
    for call in Call::ALL {
        let time = |task| each(rounds, |times| times.get(&(call, task)).copied());
        let mut row = vec![call.title().to_owned(), format_rounds(&time(Task::NoTracer))];
        for (task, goal) in
            [(Task::Traced, TRACED_MAX), (Task::NotTraced, NOT_TRACED_MAX), (Task::Excluded, TRACED_MAX)]
        {
            if task == Task::Excluded && !call.is_on_a_file() {
                row.extend(["–".to_owned(), "–".to_owned()]);
                continue;
            }
            let overhead = overhead(rounds, call, task);
            row.extend([format_rounds(&time(task)), format_rounds(&overhead)]);
            let goal = if call.is_traced() { goal } else { NOT_TRACED_MAX };
            figures.push(Figure::of(title(call, task), &overhead, "ns above").goal(Goal::AtMost(goal)));
        }
        table.row(row);
    }
    figures.push(reader_figure(stats));
    let how = format!(
        "ns per call, above the same call without blkkin; medians of {} rounds of {CHUNKS},000 calls of each, alternating \
         (untraced, traced, a task that is not traced while another one is, traced with a path filter that excludes the \
         file). The load runs on CPU {}, the reader on the \
         others; a round's value is the median of chunks of 1,000 calls.",
        rounds.len(),
        affinity::load_cpu()
    );
    let lost = format!("{} records were lost meanwhile: a full ring makes a call cheaper.", stats.lost);
    BenchReport { how, figures, tables: vec![table], notes: vec![lost], ..BenchReport::default() }
}

fn reader_figure(stats: &TracerStats) -> Figure {
    let each = stats.reader_time.as_nanos() as f64 / stats.recorded.max(1) as f64;
    Figure::new("the reader thread", each, 0.0, "ns an event")
        .note("its processor time, from the ring to a batch, over all rounds")
}

fn format_rounds(rounds: &Rounds) -> String {
    crate::frame::number::with_spread(rounds.median(), rounds.spread())
}

fn title(call: Call, task: Task) -> String {
    let condition = match (task, call.is_traced()) {
        (Task::Traced, true) => "traced",
        (Task::Traced, false) => "in a traced task, call not traced",
        (Task::Excluded, _) => "excluded by its path",
        (Task::NotTraced | Task::NoTracer, _) => "task not traced",
    };
    format!("{} ({condition})", call.title())
}
