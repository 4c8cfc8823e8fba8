//! `call`: what a system call costs while a tracer runs, above what it costs without one.
//!
//! Each round measures every call three times: with no tracer in the kernel; in a followed process; and in a process
//! beside it that nobody follows, which pays for the hooks all the same. The tracer is loaded anew each round, so
//! that what differs between loads (where the kernel puts the programs) is part of the spread. What is compared are the
//! three of one round.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::calls::Call;
use crate::frame::{Figure, Found, Goal, Rounds, Table, Turns};
use crate::harness::{self, Running};
use crate::{Setting, affinity};

const TURNS: Turns = Turns { warm_up: 1, least: 9, most: 15, at_most: Duration::from_secs(300) };
/// Chunks of 1,000 calls, each round.
const CHUNKS: &str = "400";
const CHUNKS_QUICK: &str = "40";
/// ns above untraced that a followed call may cost.
const TRACED_MAX: f64 = 300.0;
/// And a call of a task that is not followed.
const BESIDE_MAX: f64 = 190.0;
/// ns; a twentieth of the larger goal.
const SPREAD_ENOUGH: f64 = 15.0;

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

/// ns a call, of one round.
type Times = BTreeMap<(Call, Task), f64>;

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let chunks = if setting.extent.is_quick() { CHUNKS_QUICK } else { CHUNKS };
    let arguments: Vec<&str> = ["measure", chunks].into_iter().chain(Call::ALL.map(Call::name)).collect();
    let mut books = Books::default();
    let enough = |rounds: &[Vec<Times>]| {
        let followed = Call::ALL.into_iter().filter(|call| call.followed());
        followed
            .map(|call| above(&rounds[0], call, Task::Traced).spread())
            .all(|spread| spread < SPREAD_ENOUGH)
    };
    let turns = TURNS.quick(setting.extent.is_quick());
    let rounds = turns.run(&[()], |()| round(&arguments, &mut books), enough)?.remove(0);
    Ok(found(&rounds, &books))
}

fn round(arguments: &[&str], books: &mut Books) -> Result<Times> {
    let mut times = Times::new();
    note(&mut times, Task::Untraced, &harness::answer(harness::load(arguments)?)?)?;
    let tracer = harness::tracer()?;
    let followed = harness::traced_load(&tracer, arguments)?;
    let running = Running::start(tracer);
    note(&mut times, Task::Traced, &harness::answer(followed)?)?;
    note(&mut times, Task::Beside, &harness::answer(harness::load(arguments)?)?)?;
    let done = running.finish()?;
    books.lost += done.accounts.lost();
    books.recorded += done.accounts.calls.recorded;
    books.drain_time += done.drain_time;
    Ok(times)
}

fn note(times: &mut Times, task: Task, said: &str) -> Result<()> {
    for line in said.lines() {
        let (name, value) = line.split_once(' ').context("a load says: name, ns")?;
        let call = Call::by_name(name).context("a load says the calls that it was given")?;
        times.insert((call, task), value.parse()?);
    }
    Ok(())
}

fn each(rounds: &[Times], of: impl Fn(&Times) -> Option<f64>) -> Rounds {
    rounds.iter().filter_map(of).collect()
}

/// ns above the untraced call of the same round.
fn above(rounds: &[Times], call: Call, task: Task) -> Rounds {
    each(rounds, |times| Some(times.get(&(call, task))? - times.get(&(call, Task::Untraced))?))
}

fn found(rounds: &[Times], books: &Books) -> Found {
    let mut table = Table::new("", &["call", "untraced, ns", "traced", "above", "not traced", "above"]);
    let mut figures = Vec::new();
    for call in Call::ALL {
        let time = |task| each(rounds, |times| times.get(&(call, task)).copied());
        let mut row = vec![call.title().to_owned(), shown(&time(Task::Untraced))];
        for (task, goal) in [(Task::Traced, TRACED_MAX), (Task::Beside, BESIDE_MAX)] {
            let above = above(rounds, call, task);
            row.extend([shown(&time(task)), shown(&above)]);
            let goal = if call.followed() { goal } else { BESIDE_MAX };
            let ratios = Rounds::ratios(&time(task), &time(Task::Untraced));
            let figure = Figure::of(title(call, task), &above, "ns above").ratio(&ratios);
            figures.push(figure.goal(Goal::AtMost(goal)));
        }
        table.row(row);
    }
    figures.push(drain(books));
    let how = format!(
        "ns a call, above the same call without blkkin; medians of {} rounds of {CHUNKS},000 calls of each, in turns \
         (untraced, traced, a task that is not traced while another is). The load runs on CPU {}, the reader on the \
         others; a round's value is the median of chunks of 1,000 calls.",
        rounds.len(),
        affinity::load_cpu()
    );
    let lost = format!("{} records were lost meanwhile: a full ring makes a call cheaper.", books.lost);
    Found { how, figures, tables: vec![table], notes: vec![lost], ..Found::default() }
}

fn drain(books: &Books) -> Figure {
    let each = books.drain_time.as_nanos() as f64 / books.recorded.max(1) as f64;
    Figure::new("the thread that drains", each, 0.0, "ns an event")
        .note("its processor time, from the ring to a batch, over all rounds")
}

fn shown(rounds: &Rounds) -> String {
    crate::frame::number::with_spread(rounds.median(), rounds.spread())
}

fn title(call: Call, task: Task) -> String {
    let who = match (task, call.followed()) {
        (Task::Traced, true) => "traced",
        (Task::Traced, false) => "in a traced task, not followed",
        (Task::Beside | Task::Untraced, _) => "task not traced",
    };
    format!("{} ({who})", call.title())
}
