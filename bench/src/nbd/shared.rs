//! Nothing is bound, and fio asks: what a machine has on which all share all CPUs. Each turn has a new server.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::collectors::{Collectors, Heard};
use super::server::{Asked, Server};
use super::{Compared, Place, Way};
use crate::frame::Turns;

const TURNS: Turns = Turns { warm_up: 1, least: 9, most: 25, at_most: Duration::from_secs(100) };
/// Of one turn.
pub(super) const RUN: Duration = Duration::from_millis(1_500);
const RUN_QUICK: Duration = Duration::from_millis(500);
const SPREAD_ENOUGH: f64 = 0.3;
const WAYS: [Way; 3] = [Way::Ignorant, Way::Stopped, Way::Traced];

pub(super) fn measure(program: &Path, file: &Path, place: &Place, quick: bool) -> Result<Vec<Compared>> {
    let length = if quick { RUN_QUICK } else { RUN };
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let collectors = Collectors::start(folder.path())?;
    let mut all: Option<(Heard, u64)> = None;
    let one = |way: Way| {
        let session = way.is_collected().then(|| collectors.session()).transpose()?;
        let server = Server::start(program, file, &place.server, way)?;
        let asked = server.ask(length)?;
        server.stop()?;
        if let Some(session) = session {
            let heard = session.end()?;
            heard.check(way, asked.requests)?;
            let (before, requests) = all.unwrap_or_default();
            all = Some((before.and(heard), requests + asked.requests));
        }
        Ok(asked)
    };
    let compared = |turns: &[Vec<Asked>], place: usize| {
        let pairs = turns[0].iter().zip(&turns[place]);
        let pairs = pairs.map(|(ignorant, asked)| [vec![*ignorant], vec![*asked]]).collect();
        Compared { way: WAYS[place], pairs, heard: None }
    };
    let enough = |turns: &[Vec<Asked>]| compared(turns, 2).more(super::processor).spread() < SPREAD_ENOUGH;
    let turns = TURNS.quick(quick).run(&WAYS, one, enough)?;
    Ok(vec![compared(&turns, 1), Compared { heard: all, ..compared(&turns, 2) }])
}
