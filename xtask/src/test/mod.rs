//! `test`: installs the tools of the tests, then runs all tests, quick ones first.
//!
//! | tier | contents | user |
//! |---|---|---|
//! | quick | unit, property and golden-file tests of every crate, then doc tests | caller |
//! | idle | those quick tests that [`programs`] lists, instruction counts against `bench/callgrind.json`, every fuzz target for 10 s | caller |
//! | services | those modules of `blkkin/tests/` that [`programs`] lists: services and brokers, one at a time | root |
//! | waiting | more modules of `blkkin/tests/` that [`programs`] lists: they mostly wait, one at a time | root |
//! | guests | a subset of the system tests inside other kernels, and what such kernels reject (`vm`) | caller |
//! | system | the other modules of `blkkin/tests/`, `xtask/tests/*.rs`: real kernel, disks and programs, one at a time | root |
//!
//! The guests and the waiting tests run together with the quick tests and the tests of services, which wait for a
//! broker or a time limit. Tests that count what the kernel side lost run alone, but for the idle tier, which takes
//! only CPU time that no other process wants: the system tests leave half of two CPUs idle. What runs with others is
//! reported after them.
//!
//! *Rejected*: guests on the CPUs that the system tests leave idle (SCHED_IDLE), and services together
//! with quick tests. A guest that waits for a CPU for seconds does not start a tracer within the 60 s
//! that its tests allow, and its kernel's periodic write-back starts in the middle of a test.
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
use std::sync::mpsc::{self, Sender};

use anyhow::{Result, anyhow};

use crate::bench::callgrind::{self, Gate};
use crate::dist;
use crate::fuzz::{self, TargetRun};
use crate::servers::archive_classes;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::timing::Timings;
use crate::workspace::Workspace;

use programs::Tier;
pub(crate) use programs::{INTEGRATION, TestProgram, build};
pub(crate) use runner::each_line;
pub(crate) use stats::{ProgramStats, TestStats};

/// Prints the output of a part that ran at the same time as others, and counts its tests.
pub(crate) type Report = Box<dyn FnOnce(&mut TestStats) + Send>;

/// Runs the tests of the guests whose name contains the filter, and sends a report of each guest.
pub(crate) type Guests = fn(&Workspace, &[TestProgram], Option<&str>, Sender<Report>);

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
    let purposes = [Purpose::Build, Purpose::Tests, Purpose::Guests, Purpose::Count];
    let programs = setup::run_during(workspace, &purposes, || build_all(workspace, timings))?;
    // Without it the brokers of the tests only start later.
    if let Err(error) = timings.time("class archive", || archive_classes(workspace)) {
        println!("no archive of the broker's classes for the tests: {error:#}");
    }
    std::thread::scope(|scope| {
        let (reports, received) = mpsc::channel::<Report>();
        let idle = scope.spawn(|| run_idle(workspace, &programs, filter, reports));
        run_together(workspace, &programs, filter, guests, (&mut *stats, &mut *timings));
        timings.time("system tests", || run_tier(workspace, &programs, filter, Tier::System, stats));
        timings.time("rest of the idle tier", || received.into_iter().for_each(|report| report(stats)));
        if idle.join().is_err() {
            stats.add_error("the idle tier", &anyhow!("its thread panicked"));
        }
    });
    Ok(())
}

/// Runs the idle tier and sends a report of each part.
fn run_idle(workspace: &Workspace, programs: &[TestProgram], filter: Option<&str>, reports: Sender<Report>) {
    if let Err(error) = shell::make_thread_idle() {
        println!("tests that should run at idle priority run at the normal one: {error:#}");
    }
    run_and_report(workspace, programs, filter, Tier::Idle, &reports);
    // The receiver is only dropped before this thread ends if the run panicked.
    if filter.is_none_or(|filter| "callgrind".contains(filter)) {
        let gate = callgrind::gate(workspace);
        let _ = reports.send(Box::new(move |stats| instructions(gate, stats)));
    }
    let runs = fuzz::run_briefly(workspace, filter);
    let _ = reports.send(Box::new(move |stats| fuzz_targets(runs, stats)));
}

/// Runs the tests that leave CPUs idle, together with the guests.
fn run_together(
    workspace: &Workspace,
    programs: &[TestProgram],
    filter: Option<&str>,
    guests: Guests,
    (stats, timings): (&mut TestStats, &mut Timings),
) {
    std::thread::scope(|scope| {
        let (reports, received) = mpsc::channel::<Report>();
        let waiting = reports.clone();
        scope.spawn(move || run_and_report(workspace, programs, filter, Tier::Waiting, &waiting));
        scope.spawn(move || guests(workspace, programs, filter, reports));
        timings.time("quick tests", || {
            run_tier(workspace, programs, filter, Tier::Quick, stats);
            runner::run_documentation(workspace, filter, stats)
                .unwrap_or_else(|error| stats.add_error("documentation", &error));
        });
        timings.time("services", || run_tier(workspace, programs, filter, Tier::Service, stats));
        timings.time("rest of what runs with them", || {
            received.into_iter().for_each(|report| report(stats));
        });
    });
}

/// Runs the tests of one tier.
fn run_tier(
    workspace: &Workspace,
    programs: &[TestProgram],
    filter: Option<&str>,
    tier: Tier,
    stats: &mut TestStats,
) {
    for program in programs.iter().filter(|program| program.tier == tier) {
        runner::run(workspace, program, filter, stats)
            .unwrap_or_else(|error| stats.add_error(&program.name, &error));
    }
}

/// Builds the static programs of the tests, and the tests.
fn build_all(workspace: &Workspace, timings: &mut Timings) -> Result<Vec<TestProgram>> {
    // First, because cargo keeps one `blkkin` and the tests run the one that was built last.
    if let Err(error) = timings.time("static build", || dist::for_tests(workspace)) {
        println!("no static binary for the tests: {error:#}");
    }
    if let Err(error) = timings.time("static publisher", || publisher::build(workspace)) {
        println!("no static publisher of thread contexts for the tests: {error:#}");
    }
    timings.time("build", || programs::build(workspace))
}

/// Runs the tests of one tier and sends a report of each program.
fn run_and_report(
    workspace: &Workspace,
    programs: &[TestProgram],
    filter: Option<&str>,
    tier: Tier,
    reports: &Sender<Report>,
) {
    for program in programs.iter().filter(|program| program.tier == tier) {
        let report = runner::run_concurrently(workspace, program, filter).unwrap_or_else(|error| {
            let name = program.name.clone();
            Some(Box::new(move |stats: &mut TestStats| stats.add_error(&name, &error)))
        });
        // The receiver is only dropped before this thread ends if the run panicked.
        report.into_iter().for_each(|report| drop(reports.send(report)));
    }
}

fn instructions(gate: Result<Gate>, stats: &mut TestStats) {
    println!("\n== callgrind");
    match gate {
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

fn fuzz_targets(runs: Result<Vec<TargetRun>>, stats: &mut TestStats) {
    let runs = match runs {
        Ok(runs) => runs,
        Err(error) => return stats.add_error("fuzz", &error),
    };
    for run in runs {
        println!("{}", run.summary());
        match run.failure() {
            None => stats.add_passed(),
            Some(why) => stats.add_failed("fuzz", &why),
        }
    }
}
