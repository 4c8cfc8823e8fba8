//! `nbd`: cost of instrumentation and of tracing for a storage daemon.
//!
//! ```text
//! client ── Unix socket ── blkkin-nbd ── file in memory
//!                          └ LTTng-UST → consumerd → relayd → blkkin's reader (decode, merge, mapping)
//! ```
//!
//! The same server in four modes: with LTTng disabled (`BLKKIN_UST=0`); with LTTng's daemons but no
//! session; in a session like that of `--ust`, read by the same reader, with the default limit of
//! sampled roots; and in such a session without a limit.
//!
//! *Measured*: the server's own processor time per request (all threads including LTTng's two; user
//! and system; in ns), relative to a disabled server that runs at the same time. The server is
//! alone on one CPU, all other processes are on the others ([`apart`]), so this time determines the
//! server's peak rate. The client ([`client`]) keeps the server's work constant. The report
//! contains the utilisation of the server's CPU: below 100 % the client was the bottleneck, and
//! requests per second are less meaningful than the processor time.
//!
//! *Two processes of one program differ* in their cost per request by as much as the measured
//! effect, for their whole life. 800 slices of one pair gave 8.2 ± 0.5 %, and those of the next
//! pair 0.8 ± 0.5 %. So there are several pairs, and the spread is that between pairs.
//!
//! *Invariant*: slices without a limit count only if all requests of the client were collected, or
//! LTTng reports discarded events. *Rejected*: fio as client (see [`client`]), and
//! all processes on all CPUs, where the spread exceeds the effect. The kernel's side is
//! not included: `call` measures traced system calls.

mod apart;
mod client;
mod collectors;
mod cpu_load;
pub(crate) mod nbdkit;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::collectors::CollectionStats;
use self::server::RequestStats;
use crate::frame::number::{count, number, with_spread};
use crate::frame::{BenchReport, Figure, Goal, Rounds, Table};
use crate::{Setting, affinity};

/// Goals in % of processor time per request.
const TRACED_MAX: f64 = 3.0;
const STOPPED_MAX: f64 = 0.2;
/// Size of the served file.
const BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instrumentation {
    Disabled,
    Inactive,
    Sampled,
    Unlimited,
}

impl Instrumentation {
    fn name(self) -> &'static str {
        match self {
            Instrumentation::Disabled => "BLKKIN_UST=0",
            Instrumentation::Inactive => "instrumented, tracing stopped",
            Instrumentation::Sampled => "traced",
            Instrumentation::Unlimited => "traced, all roots",
        }
    }

    fn is_collected(self) -> bool {
        matches!(self, Instrumentation::Sampled | Instrumentation::Unlimited)
    }
}

/// Slices of two servers that ran at the same time: the disabled one, and the measured one.
type Pair = [Vec<RequestStats>; 2];

/// Mode compared with the disabled one. A process is faster or slower than another one by some %
/// for its whole life (by its memory layout). More slices cannot separate this from the effect, so
/// there are several pairs, and a pair is one measurement.
struct Compared {
    mode: Instrumentation,
    pairs: Vec<Pair>,
    /// Counters of all slices, with their number of requests.
    collected: Option<(CollectionStats, u64)>,
}

impl Compared {
    /// Returns the ratio of each pair, the median of its slices.
    fn ratios(&self, what: fn(&RequestStats) -> f64) -> Rounds {
        let rounds = |turns: &[RequestStats]| turns.iter().map(what).collect();
        let ratio = |[disabled, stats]: &Pair| Rounds::ratios(&rounds(stats), &rounds(disabled)).median();
        self.pairs.iter().map(ratio).collect()
    }

    /// Returns the excess over the disabled server in %, pair by pair.
    fn more(&self, what: fn(&RequestStats) -> f64) -> Rounds {
        self.ratios(what).map(|ratio| 100.0 * (ratio - 1.0))
    }
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let program = program()?;
    let quick = setting.extent.is_quick();
    Ok(build_report(&with_file(|file| apart::measure(&program, file, quick))?))
}

/// Measures with a file in memory, on the CPUs that the servers do not use.
fn with_file<T>(measure: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let folder = tempfile::tempdir_in("/dev/shm").context("no folder in memory")?;
    let file = folder.path().join("disk");
    std::fs::write(&file, vec![0xb1; BYTES]).context("no file in memory")?;
    let all = affinity::cpus();
    affinity::pin(&affinity::other_cpus()).context("cannot bind this process to CPUs")?;
    let measured = measure(&file);
    affinity::pin(&all).context("cannot unbind this process")?;
    measured
}

/// Returns the path of the server, next to this program: `cargo xtask bench` builds both.
pub(crate) fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program does not know where it is")?;
    let program = own.with_file_name("blkkin-nbd");
    if !program.exists() {
        bail!("{} is not there: `cargo xtask bench nbd` builds it", program.display());
    }
    Ok(program)
}

/// Returns µs of the server per request.
fn processor(turn: &RequestStats) -> f64 {
    turn.server.as_secs_f64() * 1e6 / turn.requests as f64
}

fn rate(turn: &RequestStats) -> f64 {
    turn.requests as f64 / turn.wall.as_secs_f64()
}

fn busy(turn: &RequestStats) -> f64 {
    turn.server.as_secs_f64() / turn.wall.as_secs_f64()
}

fn build_report(measured: &[Compared]) -> BenchReport {
    let columns = [
        "the server is",
        "requests/s",
        "µs of the server a request",
        "its CPUs, busy",
        "events a request",
        "collecting, µs a request",
        "of it blkkin's reader",
        "lost",
    ];
    let mut table = Table::new("", &columns);
    let mut figures = Vec::new();
    for compared in measured {
        // The baseline ran under the same conditions: the collectors affect both.
        let baseline = format!("{}, alternating with the next", Instrumentation::Disabled.name());
        let turns = |which: usize| compared.pairs.iter().map(move |pair| &*pair[which]);
        table.row(row(baseline, turns(0), None));
        table.row(row(compared.mode.name().to_owned(), turns(1), compared.collected));
        let name = |what: &str| format!("{}: {what}", compared.mode.name());
        let figure =
            Figure::of(name("more processor time of the server a request"), &compared.more(processor), "%");
        figures.push(match compared.mode {
            Instrumentation::Inactive => figure.goal(Goal::AtMost(STOPPED_MAX)),
            Instrumentation::Sampled => figure.goal(Goal::AtMost(TRACED_MAX)),
            _ => figure,
        });
        let fewer = compared.ratios(rate).map(|ratio| 100.0 * (1.0 - ratio));
        figures.push(Figure::of(name("fewer requests a second"), &fewer, "%"));
    }
    let how = format!(
        "Reads of 4 KiB over Unix sockets, the file in memory. The server on CPU {}, everything else on {:?}; {} connections with {} \
         in flight each, by a client that never sleeps; {} pairs of servers that run at once, used alternately for {} ms, {} times each. Medians. *Collecting* is LTTng's daemons \
         and our reader, with what making and ending the session takes.",
        affinity::load_cpu(),
        affinity::other_cpus(),
        client::CONNECTIONS,
        client::IN_FLIGHT,
        measured.iter().map(|compared| compared.pairs.len()).min().unwrap_or_default(),
        apart::SLICE.as_millis(),
        measured
            .iter()
            .flat_map(|compared| &compared.pairs)
            .map(|[_, stats]| stats.len())
            .min()
            .unwrap_or_default(),
    );
    BenchReport { how, figures, tables: vec![table], ..BenchReport::default() }
}

fn row<'a>(
    label: String,
    pairs: impl Iterator<Item = &'a [RequestStats]> + Clone,
    collected: Option<(CollectionStats, u64)>,
) -> Vec<String> {
    let shown = |what: fn(&RequestStats) -> f64| {
        let each = pairs.clone().map(|turns| turns.iter().map(what).collect::<Rounds>().median());
        let rounds: Rounds = each.collect();
        with_spread(rounds.median(), rounds.spread())
    };
    let per_request = |what: &dyn Fn(CollectionStats) -> f64| {
        collected.map(|(collected, requests)| number(what(collected) / requests as f64)).unwrap_or_default()
    };
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    vec![
        label,
        shown(rate),
        shown(processor),
        shown(busy),
        per_request(&|collected| collected.events as f64),
        per_request(&|collected| us(collected.reader + collected.daemons)),
        per_request(&|collected| us(collected.reader)),
        collected.map(|(collected, _)| count(collected.lost)).unwrap_or_default(),
    ]
}
