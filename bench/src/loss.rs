//! `loss`: events per second that `blkkin run` with its defaults processes before records are lost:
//! the curve.
//!
//! One process per CPU makes `lseek` calls at a given rate, with blkkin on the same CPUs as on a
//! user's machine; rates range from low to unlimited. The losses are those of blkkin's accounting.
//! The calls that the load made are compared with the calls that blkkin counted: beyond its limit a
//! tracer may lose records, but must report how many.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::frame::number::{count, number};
use crate::frame::{BenchReport, Figure, Goal, RoundPolicy, Rounds, Table};
use crate::process;
use crate::{Extent, Setting};

const SECONDS: u64 = 4;
const SECONDS_QUICK: u64 = 1;
/// Calls per second; 0 without a limit.
const RATES: &[u64] =
    &[50_000, 100_000, 200_000, 350_000, 525_000, 600_000, 700_000, 800_000, 1_000_000, 1_500_000, 0];
const RATES_QUICK: &[u64] = &[100_000, 0];
const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 0, min_rounds: 5, max_rounds: 5, time_limit: Duration::from_secs(480) };
/// Events per second without loss.
const RATE_MIN: f64 = 500_000.0;
/// Goal for blkkin's own memory in MiB, at [`RATE_MIN`].
const RESIDENT_MAX: f64 = 64.0;

/// Run at one rate.
struct Flood {
    made: u64,
    seconds: f64,
    fired: u64,
    lost: u64,
    balanced: bool,
    usage: process::Usage,
}

impl Flood {
    /// Returns events per second.
    fn reached(&self) -> f64 {
        self.fired as f64 / self.seconds
    }

    fn lost_part(&self) -> f64 {
        100.0 * self.lost as f64 / self.fired.max(1) as f64
    }

    fn cpus(&self) -> f64 {
        self.usage.processor.as_secs_f64() / self.seconds
    }

    /// Returns the maximum resident memory in MiB.
    fn resident(&self) -> f64 {
        self.usage.resident_max as f64 / f64::from(1 << 20)
    }

    /// Checks that a hook counted every call of the load, and that every record was received or
    /// counted as lost.
    fn accounting_agrees(&self) -> bool {
        self.balanced && self.fired >= self.made
    }
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let quick = setting.extent == Extent::Quick;
    let (rates, seconds) = if quick { (RATES_QUICK, SECONDS_QUICK) } else { (RATES, SECONDS) };
    let floods = POLICY.quick(quick).run(rates, |rate| flood(setting, rate, seconds), |_| true)?;
    Ok(build_report(rates, &floods, seconds))
}

fn build_report(rates: &[u64], floods: &[Vec<Flood>], seconds: u64) -> BenchReport {
    let columns =
        ["target, calls/s", "events/s", "lost in each run, %", "blkkin, CPUs", "blkkin, MiB", "accounting"];
    let mut table = Table::new("", &columns);
    for (rate, runs) in rates.iter().zip(floods) {
        let each = |of: fn(&Flood) -> f64| runs.iter().map(of).collect::<Rounds>().median();
        let asked = if *rate == 0 { "unlimited".to_owned() } else { count(*rate) };
        let lost: Vec<String> = runs.iter().map(|run| number(run.lost_part())).collect();
        let agree = runs.iter().all(Flood::accounting_agrees);
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
        "`blkkin run` with its defaults around one process per CPU that calls `lseek`, {} runs of {seconds} s at each rate \
         alternating; blkkin uses the rest of the CPUs. Accounting: fired = recorded + dropped, and at least as many were \
         fired as the load made calls.",
        floods.first().map_or(0, Vec::len)
    );
    BenchReport { how, figures: figures(floods), tables: vec![table], ..BenchReport::default() }
}

fn figures(floods: &[Vec<Flood>]) -> Vec<Figure> {
    // From the lowest rate: a rate beyond one with losses does not count, even without losses.
    let whole = floods.iter().take_while(|runs| runs.iter().all(|run| run.lost == 0));
    let highest =
        whole.last().map_or(0.0, |runs| runs.iter().map(Flood::reached).fold(f64::INFINITY, f64::min));
    let at_goal = floods.iter().find(|runs| runs.iter().all(|run| run.reached() >= RATE_MIN));
    let disagree = floods.iter().flatten().filter(|run| !run.accounting_agrees()).count();
    let mut figures = vec![
        Figure::new("highest rate of which no run lost any", highest, 0.0, "events/s")
            .goal(Goal::AtLeast(RATE_MIN)),
        Figure::new("runs whose accounting does not agree", disagree as f64, 0.0, "runs")
            .goal(Goal::AtMost(0.0)),
    ];
    if let Some(runs) = at_goal {
        let each = |of: fn(&Flood) -> f64| runs.iter().map(of).collect::<Rounds>();
        let rate = count(each(Flood::reached).median() as u64);
        let lost = runs.iter().map(|run| run.lost).max().unwrap_or_default();
        figures.push(Figure::new(format!("lost at {rate} events/s"), lost as f64, 0.0, "records"));
        let name = format!("resident at most, at {rate} events/s");
        figures.push(Figure::of(name, &each(Flood::resident), "MiB").goal(Goal::AtMost(RESIDENT_MAX)));
    }
    figures
}

/// Runs `blkkin run` with a load of `rate` calls per second.
fn flood(setting: &Setting, rate: u64, seconds: u64) -> Result<Flood> {
    let report = setting.folder.join("loss-report.json");
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let mut blkkin = Command::new(&setting.blkkin);
    blkkin.arg("run").arg(format!("--json={}", report.display())).arg("--").arg(program);
    blkkin.args(["load", "flood", "lseek", &rate.to_string(), &seconds.to_string()]);
    let mut child = blkkin
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", setting.blkkin.display()))?;
    let output = child.stdout.take().context("invariant: it was piped")?;
    let usage = process::wait(child)?;
    let output = std::io::read_to_string(output)?;
    if !usage.status.success() {
        bail!("blkkin run failed ({})", usage.status);
    }
    let (made, seconds) = output.trim().split_once(' ').context("the load printed nothing")?;
    let losses_json = losses(&report)?;
    let count =
        |name: &str| losses_json[name].as_u64().with_context(|| format!("the report has no losses.{name}"));
    Ok(Flood {
        made: made.parse()?,
        seconds: seconds.parse()?,
        fired: count("fired")?,
        lost: count("total")?,
        balanced: losses_json["balances"] == Value::Bool(true),
        usage,
    })
}

/// Reads the losses from blkkin's report.
pub(crate) fn losses(report: &Path) -> Result<Value> {
    let text = std::fs::read(report).with_context(|| format!("cannot read {}", report.display()))?;
    Ok(serde_json::from_slice::<Value>(&text)?["losses"].take())
}
