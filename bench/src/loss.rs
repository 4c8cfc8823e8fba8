//! `loss`: how many events a second go through `blkkin run` with its defaults before records are lost: the curve.
//!
//! One process on each CPU makes `lseek` calls at a given rate, blkkin beside them on the same CPUs as on a user's
//! machine; from few to as many as they can. What was lost is what blkkin's own books say, and the calls that the load
//! made are compared with the calls that blkkin counted: beyond its limit a tracer may lose, but must say how many.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::frame::number::{count, number};
use crate::frame::outcome::Series;
use crate::frame::{Figure, Found, Goal, Plot, Rounds, Shape, Table, Turns};
use crate::process;
use crate::{Extent, Setting};

const SECONDS: u64 = 4;
const SECONDS_QUICK: u64 = 1;
/// Calls a second; 0: as many as there can be.
const RATES: &[u64] =
    &[50_000, 100_000, 200_000, 350_000, 525_000, 600_000, 700_000, 800_000, 1_000_000, 1_500_000, 0];
const RATES_QUICK: &[u64] = &[100_000, 0];
const TURNS: Turns = Turns { warm_up: 0, least: 5, most: 5, at_most: Duration::from_secs(480) };
/// Events a second that must not lose any.
const RATE_MIN: f64 = 500_000.0;

/// One run at one rate.
pub(crate) struct Flood {
    made: u64,
    seconds: f64,
    fired: u64,
    lost: u64,
    balanced: bool,
    usage: process::Usage,
}

impl Flood {
    /// Events a second.
    fn reached(&self) -> f64 {
        self.fired as f64 / self.seconds
    }

    fn lost_part(&self) -> f64 {
        100.0 * self.lost as f64 / self.fired.max(1) as f64
    }

    fn cpus(&self) -> f64 {
        self.usage.processor.as_secs_f64() / self.seconds
    }

    /// MiB at most.
    pub(crate) fn resident(&self) -> f64 {
        self.usage.resident_max as f64 / f64::from(1 << 20)
    }

    /// MiB at the end: without what the start took.
    pub(crate) fn resident_last(&self) -> f64 {
        self.usage.resident_last as f64 / f64::from(1 << 20)
    }

    /// Every call that the load made was seen by a hook, and every record that was due arrived or was counted as lost.
    fn books_agree(&self) -> bool {
        self.balanced && self.fired >= self.made
    }
}

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let quick = setting.extent == Extent::Quick;
    let (rates, seconds) = if quick { (RATES_QUICK, SECONDS_QUICK) } else { (RATES, SECONDS) };
    let floods = TURNS.quick(quick).run(rates, |rate| flood(setting, rate, seconds), |_| true)?;
    Ok(found(rates, &floods, seconds))
}

fn found(rates: &[u64], floods: &[Vec<Flood>], seconds: u64) -> Found {
    let columns =
        ["calls/s asked for", "events/s", "lost in each run, %", "blkkin, CPUs", "blkkin, MiB", "books"];
    let mut table = Table::new("", &columns);
    for (rate, runs) in rates.iter().zip(floods) {
        let each = |of: fn(&Flood) -> f64| runs.iter().map(of).collect::<Rounds>().median();
        let asked = if *rate == 0 { "as many as they can".to_owned() } else { count(*rate) };
        let lost: Vec<String> = runs.iter().map(|run| number(run.lost_part())).collect();
        let agree = runs.iter().all(Flood::books_agree);
        table.row([
            asked,
            number(each(Flood::reached)),
            lost.join(", "),
            number(each(Flood::cpus)),
            number(each(Flood::resident)),
            (if agree { "agree" } else { "DISAGREE" }).to_owned(),
        ]);
    }
    let how = format!(
        "`blkkin run` with its defaults around one process a CPU that calls `lseek`, {} runs of {seconds} s at each rate \
         in turns; what they leave of the CPUs is blkkin's. Books: fired = recorded + dropped, and at least as many were \
         fired as the load made calls.",
        floods.first().map_or(0, Vec::len)
    );
    Found {
        how,
        figures: figures(floods),
        tables: vec![table],
        plots: vec![plot(floods)],
        ..Found::default()
    }
}

fn figures(floods: &[Vec<Flood>]) -> Vec<Figure> {
    // From below: a rate beyond one that loses does not count, even if it went well.
    let whole = floods.iter().take_while(|runs| runs.iter().all(|run| run.lost == 0));
    let highest =
        whole.last().map_or(0.0, |runs| runs.iter().map(Flood::reached).fold(f64::INFINITY, f64::min));
    let goal = floods.iter().flatten().filter(|run| run.reached() >= RATE_MIN);
    let at_goal = goal.min_by(|one, other| one.reached().total_cmp(&other.reached()));
    let disagree = floods.iter().flatten().filter(|run| !run.books_agree()).count();
    let mut figures = vec![
        Figure::new("highest rate of which no run lost any", highest, 0.0, "events/s")
            .goal(Goal::AtLeast(RATE_MIN)),
        Figure::new("runs whose books do not agree", disagree as f64, 0.0, "runs").goal(Goal::AtMost(0.0)),
    ];
    if let Some(run) = at_goal {
        let name = format!("lost at {} events/s", count(run.reached() as u64));
        figures.push(Figure::new(name, run.lost as f64, 0.0, "records"));
    }
    figures
}

fn plot(floods: &[Vec<Flood>]) -> Plot {
    let line = |name: &str, of: fn(&Flood) -> f64| {
        let point = |runs: &Vec<Flood>| {
            let median = |of: fn(&Flood) -> f64| runs.iter().map(of).collect::<Rounds>().median();
            (median(Flood::reached) / 1e3, median(of))
        };
        let mut points: Vec<(f64, f64)> = floods.iter().map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Series { name: name.to_owned(), points }
    };
    Plot {
        name: "loss".to_owned(),
        title: "Events that come, and what is lost of them".to_owned(),
        x: "thousand events a second".to_owned(),
        y: "% of records; % of one CPU".to_owned(),
        shape: Shape::Lines,
        series: vec![
            line("lost, %", Flood::lost_part),
            line("blkkin's own CPU, %", |run| 100.0 * run.cpus()),
        ],
    }
}

/// `blkkin run` around a load of `rate` calls a second.
pub(crate) fn flood(setting: &Setting, rate: u64, seconds: u64) -> Result<Flood> {
    let report = setting.folder.join("loss-report.json");
    let itself = std::env::current_exe().context("this program does not know where it is")?;
    let mut blkkin = Command::new(&setting.blkkin);
    blkkin.arg("run").arg(format!("--json={}", report.display())).arg("--").arg(itself);
    blkkin.args(["load", "flood", "lseek", &rate.to_string(), &seconds.to_string()]);
    let mut child = blkkin
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", setting.blkkin.display()))?;
    let said = child.stdout.take().context("invariant: it was piped")?;
    let usage = process::wait(child)?;
    let said = std::io::read_to_string(said)?;
    if !usage.status.success() {
        bail!("blkkin run failed ({})", usage.status);
    }
    let (made, seconds) = said.trim().split_once(' ').context("the load said nothing")?;
    let books = losses(&report)?;
    let count = |name: &str| books[name].as_u64().with_context(|| format!("the report has no losses.{name}"));
    Ok(Flood {
        made: made.parse()?,
        seconds: seconds.parse()?,
        fired: count("fired")?,
        lost: count("total")?,
        balanced: books["balances"] == Value::Bool(true),
        usage,
    })
}

/// blkkin's books of a run, by its report.
pub(crate) fn losses(report: &Path) -> Result<Value> {
    let text = std::fs::read(report).with_context(|| format!("cannot read {}", report.display()))?;
    Ok(serde_json::from_slice::<Value>(&text)?["losses"].take())
}
