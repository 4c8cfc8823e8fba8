//! `pipeline`: ns and bytes per event for each stage from ring entries to Zipkin's JSON, on one
//! core.
//!
//! The stages run in sequence over batches of the tracer's size, and each is timed separately.
//! Making the entries and dropping the traces is not timed. Reading the ring and merging CPUs is
//! not included; `loss` measures them as part of the whole. `cargo xtask bench callgrind` counts
//! the instructions of the same stages.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use blkkin_pipeline::stages::{self, Meter, Sizes, Stage};
use blkkin_pipeline::{aggregate, links};
use blkkin_wire::event::LayerEvent;

use crate::frame::{BenchReport, Figure, Goal, RoundPolicy, Rounds, Table};
use crate::{Setting, affinity};

/// System calls that make 1 M events.
const CALLS: u64 = 786_000;
const CALLS_QUICK: u64 = 20_000;
const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 9, max_rounds: 15, time_limit: Duration::from_secs(240) };
/// Goal in M events/s.
const RATE_MIN: f64 = 1.5;
/// Goal of the aggregator's first stage in M events/s.
const AGGREGATED_MIN: f64 = 1.0;
/// Goal of the links of virtual machines' requests in M endpoints/s.
const LINKED_MIN: f64 = 1.0;
/// Spread that ends the rounds, as a part of the rate.
const SPREAD_ENOUGH: f64 = 0.1;

/// Time spent in each stage.
#[derive(Default)]
struct Timer([Duration; Stage::ALL.len()]);

impl Meter for Timer {
    fn stage<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0[stage as usize] += start.elapsed();
        result
    }
}

/// ns per event, of one round.
type Times = [f64; Stage::ALL.len()];

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    affinity::pin(&[affinity::load_cpu()])?;
    let quick = setting.extent.is_quick();
    let calls = if quick { CALLS_QUICK } else { CALLS };
    let mut sizes = Sizes::default();
    let measure = |()| {
        let mut timer = Timer::default();
        sizes = stages::run(calls, Stage::Encode, &mut timer);
        // The join passes traces by reference. The later stages clone them, so the join's own time
        // is that of a run without them.
        let mut alone = Timer::default();
        stages::run(calls, Stage::Join, &mut alone);
        timer.0[Stage::Join as usize] = alone.0[Stage::Join as usize];
        if sizes.traces != calls {
            bail!(
                "{calls} calls made {} traces: the join is wrong, and its speed has no meaning",
                sizes.traces
            );
        }
        Ok(timer.0.map(|time| time.as_nanos() as f64 / sizes.events as f64))
    };
    let enough = |rounds: &[Vec<Times>]| {
        let rate = rate(&rounds[0]);
        rate.spread() < rate.median() * SPREAD_ENOUGH
    };
    let rounds = POLICY.quick(quick).run(&[()], measure, enough)?.remove(0);
    let mut report = build_report(&rounds, &sizes);
    report.figures.push(aggregated(calls, rounds.len()));
    let name = "aggregator: endpoints of a virtual machine's disk to links";
    report.figures.push(linked(name, calls / 2, false, rounds.len()));
    let name = "aggregator: the same with 500 flushes a second among 10,000 requests";
    report.figures.push(linked(name, calls / 8, true, rounds.len()));
    Ok(report)
}

/// Measures decoded batches to encoded fragments, in the same number of rounds.
fn aggregated(calls: u64, rounds: usize) -> Figure {
    let rate = per_microsecond(rounds, || {
        let done = aggregate::run(calls);
        (done.events, done.spent)
    });
    let name = "aggregator: decoded batch to encoded fragments";
    Figure::of(name, &rate, "M events/s").goal(Goal::AtLeast(AGGREGATED_MIN))
}

/// Measures endpoints of a virtual machine's disk to links, in the same number of rounds.
fn linked(name: &str, requests: u64, with_flushes: bool, rounds: usize) -> Figure {
    let rate = per_microsecond(rounds, || {
        let done = links::run(requests, with_flushes);
        (done.endpoints, done.spent)
    });
    Figure::of(name, &rate, "M endpoints/s").goal(Goal::AtLeast(LINKED_MIN))
}

/// Runs a pass in each round, which returns a number of items and its time.
fn per_microsecond(rounds: usize, pass: impl Fn() -> (u64, Duration)) -> Rounds {
    let rate = |(items, spent): (u64, Duration)| items as f64 / spent.as_micros().max(1) as f64;
    (0..rounds).map(|_| rate(pass())).collect()
}

/// Returns M events/s through decode, translate and join.
fn rate(rounds: &[Times]) -> Rounds {
    rounds.iter().map(|times| 1e3 / (of(times, Stage::DecodeTranslate) + of(times, Stage::Join))).collect()
}

fn of(times: &Times, stage: Stage) -> f64 {
    times[stage as usize]
}

fn build_report(rounds: &[Times], sizes: &Sizes) -> BenchReport {
    let time = |of: &dyn Fn(&Times) -> f64| rounds.iter().map(of).collect::<Rounds>();
    let stages: [(&str, Rounds, f64, &str); 6] = [
        ("decode", time(&|t| of(t, Stage::Decode)), per_event(sizes.ring_bytes, sizes), "in the ring"),
        (
            "translate",
            time(&|t| of(t, Stage::DecodeTranslate) - of(t, Stage::Decode)),
            size_of::<LayerEvent>() as f64,
            "an event in memory, without its strings",
        ),
        ("join", time(&|t| of(t, Stage::Join)), f64::NAN, ""),
        ("report", time(&|t| of(t, Stage::Report)), f64::NAN, ""),
        ("traces to spans", time(&|t| of(t, Stage::Spans)), f64::NAN, ""),
        (
            "spans to Zipkin's JSON",
            time(&|t| of(t, Stage::Encode)),
            per_event(sizes.json_bytes, sizes),
            "as it is sent, not compressed",
        ),
    ];
    let mut table = Table::new("", &["stage", "ns an event", "bytes an event", "where"]);
    for (name, times, bytes, place) in &stages {
        let ns = crate::frame::number::with_spread(times.median(), times.spread());
        table.row([*name, &ns, &crate::frame::number::number(*bytes), place]);
    }
    let rate = rate(rounds);
    let figures = vec![
        Figure::of("decode + translate + join", &rate, "M events/s").goal(Goal::AtLeast(RATE_MIN)),
        ratio("join to decode + translate", rounds, Stage::Join),
        ratio("encode to decode + translate", rounds, Stage::Encode),
    ];
    let how = format!(
        "{} events ({} spans): of 11 calls nine alone, one with a bio and its request as a pair record, one with separate records; on \
         one core in batches of {}; medians of {} rounds.",
        sizes.events,
        sizes.spans,
        stages::BATCH,
        rounds.len()
    );
    BenchReport { how, figures, tables: vec![table], ..BenchReport::default() }
}

/// Compares a stage with decode + translate; the ratio is comparable across machines.
fn ratio(name: &str, rounds: &[Times], stage: Stage) -> Figure {
    let ratios: Rounds =
        rounds.iter().map(|times| of(times, stage) / of(times, Stage::DecodeTranslate)).collect();
    Figure::of(name, &ratios, "times")
}

fn per_event(bytes: u64, sizes: &Sizes) -> f64 {
    bytes as f64 / sizes.events.max(1) as f64
}
