//! `test`: installs what the tests need, then runs all of them, quick ones first.
//!
//! | tier | which | as |
//! |---|---|---|
//! | quick | unit, property and golden-file tests of every crate, then examples in the documentation | the user |
//! | instructions | what each stage of the pipeline takes, by valgrind, against `bench/callgrind.json` | the user |
//! | system | `blkkin/tests/*.rs`, `xtask/tests/*.rs`: real kernel, disks and programs, one at a time | root |
//! | guests | some of these inside other kernels, and what such kernels refuse: see [`crate::vm`] | the user |
//!
//! Cargo builds the test programs, we run them: so that only those that need root run as root, nothing below
//! `target/` becomes root's, and one that hangs is ended. The last line is always `N passed, N failed, N skipped`.

mod programs;
mod publisher;
mod runner;
mod tally;

use std::process::ExitCode;

use anyhow::{Error, Result};

use crate::bench::callgrind::{self, Gate};
use crate::dist;
use crate::setup::{self, Purpose};
use crate::timing::Timings;
use crate::vm;
use crate::workspace::Workspace;

use programs::Tier;
pub(crate) use programs::{TestProgram, build};
pub(crate) use runner::each_line;
pub(crate) use tally::{Count, Tally};

/// Runs the tests whose name contains `filter`; all of them without one.
pub(crate) fn run(workspace: &Workspace, filter: Option<&str>) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let mut timings = Timings::default();
    if let Err(error) = run_tiers(workspace, filter, &mut tally, &mut timings) {
        tally.broken("the test run", &error);
    }
    println!("\n{}\n{}", tally.details(), timings.summary());
    println!("{}", tally.last_line());
    Ok(if tally.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_tiers(
    workspace: &Workspace,
    filter: Option<&str>,
    tally: &mut Tally,
    timings: &mut Timings,
) -> Result<()> {
    timings.time("set-up", || setup::run(workspace, &[Purpose::Build, Purpose::Tests, Purpose::Guests]))?;
    // Before the others: cargo keeps one `blkkin`, and the tests run the one that is built last.
    if let Err(error) = timings.time("static build", || dist::for_tests(workspace)) {
        println!("no static binary for the tests: {error:#}");
    }
    if let Err(error) = timings.time("static publisher", || publisher::build(workspace)) {
        println!("no static program that publishes: {error:#}");
    }
    let programs = timings.time("build", || programs::build(workspace))?;
    let broken = |tally: &mut Tally, what: &str, error: Error| tally.broken(what, &error);
    timings.time("quick tests", || {
        for program in programs.iter().filter(|program| program.tier == Tier::Quick) {
            runner::run(workspace, program, filter, tally)
                .unwrap_or_else(|error| broken(tally, &program.name, error));
        }
        runner::run_documentation(workspace, filter, tally)
            .unwrap_or_else(|error| broken(tally, "documentation", error));
    });
    if filter.is_none_or(|filter| "callgrind".contains(filter)) {
        timings.time("instructions", || instructions(workspace, tally));
    }
    timings.time("system tests", || {
        for program in programs.iter().filter(|program| program.tier == Tier::System) {
            runner::run(workspace, program, filter, tally)
                .unwrap_or_else(|error| broken(tally, &program.name, error));
        }
    });
    timings.time("guests", || vm::run_all(workspace, &programs, filter, tally));
    Ok(())
}

fn instructions(workspace: &Workspace, tally: &mut Tally) {
    println!("\n== callgrind");
    match callgrind::gate(workspace) {
        Ok(Gate::Passed(what)) => {
            println!("{what}");
            tally.passed_by_itself();
        }
        Ok(Gate::Skipped(why)) => {
            println!("skipped: {why}");
            tally.skipped_by_itself("callgrind", &why);
        }
        Ok(Gate::Failed(why)) => tally.failed_by_itself("callgrind", &why),
        Err(error) => tally.broken("callgrind", &error),
    }
}
