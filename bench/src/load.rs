//! Load in separate processes, so that a tracer can trace it or not: `blkkin-bench load …`.
//!
//! `measure CHUNKS CALL…` prints ns per call, `measure-context` ns per call of a thread that
//! publishes its context. `flood CALL RATE SECONDS` makes calls on every CPU, RATE per second in
//! total (0: without a limit), and prints their number and the seconds. `threads NUMBER` creates
//! threads that make one call each. `ust THREADS CHUNKS` prints ns per call of blkkin-ust. `clock`
//! prints CLOCK_MONOTONIC and ends.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkkin_tracer::clock;

use crate::calls::{Call, Target};
use crate::{affinity, contexts, memory, ust};

/// Runs one load.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["clock"] => println!("{}", clock::now().0),
        ["measure", chunks, calls @ ..] => measure(chunks.parse()?, calls)?,
        ["measure-context", chunks, library, word, go] => {
            contexts::load(chunks.parse()?, library, word, go.as_ref())?;
        }
        ["ust", threads, chunks] => ust::load(threads.parse()?, chunks.parse()?),
        ["threads", number] => memory::load(number.parse()?)?,
        ["flood", call, rate, seconds] => flood(call, rate.parse()?, seconds)?,
        ["flood-one", cpu, call, rate, seconds] => {
            affinity::pin(&[cpu.parse()?])?;
            let time = Duration::from_secs(seconds.parse()?);
            let made = Target::new(named(call)?)?.flood(rate.parse()?, time);
            println!("{made}");
        }
        _ => bail!("no such load: {arguments:?}"),
    }
    Ok(())
}

fn measure(chunks: usize, calls: &[&str]) -> Result<()> {
    affinity::pin(&[affinity::load_cpu()])?;
    affinity::prefer_this_process();
    for name in calls {
        println!("{name} {:.2}", Target::new(named(name)?)?.measure(chunks));
    }
    Ok(())
}

/// Runs one process per CPU.
fn flood(call: &str, rate: u64, seconds: &str) -> Result<()> {
    let cpus = affinity::cpus();
    let share = (rate / cpus.len() as u64).to_string();
    let start = std::time::Instant::now();
    let mut children = Vec::new();
    for cpu in &cpus {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["load", "flood-one", &cpu.to_string(), call, &share, seconds]);
        children.push(command.stdout(std::process::Stdio::piped()).spawn()?);
    }
    let mut made = 0;
    for child in children {
        made += crate::harness::wait_for_output(child)?
            .trim()
            .parse::<u64>()
            .context("a load printed no number")?;
    }
    println!("{made} {:.3}", start.elapsed().as_secs_f64());
    Ok(())
}

fn named(name: &str) -> Result<Call> {
    Call::by_name(name).with_context(|| format!("no call is called {name}"))
}
