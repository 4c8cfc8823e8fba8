//! `optin`: cost of the opt-in features: USDT probes (`--probes`), and NBD requests of clients
//! (`--nbd`).
//!
//! Each round runs the load five times: without a tracer; traced and not traced, under a tracer
//! without the features; traced and not traced, under a tracer with both. A USDT event is compared
//! with no tracer; a send or receive with the same under the tracer without the features.
//!
//! *Invariant*: a run counts only if the tracer's statistics contain the expected events, and none
//! of a load that is not traced.

mod load;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkkin_tracer::enrich::usdt;
use blkkin_tracer::{Tracer, TracerConfig};

use crate::frame::number::with_spread;
use crate::frame::{BenchReport, Figure, RoundPolicy, Rounds, Table};
use crate::harness::{self, RunningTracer, TracerResult};
use crate::{Setting, affinity, library};
use load::Action;
pub(crate) use load::run as load;

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 9, max_rounds: 15, time_limit: Duration::from_secs(240) };
/// Chunks of 1,000 operations, of each kind.
const CHUNKS: &str = "200";
const CHUNKS_QUICK: &str = "20";
/// Spread in ns that ends the rounds.
const SPREAD_ENOUGH: f64 = 25.0;

/// Tracer that the load runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TracerMode {
    None,
    Disabled { traced: bool },
    Enabled { traced: bool },
}

impl TracerMode {
    const ALL: [TracerMode; 5] = [
        TracerMode::None,
        TracerMode::Disabled { traced: true },
        TracerMode::Disabled { traced: false },
        TracerMode::Enabled { traced: true },
        TracerMode::Enabled { traced: false },
    ];

    fn traces_load(self) -> bool {
        matches!(self, TracerMode::Disabled { traced: true } | TracerMode::Enabled { traced: true })
    }

    fn is_enabled(self) -> bool {
        matches!(self, TracerMode::Enabled { .. })
    }
}

/// ns per operation.
type Times = BTreeMap<Action, f64>;

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let quick = setting.extent.is_quick();
    let chunks = if quick { CHUNKS_QUICK } else { CHUNKS };
    let folder = tempfile::tempdir()?;
    let library = library::compile(folder.path(), "usdt", include_str!("usdt.c"), "-fcf-protection=none")?;
    let (mut lost, mut usdt_ns) = (0, Vec::new());
    let measure = |mode: TracerMode| measured(mode, &library, chunks, &mut lost, &mut usdt_ns);
    let enough = |rounds: &[Vec<Times>]| {
        let all = [true, false].into_iter().flat_map(|traced| Action::ALL.map(|action| (action, traced)));
        all.map(|(action, traced)| overhead(rounds, action, traced).spread())
            .all(|spread| spread < SPREAD_ENOUGH)
    };
    let rounds = POLICY.quick(quick).run(&TracerMode::ALL, measure, enough)?;
    Ok(build_report(&rounds, lost, &usdt_ns.into_iter().collect()))
}

fn measured(
    mode: TracerMode,
    library: &Path,
    chunks: &str,
    lost: &mut u64,
    usdt_ns: &mut Vec<f64>,
) -> Result<Times> {
    let path = library.to_string_lossy();
    let words = ["measure-optin", chunks, &path];
    if mode == TracerMode::None {
        return times(&harness::wait_for_output(harness::spawn_load(&words)?)?);
    }
    let mut tracer = tracer(mode, library)?;
    usdt_ns.extend(tracer.usdt_overhead_ns());
    let usdt_events = tracer.attach_usdt()?;
    // Consumer of the USDT events.
    let consumer = usdt_events.map(|usdt_events| {
        std::thread::spawn(move || {
            let _ = affinity::pin(&affinity::other_cpus());
            usdt_events.into_iter().for_each(drop);
        })
    });
    let load = if mode.traces_load() {
        harness::spawn_traced_load(&tracer, &words)?
    } else {
        harness::spawn_load(&words)?
    };
    let running = RunningTracer::start(tracer);
    let answer = harness::wait_for_output(load)?;
    let done = running.finish()?;
    if let Some(consumer) = consumer {
        consumer.join().ok().context("the consumer of USDT events panicked")?;
    }
    *lost += check(mode, &done)?;
    times(&answer)
}

fn tracer(mode: TracerMode, library: &Path) -> Result<Tracer> {
    let mut config = TracerConfig::default();
    if mode.is_enabled() {
        config.nbd = true;
        let enabled = [("bench:bare", None), ("bench:four", None), ("bench:text", Some(5))];
        config.usdt_probes = usdt::find(library, &enabled.map(|(name, text)| (name.to_owned(), text)))?;
    }
    harness::load_tracer_with(&config)
}

/// Checks the statistics and returns the number of lost records.
fn check(mode: TracerMode, done: &TracerResult) -> Result<u64> {
    let (Some(usdt_events), Some(nbd)) = (done.usdt, done.nbd) else {
        if mode.is_enabled() {
            bail!("the tracer has no statistics of USDT events and NBD requests");
        }
        return Ok(done.stats.lost());
    };
    let seen = [usdt_events.fired, nbd.requests];
    let matches = if mode.traces_load() { !seen.contains(&0) } else { seen == [0, 0] };
    if !matches || usdt_events.fired != usdt_events.recorded + usdt_events.dropped {
        bail!("{mode:?}: {usdt_events:?}, {nbd:?}");
    }
    if nbd.dropped == 0 && nbd.replies != nbd.requests {
        bail!("of {} requests {} were answered", nbd.requests, nbd.replies);
    }
    Ok(done.stats.lost() + usdt_events.dropped + nbd.dropped)
}

fn times(output: &str) -> Result<Times> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ').context("a load prints: name, ns")?;
        Ok((Action::by_name(name).context("a load prints known operations")?, value.parse()?))
    };
    output.lines().map(line).collect()
}

fn of(rounds: &[Vec<Times>], mode: TracerMode, action: Action) -> Rounds {
    let index = TracerMode::ALL.iter().position(|one| *one == mode).unwrap_or_default();
    rounds[index].iter().filter_map(|times| Some(times.get(&action)? / action.calls())).collect()
}

/// Returns the mode that an operation is compared with.
fn base(action: Action, traced: bool) -> TracerMode {
    if action.is_usdt() { TracerMode::None } else { TracerMode::Disabled { traced } }
}

/// Returns the additional ns per USDT event or system call, round by round.
fn overhead(rounds: &[Vec<Times>], action: Action, traced: bool) -> Rounds {
    let (enabled, base) =
        (of(rounds, TracerMode::Enabled { traced }, action), of(rounds, base(action, traced), action));
    Rounds::differences(&enabled, &base)
}

fn build_report(rounds: &[Vec<Times>], lost: u64, usdt_ns: &Rounds) -> BenchReport {
    let columns = [
        "USDT event or call",
        "untraced, ns",
        "traced",
        "traced, enabled",
        "not traced",
        "not traced, enabled",
    ];
    let mut table = Table::new("", &columns);
    let mut figures = Vec::new();
    for action in Action::ALL {
        let shown = TracerMode::ALL.map(|mode| {
            let rounds = of(rounds, mode, action);
            with_spread(rounds.median(), rounds.spread())
        });
        let [none, traced, not_traced, enabled, enabled_not_traced] = shown;
        table.row([action.title().to_owned(), none, traced, enabled, not_traced, enabled_not_traced]);
    }
    for traced in [true, false] {
        for action in Action::ALL {
            let condition = if traced { "traced" } else { "of a task that is not traced" };
            let ratios = Rounds::ratios(
                &of(rounds, TracerMode::Enabled { traced }, action),
                &of(rounds, base(action, traced), action),
            );
            let figure = Figure::of(
                format!("{}, {condition}", action.title()),
                &overhead(rounds, action, traced),
                "ns above",
            );
            figures.push(figure.ratio(&ratios));
        }
    }
    let how = format!(
        "ns of a USDT event above the same without a tracer, and of a send or receive above the same under a tracer without `--nbd`; medians of {} rounds \
         of {CHUNKS},000 operations of each, alternating. A request is a flush over a pair of Unix sockets in one process: two sends, \
         two receives. The load runs on CPU {}, the reader on the others.",
        rounds[0].len(),
        affinity::load_cpu()
    );
    let notes = vec![
        format!(
            "blkkin's own measurement at every start, which it prints before it attaches a probe: {} ns per USDT event.",
            with_spread(usdt_ns.median(), usdt_ns.spread())
        ),
        format!("{lost} records were lost meanwhile: a full ring makes a call cheaper."),
    ];
    BenchReport { how, figures, tables: vec![table], notes, ..BenchReport::default() }
}
