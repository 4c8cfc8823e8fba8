//! `test`: installs the tools of the tests, then runs all tests, quick ones first.
//!
//! | tier | contents | user |
//! |---|---|---|
//! | quick | unit, property and golden-file tests of every crate, then doc tests | caller |
//! | instructions | instruction counts of the pipeline's stages, against `bench/callgrind.json` | caller |
//! | system | `blkkin/tests/*.rs`, `xtask/tests/*.rs`: real kernel, disks and programs, one at a time | root |
//! | guests | a subset of these inside other kernels, and what such kernels reject (`vm`) | caller |
//!
//! Cargo builds the test programs and this task runs them. So only programs that need root run as
//! root, no file below `target/` belongs to root, and a program that hangs is killed. A skipped
//! test fails the run unless [`skips`] allows it. The last line is always
//! `N passed, N failed, N skipped`.

mod programs;
mod publisher;
mod runner;
mod skips;
mod stats;

use std::process::ExitCode;

use anyhow::{Error, Result};

use crate::bench::callgrind::{self, Gate};
use crate::dist;
use crate::setup::{self, Purpose};
use crate::timing::Timings;
use crate::workspace::Workspace;

use programs::Tier;
pub(crate) use programs::{TestProgram, build};
pub(crate) use runner::each_line;
pub(crate) use stats::{ProgramStats, TestStats};

/// Runs the tests of the guests whose name contains the filter.
pub(crate) type Guests = fn(&Workspace, &[TestProgram], Option<&str>, &mut TestStats);

/// Runs the tests whose name contains `filter`, or all tests; `guests` runs those of the guests.
/// With `allow_skips` a skipped test never fails the run.
pub(crate) fn run(
    workspace: &Workspace,
    filter: Option<&str>,
    allow_skips: bool,
    guests: Guests,
) -> Result<ExitCode> {
    let mut stats = TestStats::default();
    let mut timings = Timings::default();
    if let Err(error) = run_tiers(workspace, filter, guests, &mut stats, &mut timings) {
        stats.add_error("the test run", &error);
    }
    if !allow_skips {
        stats.fail_unlisted_skips();
    }
    println!("\n{}\n{}", stats.details(), timings.summary());
    println!("{}", stats.last_line());
    Ok(if stats.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_tiers(
    workspace: &Workspace,
    filter: Option<&str>,
    guests: Guests,
    stats: &mut TestStats,
    timings: &mut Timings,
) -> Result<()> {
    timings.time("set-up", || setup::run(workspace, &[Purpose::Build, Purpose::Tests, Purpose::Guests]))?;
    // First, because cargo keeps one `blkkin` and the tests run the one that was built last.
    if let Err(error) = timings.time("static build", || dist::for_tests(workspace)) {
        println!("no static binary for the tests: {error:#}");
    }
    if let Err(error) = timings.time("static publisher", || publisher::build(workspace)) {
        println!("no static publisher of thread contexts for the tests: {error:#}");
    }
    let programs = timings.time("build", || programs::build(workspace))?;
    let add_error = |stats: &mut TestStats, what: &str, error: Error| stats.add_error(what, &error);
    timings.time("quick tests", || {
        for program in programs.iter().filter(|program| program.tier == Tier::Quick) {
            runner::run(workspace, program, filter, stats)
                .unwrap_or_else(|error| add_error(stats, &program.name, error));
        }
        runner::run_documentation(workspace, filter, stats)
            .unwrap_or_else(|error| add_error(stats, "documentation", error));
    });
    if filter.is_none_or(|filter| "callgrind".contains(filter)) {
        timings.time("instructions", || instructions(workspace, stats));
    }
    timings.time("system tests", || {
        for program in programs.iter().filter(|program| program.tier == Tier::System) {
            runner::run(workspace, program, filter, stats)
                .unwrap_or_else(|error| add_error(stats, &program.name, error));
        }
    });
    timings.time("guests", || guests(workspace, &programs, filter, stats));
    Ok(())
}

fn instructions(workspace: &Workspace, stats: &mut TestStats) {
    println!("\n== callgrind");
    match callgrind::gate(workspace) {
        Ok(Gate::Passed(what)) => {
            println!("{what}");
            stats.add_passed();
        }
        Ok(Gate::Skipped(why)) => {
            println!("skipped: {why}");
            stats.add_skipped("callgrind", &why);
        }
        Ok(Gate::Failed(why)) => stats.add_failed("callgrind", &why),
        Err(error) => stats.add_error("callgrind", &error),
    }
}
