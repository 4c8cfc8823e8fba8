//! `soak`: the whole pipeline under faults, with more events and for longer than `cargo xtask
//! test`.
//!
//! `blkkin/tests/soak.rs`, built for release, runs, kills and compares; this file only sets the
//! amount. Each round has a seed, counted up from the first, and prints which process it kills
//! when; `--seed` repeats it. The last two rounds use a tracer and a disk, and need root. `--endure`
//! keeps one set of services instead, and shows the growth of their memory.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo_build;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::test::{INTEGRATION, each_line};
use crate::workspace::Workspace;

/// Options of `cargo xtask soak`.
#[derive(Args)]
pub(crate) struct Options {
    /// Recorded events per round; Zipkin's heap is 2 KB per span (1.3 spans per event)
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    events: u64,
    /// Rounds in which every service is killed
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// Add rounds until this time has passed: 30m, 8h
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    time: Option<Duration>,
    /// Keep one set of services for this long instead, and print their memory: 1h
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["events", "rounds", "time"])]
    endure: Option<Duration>,
    /// Seed of the first round [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Builds the soak test and runs the rounds.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let daemons = options.endure.map(|_| Purpose::Daemons);
    setup::run(workspace, &[Purpose::Build, Purpose::Tests].into_iter().chain(daemons).collect::<Vec<_>>())?;
    let program = build(workspace)?;
    let mut command = shell::privileged("env", "the rounds with a tracer and a disk")?;
    command.arg(format!("CARGO_MANIFEST_DIR={}", workspace.root().join("blkkin").display()));
    command.arg(format!("BLKKIN_ZIPKIN_JAR={}", setup::server_jar(workspace).display()));
    command.arg(format!("BLKKIN_KAFKA_JARS={}", setup::broker_jars(workspace).display()));
    let numbers = [
        ("EVENTS", Some(options.events)),
        ("ROUNDS", Some(options.rounds.into())),
        ("SECONDS", options.endure.or(options.time).map(|time| time.as_secs())),
        ("SEED", options.seed),
    ];
    for (name, number) in numbers {
        command.args(number.map(|number| format!("BLKKIN_SOAK_{name}={number}")));
    }
    if options.endure.is_some() {
        let crowd = cargo_build::release(workspace, "blkkin-ust", "crowd", &["--example", "crowd"])?;
        command.arg(format!("BLKKIN_SOAK_CROWD={}", crowd.display()));
    }
    command.arg(program).args(["soak::", "--nocapture", "--test-threads=1"]);
    command.current_dir(workspace.root().join("blkkin"));
    run_unskipped(command)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the test. One that reports that this machine lacks something has not soaked anything.
fn run_unskipped(command: Command) -> Result<()> {
    let mut skipped = None;
    let status = each_line(command, |line| {
        println!("{line}");
        if let Some(why) = line.strip_prefix("skipped: ") {
            skipped = Some(why.to_owned());
        }
    })?;
    match skipped {
        Some(why) => bail!("the soak test did not run: {why}"),
        None if status.success() => Ok(()),
        None => bail!("the soak test failed ({status})"),
    }
}

fn build(workspace: &Workspace) -> Result<PathBuf> {
    println!("soak: building blkkin and its soak test (release)");
    let mut command = workspace.cargo();
    command.args(["test", "--release", "--locked", "--no-run", "--package", "blkkin"]);
    command.args(["--test", INTEGRATION]);
    command.args(cargo_build::MESSAGES);
    cargo_build::executable(&cargo_build::run(&mut command, "the soak test")?, INTEGRATION)
}

/// Parses `90s`, `30m` or `8h`.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3_600)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(Duration::from_secs(number.checked_mul(*seconds)?))
    });
    parsed.ok_or_else(|| "expected a number and a unit: 90s, 30m, 8h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_their_unit() {
        assert_eq!(
            ["90s", "30m", "8h"].map(|text| time(text).map(|time| time.as_secs())),
            [Ok(90), Ok(1_800), Ok(28_800)]
        );
        assert!(["", "5", "m", "1d", "-1s"].iter().all(|text| time(text).is_err()));
    }
}
