//! `start`: from starting `blkkin run` to its command's first instruction, and what of it goes where.
//!
//! The command is this program, which says CLOCK_MONOTONIC as it begins; its own exec and start are measured without
//! blkkin and stay in the figure, since they are what a person waits for too.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use blkkin_tracer::{layout, origin};

use crate::Setting;
use crate::figure::{Figure, Goal, Rounds};
use crate::harness;

const ROUNDS: usize = 10;
/// ms.
const START_MAX: f64 = 1_000.0;

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Vec<Figure>> {
    let itself = std::env::current_exe().context("this program does not know where it is")?;
    let command = [itself.as_os_str(), "load".as_ref(), "clock".as_ref()];
    let (mut plain, mut traced, mut whole) = (Rounds::default(), Rounds::default(), Rounds::default());
    let (mut types, mut load) = (Rounds::default(), Rounds::default());
    // The first round only warms the page cache.
    for round in 0..=ROUNDS {
        let without = begin(Command::new(command[0]).args(&command[1..]))?;
        let mut blkkin = Command::new(&setting.blkkin);
        let with = begin(blkkin.args(["run", "--no-report", "--"]).args(command))?;
        let parsed = time(|| layout::resolve().map(drop))?;
        let loaded = time(|| harness::tracer().map(drop))?;
        if round > 0 {
            plain.push(without.0);
            traced.push(with.0);
            whole.push(with.1);
            types.push(parsed);
            load.push(loaded);
        }
    }
    let figure = |name, rounds: &Rounds| Figure::new(name, rounds.median(), rounds.spread_of_median(), "ms");
    let of = format!("median of {ROUNDS}");
    Ok(vec![
        figure("blkkin run: process start to CMD's begin", &traced).goal(Goal::AtMost(START_MAX)).note(of),
        figure("  of which reading the kernel's types", &types),
        figure("  loading, verifying and attaching, with that", &load).note("and detaching again"),
        figure("  CMD's own start, without blkkin", &plain),
        figure("blkkin run: process start to its end", &whole).note("a command that does nothing"),
    ])
}

/// ms until the command says its clock, and until everything has ended.
fn begin(command: &mut Command) -> Result<(f64, f64)> {
    let start = origin::now().0;
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::null()).output().context("cannot start a command")?;
    let end = origin::now().0;
    let begun: u64 =
        String::from_utf8_lossy(&output.stdout).trim().parse().context("the command said no time")?;
    Ok(((begun - start) as f64 / 1e6, (end - start) as f64 / 1e6))
}

fn time<E>(what: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let start = Instant::now();
    what()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
