//! Layout with the server alone on one CPU and all other processes on the others.
//!
//! Two servers run at the same time, one with LTTng disabled and the measured one, and the client
//! uses them alternately for [`SLICE`] each. The conditions of a hosted machine change from second
//! to second by more than the measured difference; alternating slices affect both alike. The idle
//! server sleeps. After a slice of a traced server there is time to collect its events
//! ([`DRAIN_TIME`]), so that the collection is attributed to it. During the next slice of the
//! disabled server, a [`cpu_load`](super::cpu_load) uses the same share of CPU as the collectors
//! did.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::client::Client;
use super::collectors::Collectors;
use super::cpu_load::CpuLoad;
use super::server::{RequestStats, Server};
use super::{Compared, Instrumentation};
use crate::frame::RoundPolicy;

const PAIRS: usize = 11;
const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 10, min_rounds: 60, max_rounds: 60, time_limit: Duration::from_secs(20) };
/// Duration of a slice.
pub(super) const SLICE: Duration = Duration::from_millis(40);
/// Two periods of LTTng's live timer, and as long again.
const DRAIN_TIME: Duration = Duration::from_millis(15);

/// Server process with the client that loads it, measured slice by slice.
struct ServerWithClient {
    server: Server,
    client: Client,
}

impl ServerWithClient {
    fn slice(&mut self) -> Result<RequestStats> {
        let (before, started) = (self.server.processor_time()?, Instant::now());
        let requests = self.client.run(SLICE)?;
        let wall = started.elapsed();
        let server = self.server.processor_time()?.saturating_sub(before);
        Ok(RequestStats { requests, wall, server })
    }
}

pub(super) fn measure(program: &Path, file: &Path, quick: bool) -> Result<Vec<Compared>> {
    let folder = tempfile::tempdir_in("/dev/shm").context("no folder in memory")?;
    let collectors = Collectors::start(folder.path())?;
    let ways = [Instrumentation::Inactive, Instrumentation::Sampled, Instrumentation::Unlimited];
    let setup = ServerSetup { program, file };
    let one = |mode| {
        let mut compared = Compared { mode, pairs: Vec::new(), collected: None };
        for number in 0..if quick { 2 } else { PAIRS } {
            pair(&collectors, &setup, number, quick, &mut compared)?;
        }
        Ok(compared)
    };
    ways.into_iter().map(one).collect()
}

/// Parameters of the servers.
struct ServerSetup<'a> {
    program: &'a Path,
    file: &'a Path,
}

impl ServerSetup<'_> {
    fn start(&self, mode: Instrumentation) -> Result<ServerWithClient> {
        let server = Server::start(self.program, self.file, mode)?;
        let client = Client::connect(&server.socket())?;
        Ok(ServerWithClient { server, client })
    }
}

/// Share of CPU that the collectors used, in slices with events to collect.
#[derive(Default)]
struct CollectorShare {
    collector_time: Duration,
    of: Duration,
}

impl CollectorShare {
    fn share(&self) -> f64 {
        if self.of.is_zero() { 0.0 } else { self.collector_time.as_secs_f64() / self.of.as_secs_f64() }
    }
}

/// Measures another pair.
fn pair(
    collectors: &Collectors,
    served: &ServerSetup<'_>,
    number: usize,
    quick: bool,
    compared: &mut Compared,
) -> Result<()> {
    let mode = compared.mode;
    let session = mode.is_collected().then(|| collectors.session()).transpose()?;
    // The order of start alternates between pairs.
    let mut both = match number % 2 {
        0 => {
            let ignorant = served.start(Instrumentation::Disabled)?;
            [ignorant, served.start(mode)?]
        }
        _ => {
            let other = served.start(mode)?;
            [served.start(Instrumentation::Disabled)?, other]
        }
    };
    let mut requests = 0;
    let cpu_load = CpuLoad::new();
    let mut collected = CollectorShare::default();
    let slice = |which: usize| match (which, &session) {
        (0, _) => cpu_load.run_during(collected.share(), || both[0].slice()),
        (_, None) => both[1].slice(),
        (_, Some(session)) => {
            let before = session.processor_time();
            let stats = both[1].slice()?;
            std::thread::sleep(DRAIN_TIME);
            collected.collector_time += session.processor_time().saturating_sub(before);
            collected.of += stats.wall;
            // Requests of the warm-up are collected too.
            requests += stats.requests;
            Ok(stats)
        }
    };
    let turns = POLICY.quick(quick).run(&[0, 1], slice, |_| false)?;
    for ServerWithClient { server, client } in both {
        drop(client);
        server.stop()?;
    }
    if let Some(session) = session {
        let collected = session.end()?;
        collected.check(mode, requests)?;
        let (before, of) = compared.collected.unwrap_or_default();
        compared.collected = Some((before.and(collected), of + requests));
    }
    compared.pairs.push([0, 1].map(|which| turns.get(which).cloned().unwrap_or_default()));
    Ok(())
}
