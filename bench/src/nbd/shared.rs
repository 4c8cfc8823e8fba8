//! Layout without affinity, with fio as client: all processes share all CPUs. Each run has a new
//! server.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::collectors::{CollectionStats, Collectors};
use super::server::{RequestStats, Server};
use super::{Compared, CpuLayout, Instrumentation};
use crate::frame::RoundPolicy;

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 9, max_rounds: 25, time_limit: Duration::from_secs(100) };
/// Duration of a run.
pub(super) const RUN: Duration = Duration::from_millis(1_500);
const RUN_QUICK: Duration = Duration::from_millis(500);
const SPREAD_ENOUGH: f64 = 0.3;
const WAYS: [Instrumentation; 3] =
    [Instrumentation::Disabled, Instrumentation::Inactive, Instrumentation::Traced];

pub(super) fn measure(program: &Path, file: &Path, place: &CpuLayout, quick: bool) -> Result<Vec<Compared>> {
    let length = if quick { RUN_QUICK } else { RUN };
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let collectors = Collectors::start(folder.path())?;
    let mut all: Option<(CollectionStats, u64)> = None;
    let measure_mode = |mode: Instrumentation| {
        let session = mode.is_collected().then(|| collectors.session()).transpose()?;
        let server = Server::start(program, file, &place.server, mode)?;
        let stats = server.run(length)?;
        server.stop()?;
        if let Some(session) = session {
            let collected = session.end()?;
            collected.check(mode, stats.requests)?;
            let (before, requests) = all.unwrap_or_default();
            all = Some((before.and(collected), requests + stats.requests));
        }
        Ok(stats)
    };
    let compared = |turns: &[Vec<RequestStats>], place: usize| {
        let pairs = turns[0].iter().zip(&turns[place]);
        let pairs = pairs.map(|(ignorant, stats)| [vec![*ignorant], vec![*stats]]).collect();
        Compared { mode: WAYS[place], pairs, collected: None }
    };
    let enough =
        |turns: &[Vec<RequestStats>]| compared(turns, 2).more(super::processor).spread() < SPREAD_ENOUGH;
    let turns = POLICY.quick(quick).run(&WAYS, measure_mode, enough)?;
    Ok(vec![compared(&turns, 1), Compared { collected: all, ..compared(&turns, 2) }])
}
