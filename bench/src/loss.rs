//! `loss`: how many events a second go through `blkkin run` with its defaults before records are lost.
//!
//! One process on each CPU makes `lseek` calls at a given rate, blkkin beside them on the same CPUs as on a user's
//! machine; then as fast as they can, to see what is lost and that it is counted. What was lost is what blkkin's
//! own books say, and the calls that the load made are compared with the calls that blkkin counted.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Setting;
use crate::figure::{Figure, Goal};
use crate::process;

const SECONDS: u64 = 5;
/// Calls a second; 0: as many as there can be. The first has a margin, so that what is reached is not below the goal.
const RATES: &[u64] = &[525_000, 1_000_000, 0];
/// Events a second that must not lose any.
const RATE_MIN: f64 = 500_000.0;

struct Flood {
    made: u64,
    seconds: f64,
    fired: u64,
    lost: u64,
    balanced: bool,
    usage: process::Usage,
}

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for rate in RATES {
        let flood = flood(setting, *rate)?;
        let reached = flood.fired as f64 / flood.seconds;
        let title =
            if *rate == 0 { "as fast as they can".to_owned() } else { format!("{rate} calls/s asked for") };
        figures.push(Figure::new(format!("{title}: events"), reached, 0.0, "events/s").note(format!(
            "blkkin itself: {:.2} CPUs, {:.0} MiB; lseek by one process a CPU for {SECONDS} s",
            flood.usage.processor.as_secs_f64() / flood.seconds,
            flood.usage.resident_max as f64 / f64::from(1 << 20),
        )));
        let share = flood.lost as f64 * 100.0 / flood.fired.max(1) as f64;
        let books = if flood.balanced && flood.fired >= flood.made {
            "the books agree"
        } else {
            "THE BOOKS DISAGREE"
        };
        let lost =
            Figure::new("  lost", flood.lost as f64, 0.0, "records").note(format!("{share:.2} %; {books}"));
        let judged = *rate != 0 && (RATE_MIN..2.0 * RATE_MIN).contains(&reached) && *rate < 1_000_000;
        figures.push(if judged { lost.goal(Goal::AtMost(0.0)) } else { lost });
    }
    Ok(figures)
}

fn flood(setting: &Setting, rate: u64) -> Result<Flood> {
    let report = setting.folder.join("loss-report.json");
    let itself = std::env::current_exe().context("this program does not know where it is")?;
    let mut blkkin = Command::new(&setting.blkkin);
    blkkin.arg("run").arg(format!("--json={}", report.display())).arg("--").arg(itself);
    blkkin.args(["load", "flood", "lseek", &rate.to_string(), &SECONDS.to_string()]);
    let mut child = blkkin
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", setting.blkkin.display()))?;
    let usage = process::wait(&mut child)?;
    let said = std::io::read_to_string(child.stdout.take().context("invariant: it was piped")?)?;
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

fn losses(report: &Path) -> Result<Value> {
    let text = std::fs::read(report).with_context(|| format!("cannot read {}", report.display()))?;
    Ok(serde_json::from_slice::<Value>(&text)?["losses"].take())
}
