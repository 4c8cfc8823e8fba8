//! The server alone on one CPU, everything else on the others.
//!
//! Two servers run at once, one that knows nothing of LTTng and one that is looked at, and the client asks them in turns of [`SLICE`]: what a
//! hosted machine does meanwhile changes from second to second by more than what is measured, and so falls on both alike. Who is not asked
//! sleeps; and behind a turn of a traced one there is time for what it has said to be collected ([`REST`]), so that falls on its turn. What part
//! of it that took others take in the next turn of the ignorant one ([`burden`](super::burden)).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::burden::Burden;
use super::client::Client;
use super::collectors::Collectors;
use super::server::{Asked, Server};
use super::{Compared, Place, Way};
use crate::frame::Turns;

const PAIRS: usize = 11;
const TURNS: Turns = Turns { warm_up: 10, least: 60, most: 60, at_most: Duration::from_secs(20) };
/// Of one turn.
pub(super) const SLICE: Duration = Duration::from_millis(40);
/// LTTng's live timer twice, and as long again.
const REST: Duration = Duration::from_millis(15);

/// A server with its client.
struct Fed {
    server: Server,
    client: Client,
}

impl Fed {
    fn slice(&mut self) -> Result<Asked> {
        let (before, begun) = (self.server.processor_time()?, Instant::now());
        let requests = self.client.ask(SLICE)?;
        let wall = begun.elapsed();
        let server = self.server.processor_time()?.saturating_sub(before);
        Ok(Asked { requests, wall, server, p99: f64::NAN })
    }
}

pub(super) fn measure(program: &Path, file: &Path, place: &Place, quick: bool) -> Result<Vec<Compared>> {
    let folder = tempfile::tempdir_in("/dev/shm").context("no folder in memory")?;
    let collectors = Collectors::start(folder.path())?;
    let ways = [Way::Stopped, Way::Traced, Way::Sampled];
    let place = Served { program, file, place };
    let one = |way| {
        let mut compared = Compared { way, pairs: Vec::new(), heard: None };
        for number in 0..if quick { 2 } else { PAIRS } {
            pair(&collectors, &place, number, quick, &mut compared)?;
        }
        Ok(compared)
    };
    ways.into_iter().map(one).collect()
}

/// What is served, by whom and where.
struct Served<'a> {
    program: &'a Path,
    file: &'a Path,
    place: &'a Place,
}

impl Served<'_> {
    fn start(&self, way: Way) -> Result<Fed> {
        let server = Server::start(self.program, self.file, &self.place.server, way)?;
        let client = Client::connect(&server.socket())?;
        Ok(Fed { server, client })
    }
}

/// How long those who collect were at it, of the turns in which they had what to collect.
#[derive(Default)]
struct Collected {
    taken: Duration,
    of: Duration,
}

impl Collected {
    fn part(&self) -> f64 {
        if self.of.is_zero() { 0.0 } else { self.taken.as_secs_f64() / self.of.as_secs_f64() }
    }
}

/// One more pair.
fn pair(
    collectors: &Collectors,
    served: &Served<'_>,
    number: usize,
    quick: bool,
    compared: &mut Compared,
) -> Result<()> {
    let way = compared.way;
    let session = way.is_collected().then(|| collectors.session()).transpose()?;
    // Neither is the first of all pairs.
    let mut both = match number % 2 {
        0 => {
            let ignorant = served.start(Way::Ignorant)?;
            [ignorant, served.start(way)?]
        }
        _ => {
            let other = served.start(way)?;
            [served.start(Way::Ignorant)?, other]
        }
    };
    let mut requests = 0;
    let burden = Burden::new();
    let mut collected = Collected::default();
    let slice = |which: usize| match (which, &session) {
        (0, _) => burden.during(collected.part(), || both[0].slice()),
        (_, None) => both[1].slice(),
        (_, Some(session)) => {
            let before = session.taken();
            let asked = both[1].slice()?;
            std::thread::sleep(REST);
            collected.taken += session.taken().saturating_sub(before);
            collected.of += asked.wall;
            // Those of the warm-up are told of, too.
            requests += asked.requests;
            Ok(asked)
        }
    };
    let turns = TURNS.quick(quick).run(&[0, 1], slice, |_| false)?;
    for Fed { server, client } in both {
        drop(client);
        server.stop()?;
    }
    if let Some(session) = session {
        let heard = session.end()?;
        heard.check(way, requests)?;
        let (before, of) = compared.heard.unwrap_or_default();
        compared.heard = Some((before.and(heard), of + requests));
    }
    compared.pairs.push([0, 1].map(|which| turns.get(which).cloned().unwrap_or_default()));
    Ok(())
}
