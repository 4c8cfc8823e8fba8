//! `call`: what a system call costs while a tracer runs, above what it costs without one.
//!
//! Each round measures every call three times: with no tracer in the kernel; in a followed process; and in a process
//! beside it that nobody follows, which pays for the hooks all the same. The tracer is loaded anew each round, so
//! that what differs between loads (where the kernel puts the programs) is part of the spread.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::Setting;
use crate::calls::Call;
use crate::figure::{Figure, Goal, Rounds};
use crate::harness::{self, Running};

const ROUNDS: usize = 9;
/// Chunks of 1,000 calls, each round.
const CHUNKS: &str = "400";
/// ns above untraced that a followed call may cost.
const TRACED_MAX: f64 = 300.0;
/// And a call of a task that is not followed.
const BESIDE_MAX: f64 = 190.0;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Untraced,
    Traced,
    Beside,
}

/// What the tracers of all rounds did.
#[derive(Default)]
struct Books {
    lost: u64,
    recorded: u64,
    drain_time: Duration,
}

type Measured = BTreeMap<(Call, Task), Rounds>;

/// Measures.
pub(crate) fn run(_setting: &Setting) -> Result<Vec<Figure>> {
    let arguments: Vec<&str> = ["measure", CHUNKS].into_iter().chain(Call::ALL.map(Call::name)).collect();
    let mut measured = Measured::new();
    let mut books = Books::default();
    for _ in 0..ROUNDS {
        note(&mut measured, Task::Untraced, &harness::answer(harness::load(&arguments)?)?)?;
        let tracer = harness::tracer()?;
        let followed = harness::traced_load(&tracer, &arguments)?;
        let running = Running::start(tracer);
        note(&mut measured, Task::Traced, &harness::answer(followed)?)?;
        note(&mut measured, Task::Beside, &harness::answer(harness::load(&arguments)?)?)?;
        let done = running.finish()?;
        books.lost += done.accounts.lost();
        books.recorded += done.accounts.calls.recorded;
        books.drain_time += done.drain_time;
    }
    Ok(figures(&measured, &books))
}

fn note(measured: &mut Measured, task: Task, said: &str) -> Result<()> {
    for line in said.lines() {
        let (name, value) = line.split_once(' ').context("a load says: name, ns")?;
        let call = Call::by_name(name).context("a load says the calls that it was given")?;
        measured.entry((call, task)).or_default().push(value.parse()?);
    }
    Ok(())
}

fn figures(measured: &Measured, books: &Books) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (task, goal) in [(Task::Traced, TRACED_MAX), (Task::Beside, BESIDE_MAX)] {
        for call in Call::ALL {
            let (Some(with), Some(without)) =
                (measured.get(&(call, task)), measured.get(&(call, Task::Untraced)))
            else {
                continue;
            };
            let spread = with.spread_of_fastest().max(without.spread_of_fastest());
            let above = with.fastest() - without.fastest();
            let figure = Figure::new(title(call, task), above, spread, "ns above").note(format!(
                "untraced {:.1} ns, with tracer {:.1} ns",
                without.fastest(),
                with.fastest()
            ));
            let goal = if call.followed() { goal } else { BESIDE_MAX };
            figures.push(figure.goal(Goal::AtMost(goal)));
        }
    }
    let rounds = format!("{ROUNDS} rounds of {CHUNKS},000 calls: a full ring makes a call cheaper");
    figures.push(Figure::new("records lost meanwhile", books.lost as f64, 0.0, "records").note(rounds));
    let each = books.drain_time.as_nanos() as f64 / books.recorded.max(1) as f64;
    figures.push(
        Figure::new("the thread that drains", each, 0.0, "ns an event")
            .note("its processor time, from the ring to a batch, over all rounds"),
    );
    figures
}

fn title(call: Call, task: Task) -> String {
    let who = match (task, call.followed()) {
        (Task::Traced, true) => "traced",
        (Task::Traced, false) => "in a traced task, not in the table",
        (Task::Beside | Task::Untraced, _) => "task not traced",
    };
    format!("{} ({who})", call.title())
}
