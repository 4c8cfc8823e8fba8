//! `nbd`: what it costs a storage daemon to be instrumented, and to be traced.
//!
//! ```text
//! client ── Unix socket ── blkkin-nbd ── file in memory
//!                          └ LTTng-UST → consumerd → relayd → our reader (decode, merge, mapping)
//! ```
//!
//! The same server four ways: told to know nothing of LTTng (`BLKKIN_UST=0`), with LTTng's daemons there and no session, in a session as
//! `--ust` makes it, read by the same reader, and there with [`server::ROOTS`] roots a second kept.
//!
//! *What is measured* is first of all the server's own processor time a request (all of its threads, LTTng's two among them; user and
//! system; in ns), beside that of one that is ignorant and runs at the same time. Where those who collect have other CPUs, that is what its
//! peak is made of: what a CPU has no time for it does not serve. It is measured in two places:
//!
//! - [`apart`]: the server alone on one CPU, everything else on the others; the client ([`client`]) sees to it that the server's work
//!   is the same whatever time it has itself. How busy the server's CPU was is said beside: below 100 % the client was waited for, and
//!   requests a second say less than the processor time does.
//! - [`shared`]: nothing is bound, and the client is fio, so on a machine of two CPUs three take from both.
//!
//! *Two processes of one program differ* in what a request takes them, by as much as what is looked for, and as long as they live. 800 turns of one
//! pair said 8.2 ± 0.5 %, and those of the next pair 0.8 ± 0.5 %. So there are several pairs, and the spread is that between them.
//!
//! *Invariant*: traced turns count only if as many requests were told as the client made, or LTTng says how many events it had no room
//! for. *Rejected*: fio in both places ([`client`] says why). The kernel's side is not in it: what a traced call costs is `call`'s and
//! `hooks`'.

mod apart;
mod burden;
mod client;
mod collectors;
mod server;
mod shared;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::collectors::Heard;
use self::server::Asked;
use crate::frame::number::{count, number, with_spread};
use crate::frame::{Figure, Found, Goal, Rounds, Table};
use crate::{Setting, affinity};

/// %, of processor time a request.
const TRACED_MAX: f64 = 3.0;
const STOPPED_MAX: f64 = 0.2;
/// In the file that is served.
const BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ignorant,
    Stopped,
    Traced,
    Sampled,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Ignorant => "BLKKIN_UST=0",
            Way::Stopped => "instrumented, tracing stopped",
            Way::Traced => "traced",
            Way::Sampled => "traced, 1,000 roots/s kept",
        }
    }

    fn is_collected(self) -> bool {
        matches!(self, Way::Traced | Way::Sampled)
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

/// The turns of two servers that ran at one time: of the ignorant one, and of the other.
type Pair = [Vec<Asked>; 2];

/// One way beside the ignorant one. A process is faster or slower than its like as long as it lives, by some % (where its memory happens to
/// lie), and no number of turns tells that from what is looked for: so there are several pairs, and a pair is one measurement.
struct Compared {
    way: Way,
    pairs: Vec<Pair>,
    /// In all turns, and of how many requests.
    heard: Option<(Heard, u64)>,
}

impl Compared {
    /// Pair by pair, the median of its turns.
    fn ratios(&self, what: fn(&Asked) -> f64) -> Rounds {
        let rounds = |turns: &[Asked]| turns.iter().map(what).collect();
        let ratio = |[ignorant, asked]: &Pair| Rounds::ratios(&rounds(asked), &rounds(ignorant)).median();
        self.pairs.iter().map(ratio).collect()
    }

    /// % above the ignorant one, in the same round.
    fn more(&self, what: fn(&Asked) -> f64) -> Rounds {
        self.ratios(what).map(|ratio| 100.0 * (ratio - 1.0))
    }
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
        let measure = if place.is_apart() { apart::measure } else { shared::measure };
        let compared = measure(&program, &file, place, setting.extent.is_quick());
        affinity::pin(&all).context("cannot unbind this process")?;
        measured.push(compared?);
    }
    Ok(found(&places, &measured))
}

/// Beside this program: `cargo xtask bench` builds both.
pub(crate) fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program does not know where it is")?;
    let program = own.with_file_name("blkkin-nbd");
    if !program.exists() {
        bail!("{} is not there: `cargo xtask bench nbd` builds it", program.display());
    }
    Ok(program)
}

/// µs of the server a request.
fn processor(turn: &Asked) -> f64 {
    turn.server.as_secs_f64() * 1e6 / turn.requests as f64
}

fn rate(turn: &Asked) -> f64 {
    turn.requests as f64 / turn.wall.as_secs_f64()
}

fn busy(turn: &Asked) -> f64 {
    turn.server.as_secs_f64() / turn.wall.as_secs_f64()
}

fn found(places: &[Place; 2], measured: &[Vec<Compared>]) -> Found {
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
    for (place, all) in places.iter().zip(measured) {
        for compared in all {
            // What it is compared with met the same: who collects takes from both.
            let beside = format!("{}, in turns with the next", Way::Ignorant.name());
            let turns = |which: usize| compared.pairs.iter().map(move |pair| &*pair[which]);
            table.row(row(place, beside, turns(0), None));
            table.row(row(place, compared.way.name().to_owned(), turns(1), compared.heard));
            let name = |what: &str| format!("{}, {}: {what}", place.name, compared.way.name());
            let figure = Figure::of(
                name("more processor time of the server a request"),
                &compared.more(processor),
                "%",
            )
            .ratio(&compared.ratios(processor));
            let goal = if compared.way == Way::Stopped { STOPPED_MAX } else { TRACED_MAX };
            // The goal is for who has CPUs of his own.
            figures.push(if place.is_apart() { figure.goal(Goal::AtMost(goal)) } else { figure });
            let fewer = compared.ratios(rate).map(|ratio| 100.0 * (1.0 - ratio));
            figures.push(Figure::of(name("fewer requests a second"), &fewer, "%"));
        }
    }
    let pairs =
        |place: usize| measured[place].iter().map(|compared| compared.pairs.len()).min().unwrap_or_default();
    let how = format!(
        "Reads of 4 KiB by Unix sockets, the file in memory. *Apart*: the server on CPU {:?}, everything else on {:?}; {} connections with {} \
         in flight each, by a client that never sleeps; {} pairs of servers that run at once, each pair asked in turns of {} ms, {} each. *Shared*: all on both, \
         fio's nbd engine, one connection, 16 in flight; {} pairs of servers one behind the other, {} s each. Medians. *Collecting* is LTTng's daemons \
         and our reader, with what making and ending the session takes.",
        places[0].server,
        places[0].others,
        client::CONNECTIONS,
        client::IN_FLIGHT,
        pairs(0),
        apart::SLICE.as_millis(),
        measured[0]
            .iter()
            .flat_map(|compared| &compared.pairs)
            .map(|[_, asked]| asked.len())
            .min()
            .unwrap_or_default(),
        pairs(1),
        number(shared::RUN.as_secs_f64()),
    );
    Found { how, figures, tables: vec![table], ..Found::default() }
}

fn row<'a>(
    place: &Place,
    is: String,
    pairs: impl Iterator<Item = &'a [Asked]> + Clone,
    heard: Option<(Heard, u64)>,
) -> Vec<String> {
    let shown = |what: fn(&Asked) -> f64| {
        let each = pairs.clone().map(|turns| turns.iter().map(what).collect::<Rounds>().median());
        let rounds: Rounds = each.collect();
        with_spread(rounds.median(), rounds.spread())
    };
    let told = |what: &dyn Fn(Heard) -> f64| {
        heard.map(|(heard, requests)| number(what(heard) / requests as f64)).unwrap_or_default()
    };
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    vec![
        place.name.to_owned(),
        is,
        shown(rate),
        shown(processor),
        shown(busy),
        if place.is_apart() { String::new() } else { shown(|turn| turn.p99) },
        told(&|heard| heard.events as f64),
        told(&|heard| us(heard.reader + heard.daemons)),
        told(&|heard| us(heard.reader)),
        heard.map(|(heard, _)| count(heard.lost)).unwrap_or_default(),
    ]
}
