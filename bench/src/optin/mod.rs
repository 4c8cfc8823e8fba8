//! `optin`: what only those pay for who ask for it: probes of programs (`--probes`), and requests to NBD servers as their clients make
//! them (`--nbd`).
//!
//! Each round runs the load five times: with no tracer in the kernel; followed by a tracer of whom neither is asked, and beside it; followed
//! by one of whom both are asked, and beside it. A hit is compared with none; a send or receive with the same under the
//! tracer that was not asked.
//!
//! *Invariant*: a run counts only if the tracer's own books say that what was to be seen was seen, and of who is not followed nothing.

mod load;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkkin_tracer::enrich::usdt;
use blkkin_tracer::{Tracer, TracerConfig};

use crate::frame::number::with_spread;
use crate::frame::{Figure, Found, Rounds, Table, Turns};
use crate::harness::{self, Done, Running};
use crate::{Setting, affinity, library};
use load::Turn;
pub(crate) use load::run as load;

const TURNS: Turns = Turns { warm_up: 1, least: 9, most: 15, at_most: Duration::from_secs(240) };
/// Chunks of 1,000 turns, of each kind.
const CHUNKS: &str = "200";
const CHUNKS_QUICK: &str = "20";
/// ns.
const SPREAD_ENOUGH: f64 = 25.0;

/// Under what the load runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Nobody,
    Unasked { followed: bool },
    Asked { followed: bool },
}

impl Under {
    const ALL: [Under; 5] = [
        Under::Nobody,
        Under::Unasked { followed: true },
        Under::Unasked { followed: false },
        Under::Asked { followed: true },
        Under::Asked { followed: false },
    ];

    fn follows(self) -> bool {
        matches!(self, Under::Unasked { followed: true } | Under::Asked { followed: true })
    }

    fn is_asked(self) -> bool {
        matches!(self, Under::Asked { .. })
    }
}

/// ns of a turn.
type Times = BTreeMap<Turn, f64>;

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let quick = setting.extent.is_quick();
    let chunks = if quick { CHUNKS_QUICK } else { CHUNKS };
    let folder = tempfile::tempdir()?;
    let library = library::compile(folder.path(), "hits", include_str!("hits.c"), "-fcf-protection=none")?;
    let (mut lost, mut hit_ns) = (0, Vec::new());
    let one = |under: Under| measured(under, &library, chunks, &mut lost, &mut hit_ns);
    let enough = |rounds: &[Vec<Times>]| {
        let all = [true, false].into_iter().flat_map(|followed| Turn::ALL.map(|turn| (turn, followed)));
        all.map(|(turn, followed)| above(rounds, turn, followed).spread())
            .all(|spread| spread < SPREAD_ENOUGH)
    };
    let rounds = TURNS.quick(quick).run(&Under::ALL, one, enough)?;
    Ok(found(&rounds, lost, &hit_ns.into_iter().collect()))
}

fn measured(
    under: Under,
    library: &Path,
    chunks: &str,
    lost: &mut u64,
    hit_ns: &mut Vec<f64>,
) -> Result<Times> {
    let path = library.to_string_lossy();
    let words = ["measure-optin", chunks, &path];
    if under == Under::Nobody {
        return times(&harness::answer(harness::load(&words)?)?);
    }
    let mut tracer = tracer(under, library)?;
    hit_ns.extend(tracer.usdt_overhead_ns());
    let hits = tracer.attach_usdt()?;
    // Somebody takes them.
    let taker = hits.map(|hits| {
        std::thread::spawn(move || {
            let _ = affinity::pin(&affinity::other_cpus());
            hits.into_iter().for_each(drop);
        })
    });
    let load = if under.follows() { harness::traced_load(&tracer, &words)? } else { harness::load(&words)? };
    let running = Running::start(tracer);
    let answer = harness::answer(load)?;
    let done = running.finish()?;
    if let Some(taker) = taker {
        taker.join().ok().context("who takes hits panicked")?;
    }
    *lost += check(under, &done)?;
    times(&answer)
}

fn tracer(under: Under, library: &Path) -> Result<Tracer> {
    let mut config = TracerConfig::default();
    if under.is_asked() {
        config.nbd = true;
        let asked = [("bench:bare", None), ("bench:four", None), ("bench:text", Some(5))];
        config.usdt_probes = usdt::find(library, &asked.map(|(name, text)| (name.to_owned(), text)))?;
    }
    harness::tracer_with(&config)
}

/// How many records were lost.
fn check(under: Under, done: &Done) -> Result<u64> {
    let (Some(hits), Some(nbd)) = (done.hits, done.nbd) else {
        if under.is_asked() {
            bail!("the tracer has no books of hits and requests");
        }
        return Ok(done.accounts.lost());
    };
    let seen = [hits.fired, nbd.requests];
    let as_said = if under.follows() { !seen.contains(&0) } else { seen == [0, 0] };
    if !as_said || hits.fired != hits.recorded + hits.dropped {
        bail!("{under:?}: {hits:?}, {nbd:?}");
    }
    if nbd.dropped == 0 && nbd.replies != nbd.requests {
        bail!("of {} requests {} were answered", nbd.requests, nbd.replies);
    }
    Ok(done.accounts.lost() + hits.dropped + nbd.dropped)
}

fn times(said: &str) -> Result<Times> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ').context("a load says: name, ns")?;
        Ok((Turn::by_name(name).context("a load says the turns that there are")?, value.parse()?))
    };
    said.lines().map(line).collect()
}

fn of(rounds: &[Vec<Times>], under: Under, turn: Turn) -> Rounds {
    let place = Under::ALL.iter().position(|one| *one == under).unwrap_or_default();
    rounds[place].iter().filter_map(|times| Some(times.get(&turn)? / turn.calls())).collect()
}

/// What a turn is compared with.
fn base(turn: Turn, followed: bool) -> Under {
    if turn.is_hit() { Under::Nobody } else { Under::Unasked { followed } }
}

/// ns of a call or a hit, round by round.
fn above(rounds: &[Vec<Times>], turn: Turn, followed: bool) -> Rounds {
    let (asked, base) = (of(rounds, Under::Asked { followed }, turn), of(rounds, base(turn, followed), turn));
    Rounds::differences(&asked, &base)
}

fn found(rounds: &[Vec<Times>], lost: u64, hit_ns: &Rounds) -> Found {
    let columns =
        ["a hit, or a call", "untraced, ns", "traced", "traced, asked for", "beside", "beside, asked for"];
    let mut table = Table::new("", &columns);
    let mut figures = Vec::new();
    for turn in Turn::ALL {
        let shown = Under::ALL.map(|under| {
            let rounds = of(rounds, under, turn);
            with_spread(rounds.median(), rounds.spread())
        });
        let [nobody, followed, beside, asked, asked_beside] = shown;
        table.row([turn.title().to_owned(), nobody, followed, asked, beside, asked_beside]);
    }
    for followed in [true, false] {
        for turn in Turn::ALL {
            let who = if followed { "followed" } else { "of a task that is not followed" };
            let ratios = Rounds::ratios(
                &of(rounds, Under::Asked { followed }, turn),
                &of(rounds, base(turn, followed), turn),
            );
            let figure =
                Figure::of(format!("{}, {who}", turn.title()), &above(rounds, turn, followed), "ns above");
            figures.push(figure.ratio(&ratios));
        }
    }
    let how = format!(
        "ns of a hit above the same without a tracer, and of a send or receive above the same under a tracer without `--nbd`; medians of {} rounds \
         of {CHUNKS},000 turns of each, in turns. A request is a flush over a pair of Unix sockets, both ends of it the same process's: two sends, \
         two receives. The load runs on CPU {}, the reader on the others.",
        rounds[0].len(),
        affinity::load_cpu()
    );
    let notes = vec![
        format!(
            "What blkkin itself measures at every start, and says before it puts anything into a program: {} ns a hit.",
            with_spread(hit_ns.median(), hit_ns.spread())
        ),
        format!("{lost} records were lost meanwhile: a full ring makes a call cheaper."),
    ];
    Found { how, figures, tables: vec![table], notes, ..Found::default() }
}
