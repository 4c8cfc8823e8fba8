//! `start`: from starting `blkkin run` to its command's first instruction, and what of it goes where.
//!
//! The command is this program, which says CLOCK_MONOTONIC as it begins; its own exec and start are measured without
//! blkkin and stay in the figure, since they are what a person waits for too.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blkkin_tracer::attach::layout;
use blkkin_tracer::clock;

use crate::Setting;
use crate::frame::{Figure, Found, Goal, Rounds, Turns};
use crate::harness;

/// The warm-up fills the page cache.
const TURNS: Turns = Turns { warm_up: 1, least: 11, most: 11, at_most: Duration::from_secs(120) };
/// ms.
const START_MAX: f64 = 1_000.0;

/// What is started.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Plain,
    Traced,
    Types,
    Load,
}

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let itself = std::env::current_exe().context("this program does not know where it is")?;
    let command = [itself.as_os_str(), "load".as_ref(), "clock".as_ref()];
    let who = [What::Plain, What::Traced, What::Types, What::Load];
    let measure = |what| match what {
        What::Plain => begin(Command::new(command[0]).args(&command[1..])),
        What::Traced => {
            let mut blkkin = Command::new(&setting.blkkin);
            begin(blkkin.args(["run", "--no-report", "--"]).args(command))
        }
        What::Types => time(|| layout::resolve().map(drop)).context("the kernel's types"),
        What::Load => time(|| harness::tracer().map(drop)),
    };
    let times = TURNS.quick(setting.extent.is_quick()).run(&who, measure, |_| true)?;
    let [plain, traced, types, load] = [0, 1, 2, 3].map(|index| &times[index]);
    let figure = |name, times: &[Times], of: fn(&Times) -> f64| {
        Figure::of(name, &times.iter().map(of).collect::<Rounds>(), "ms")
    };
    let figures = vec![
        figure("blkkin run: process start to CMD's begin", traced, |times| times.begun)
            .goal(Goal::AtMost(START_MAX)),
        figure("  of which reading the kernel's types", types, |times| times.begun),
        figure("  loading, verifying and attaching, with that", load, |times| times.begun)
            .note("and detaching again"),
        figure("  CMD's own start, without blkkin", plain, |times| times.begun),
        figure("blkkin run: process start to its end", traced, |times| times.ended)
            .note("a command that does nothing"),
    ];
    let how = format!("Medians of {} starts of each, in turns, with a warm page cache.", traced.len());
    Ok(Found { how, figures, ..Found::default() })
}

/// ms since its start.
struct Times {
    begun: f64,
    ended: f64,
}

/// Until the command says its clock, and until everything has ended.
fn begin(command: &mut Command) -> Result<Times> {
    let start = clock::now().0;
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::null()).output().context("cannot start a command")?;
    let end = clock::now().0;
    let begun: u64 =
        String::from_utf8_lossy(&output.stdout).trim().parse().context("the command said no time")?;
    Ok(Times { begun: (begun - start) as f64 / 1e6, ended: (end - start) as f64 / 1e6 })
}

fn time<E>(what: impl FnOnce() -> Result<(), E>) -> Result<Times, E> {
    let start = Instant::now();
    what()?;
    let begun = start.elapsed().as_secs_f64() * 1e3;
    Ok(Times { begun, ended: begun })
}
