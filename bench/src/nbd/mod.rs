//! `nbd`: what it costs a storage daemon to be instrumented, and to be traced.
//!
//! ```text
//! client ── Unix socket ── blkkin-nbd ── file in memory
//!                          └ LTTng-UST → consumerd → relayd → our reader (decode, merge, mapping)
//! ```
//!
//! The same server three ways, in turns, each time a new process: told to know nothing of LTTng (`BLKKIN_UST=0`), with LTTng's daemons there
//! and no session, and in a session as `--ust` makes it, read by the same reader.
//!
//! *What is measured* is first of all the server's own processor time a request (all of its threads, LTTng's two among them; user and
//! system; in ns). Where those who collect have other CPUs, that is what its peak is made of: what a CPU has
//! no time for it does not serve. It is measured in two places:
//!
//! - *apart*: the server alone on one CPU, everything else on the others; the client takes as little as it can ([`client`]) and goes before
//!   those who collect. How busy the server's CPU was is said beside: below 100 % the client was waited for, and requests a second say
//!   less than the processor time does.
//! - *shared*: nothing is bound, and the client is fio, so on a machine of two CPUs three take from both.
//!
//! *Invariant*: a traced turn counts only if as many requests were told as the client made, or LTTng says how many events it had no room
//! for. *Rejected*: fio in both places. It takes as much time a request as the server: where one CPU is for it and for all who collect, they
//! are what is measured. The kernel's side is not in it: what a traced call costs is `call`'s and `hooks`'.

mod client;
mod collectors;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::collectors::{Collectors, Heard};
use self::server::{Asked, Server};
use crate::frame::number::{count, number, with_spread};
use crate::frame::{Figure, Found, Goal, Rounds, Table, Turns};
use crate::{Setting, affinity};

const TURNS: Turns = Turns { warm_up: 1, least: 9, most: 25, at_most: Duration::from_secs(100) };
/// Of one turn.
const RUN: Duration = Duration::from_millis(1_500);
const RUN_QUICK: Duration = Duration::from_millis(500);
/// %, of processor time a request.
const TRACED_MAX: f64 = 3.0;
const STOPPED_MAX: f64 = 0.2;
/// A tenth of the first goal.
const SPREAD_ENOUGH: f64 = 0.3;
/// In the file that is served.
const BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ignorant,
    Stopped,
    Traced,
}

impl Way {
    const ALL: [Way; 3] = [Way::Ignorant, Way::Stopped, Way::Traced];

    fn name(self) -> &'static str {
        match self {
            Way::Ignorant => "BLKKIN_UST=0",
            Way::Stopped => "instrumented, tracing stopped",
            Way::Traced => "traced",
        }
    }
}

/// Where who runs.
#[derive(Clone, Debug)]
struct Place {
    name: &'static str,
    server: Vec<usize>,
    others: Vec<usize>,
}

impl Place {
    fn is_apart(&self) -> bool {
        self.name == "apart"
    }
}

/// What came of one turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    asked: Asked,
    heard: Option<Heard>,
}

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let program = program()?;
    let folder = tempfile::tempdir_in("/dev/shm").context("no folder in memory")?;
    let file = folder.path().join("disk");
    std::fs::write(&file, vec![0xb1; BYTES]).context("no file in memory")?;
    let all = affinity::cpus();
    let places = [
        Place { name: "apart", server: vec![affinity::load_cpu()], others: affinity::other_cpus() },
        Place { name: "shared", server: all.clone(), others: all.clone() },
    ];
    let mut measured = Vec::new();
    for place in &places {
        affinity::pin(&place.others).context("cannot bind this process to CPUs")?;
        let rounds = measure(&program, &file, place, setting);
        affinity::pin(&all).context("cannot unbind this process")?;
        measured.push(rounds?);
    }
    Ok(found(&places, &measured))
}

/// Beside this program: `cargo xtask bench` builds both.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program does not know where it is")?;
    let program = own.with_file_name("blkkin-nbd");
    if !program.exists() {
        bail!("{} is not there: `cargo xtask bench nbd` builds it", program.display());
    }
    Ok(program)
}

fn measure(program: &Path, file: &Path, place: &Place, setting: &Setting) -> Result<Vec<Vec<Turn>>> {
    let quick = setting.extent.is_quick();
    let length = if quick { RUN_QUICK } else { RUN };
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let collectors = Collectors::start(folder.path())?;
    let one = |way: Way| {
        let session = match way {
            Way::Traced => Some(collectors.session()?),
            _ => None,
        };
        let server = Server::start(program, file, &place.server, way == Way::Ignorant)?;
        let asked = if place.is_apart() { server.fill(length)? } else { server.ask(length)? };
        server.stop()?;
        let heard = session.map(|session| session.end()).transpose()?;
        let turn = Turn { asked, heard };
        check(&turn)?;
        Ok(turn)
    };
    let enough = |turns: &[Vec<Turn>]| more(turns, Way::Traced, processor).spread() < SPREAD_ENOUGH;
    TURNS.quick(quick).run(&Way::ALL, one, enough)
}

fn check(turn: &Turn) -> Result<()> {
    let Some(heard) = turn.heard else { return Ok(()) };
    if heard.lost == 0 && heard.begun < turn.asked.requests {
        bail!("the client made {} requests, and {} were told of", turn.asked.requests, heard.begun);
    }
    Ok(())
}

/// µs of the server a request.
fn processor(turn: &Turn) -> f64 {
    turn.asked.server.as_secs_f64() * 1e6 / turn.asked.requests as f64
}

fn rate(turn: &Turn) -> f64 {
    turn.asked.requests as f64 / turn.asked.wall.as_secs_f64()
}

fn of(turns: &[Vec<Turn>], way: Way, what: impl Fn(&Turn) -> f64) -> Rounds {
    let place = Way::ALL.iter().position(|one| *one == way).unwrap_or_default();
    turns[place].iter().map(what).collect()
}

fn ratios(turns: &[Vec<Turn>], way: Way, what: fn(&Turn) -> f64) -> Rounds {
    Rounds::ratios(&of(turns, way, what), &of(turns, Way::Ignorant, what))
}

/// % above who knows nothing of LTTng, in the same round.
fn more(turns: &[Vec<Turn>], way: Way, what: fn(&Turn) -> f64) -> Rounds {
    ratios(turns, way, what).map(|ratio| 100.0 * (ratio - 1.0))
}

fn found(places: &[Place], measured: &[Vec<Vec<Turn>>]) -> Found {
    let columns = [
        "where",
        "the server is",
        "requests/s",
        "µs of the server a request",
        "its CPUs, busy",
        "p99, µs",
        "events a request",
        "collecting, µs a request",
        "of it our reader",
        "lost",
    ];
    let mut table = Table::new("", &columns);
    let mut figures = Vec::new();
    for (place, turns) in places.iter().zip(measured) {
        for way in Way::ALL {
            table.row(row(place, turns, way));
        }
        for (way, goal) in [(Way::Traced, TRACED_MAX), (Way::Stopped, STOPPED_MAX)] {
            let name = |what: &str| format!("{}, {}: {what}", place.name, way.name());
            let rounds = more(turns, way, processor);
            let figure = Figure::of(name("more processor time of the server a request"), &rounds, "%")
                .ratio(&ratios(turns, way, processor));
            // The goal is for who has CPUs of his own.
            figures.push(if place.is_apart() { figure.goal(Goal::AtMost(goal)) } else { figure });
            let fewer = ratios(turns, way, rate).map(|ratio| 100.0 * (1.0 - ratio));
            figures.push(Figure::of(name("fewer requests a second"), &fewer, "%"));
        }
    }
    let how = format!(
        "Reads of 4 KiB over one connection by a Unix socket, the file in memory; medians of {} rounds (apart) and {} (shared) of {} s each, in \
         turns, each with a new server. *Apart*: the server on CPU {:?}, everything else on {:?}, a client that takes little, 32 in flight; \
         *shared*: all on both, fio's nbd engine, 16 in flight. *Collecting* is LTTng's daemons and our reader, with what making and ending the \
         session takes.",
        measured[0][0].len(),
        measured[1][0].len(),
        number(RUN.as_secs_f64()),
        places[0].server,
        places[0].others,
    );
    Found { how, figures, tables: vec![table], ..Found::default() }
}

fn row(place: &Place, turns: &[Vec<Turn>], way: Way) -> Vec<String> {
    let shown = |what: &dyn Fn(&Turn) -> f64| {
        let rounds = of(turns, way, what);
        with_spread(rounds.median(), rounds.spread())
    };
    let traced = |what: &dyn Fn(&Turn, Heard) -> f64| match way {
        Way::Traced => shown(&|turn| turn.heard.map_or(f64::NAN, |heard| what(turn, heard))),
        _ => String::new(),
    };
    let a_request = |turn: &Turn, time: Duration| time.as_secs_f64() * 1e6 / turn.asked.requests as f64;
    let place_of = Way::ALL.iter().position(|one| *one == way).unwrap_or_default();
    let lost: u64 = turns[place_of].iter().filter_map(|turn| turn.heard).map(|heard| heard.lost).sum();
    vec![
        place.name.to_owned(),
        way.name().to_owned(),
        shown(&rate),
        shown(&processor),
        shown(&|turn| turn.asked.server.as_secs_f64() / turn.asked.wall.as_secs_f64()),
        if place.is_apart() { String::new() } else { shown(&|turn| turn.asked.p99) },
        traced(&|turn, heard| heard.events as f64 / turn.asked.requests as f64),
        traced(&|turn, heard| a_request(turn, heard.reader + heard.daemons)),
        traced(&|turn, heard| a_request(turn, heard.reader)),
        if way == Way::Traced { count(lost) } else { String::new() },
    ]
}
