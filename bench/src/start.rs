//! `start`: time from starting `blkkin run` to its command's first instruction, and its parts.
//!
//! The command is this program, which prints CLOCK_MONOTONIC first. Its own exec and start are
//! measured without blkkin and remain in the figure, because users wait for them too.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blkkin_tracer::attach::layout;
use blkkin_tracer::clock;

use crate::Setting;
use crate::frame::{BenchReport, Figure, Goal, RoundPolicy, Rounds};
use crate::harness;

/// The warm-up fills the page cache.
const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 11, max_rounds: 11, time_limit: Duration::from_secs(120) };
/// Goal in ms.
const START_MAX: f64 = 1_000.0;

/// Measured operation.
#[derive(Clone, Copy, PartialEq)]
enum Subject {
    Plain,
    Traced,
    Types,
    Load,
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let command = [program.as_os_str(), "load".as_ref(), "clock".as_ref()];
    let subjects = [Subject::Plain, Subject::Traced, Subject::Types, Subject::Load];
    let measure = |subject| match subject {
        Subject::Plain => run_command(Command::new(command[0]).args(&command[1..])),
        Subject::Traced => {
            let mut blkkin = Command::new(&setting.blkkin);
            run_command(blkkin.args(["run", "--no-report", "--"]).args(command))
        }
        Subject::Types => time(|| layout::resolve().map(drop)).context("the kernel's types"),
        Subject::Load => time(|| harness::load_tracer().map(drop)),
    };
    let times = POLICY.quick(setting.extent.is_quick()).run(&subjects, measure, |_| true)?;
    let [plain, traced, types, load] = [0, 1, 2, 3].map(|index| &times[index]);
    let figure = |name, times: &[Times], of: fn(&Times) -> f64| {
        Figure::of(name, &times.iter().map(of).collect::<Rounds>(), "ms")
    };
    let figures = vec![
        figure("blkkin run: process start to CMD's begin", traced, |times| times.started_at)
            .goal(Goal::AtMost(START_MAX)),
        figure("  of which reading the kernel's types", types, |times| times.started_at),
        figure("  loading, verifying and attaching, with that", load, |times| times.started_at)
            .note("and detaching again"),
        figure("  CMD's own start, without blkkin", plain, |times| times.started_at),
        figure("blkkin run: process start to its end", traced, |times| times.ended_at)
            .note("a command that does nothing"),
    ];
    let how = format!("Medians of {} starts of each, in turns, with a warm page cache.", traced.len());
    Ok(BenchReport { how, figures, ..BenchReport::default() })
}

/// Times in ms since the start.
struct Times {
    started_at: f64,
    ended_at: f64,
}

/// Runs the command and returns when it printed its clock and when all processes ended.
fn run_command(command: &mut Command) -> Result<Times> {
    let start = clock::now().0;
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::null()).output().context("cannot start a command")?;
    let end = clock::now().0;
    let started_at: u64 =
        String::from_utf8_lossy(&output.stdout).trim().parse().context("the command printed no time")?;
    Ok(Times { started_at: (started_at - start) as f64 / 1e6, ended_at: (end - start) as f64 / 1e6 })
}

fn time<E>(subject: impl FnOnce() -> Result<(), E>) -> Result<Times, E> {
    let start = Instant::now();
    subject()?;
    let started_at = start.elapsed().as_secs_f64() * 1e3;
    Ok(Times { started_at, ended_at: started_at })
}
