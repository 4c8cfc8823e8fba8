//! `vm`: the system tests inside other kernels, stock Debian ones, in QEMU without KVM.
//!
//! *In*: the test programs that cargo built, and a kernel package. *Out*: the test results, counted
//! like those of the host. Modules in order of use: [`guest`] lists the guests, [`suites`] the
//! tests of each and [`disk`] their disks. [`crate::setup`] fetches and unpacks the kernels.
//! [`initramfs`] packs modules, tests, tools and libraries into one archive, which `init.sh` runs.
//! [`machine`] boots it, and [`protocol`] parses its second serial line. [`blkkin_guest_boot`] has
//! what the guests of the demo and of the tests share with these.
//!
//! *Invariant*: a guest that does not report `done` has failed, whatever its tests reported, and
//! its console is shown. No kernel is installed and no root is needed; all files are below
//! `target/vm`.
//!
//! *Rejected*: a separate static build. The guest runs the same file that was tested on the host,
//! with its libraries. A second build would cost a minute and be another program.

mod disk;
mod guest;
mod initramfs;
mod machine;
mod protocol;
mod suites;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};

use anyhow::{Result, bail};

use crate::setup::{self, Purpose};
use crate::test::{Report, TestProgram, TestStats, build};
use crate::timing::Timings;
use crate::workspace::Workspace;

use guest::{Depth, GUESTS, Guest};
use machine::Outcome;

/// Number of guests that run at the same time. Each uses one CPU and 2 GiB.
const CONCURRENT_GUESTS: usize = 2;

/// Sets up, builds and runs all guests, or the one with this name, at full depth. `only` selects
/// tests by a part of their name, or by their program's name.
pub(crate) fn run(workspace: &Workspace, name: Option<&str>, only: Option<&str>) -> Result<ExitCode> {
    let chosen: Vec<&Guest> =
        GUESTS.iter().filter(|guest| name.is_none_or(|name| guest.name == name)).collect();
    if chosen.is_empty() {
        bail!("no guest {}; the guests are:\n{}", name.unwrap_or_default(), guest::list());
    }
    let mut timings = Timings::default();
    timings.time("set-up", || setup::run(workspace, &[Purpose::Build, Purpose::Guests]))?;
    let programs = timings.time("build", || build(workspace))?;
    let mut stats = TestStats::default();
    timings.time("guests", || {
        std::thread::scope(|scope| {
            let (reports, received) = mpsc::channel();
            let (chosen, programs) = (&chosen, &programs);
            scope.spawn(move || run_guests(workspace, chosen, programs, (Depth::Full, only), reports));
            received.into_iter().for_each(|report| report(&mut stats));
        });
    });
    println!("\n{}\n{}", stats.details(), timings.summary());
    println!("{}", stats.last_line());
    Ok(if stats.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all guests with tests that `filter` selects, at the short depth of `cargo xtask test`, and
/// sends a report of each. Returns after the last one has ended.
pub(crate) fn run_all(
    workspace: &Workspace,
    programs: &[TestProgram],
    filter: Option<&str>,
    reports: Sender<Report>,
) {
    run_guests(workspace, &GUESTS.iter().collect::<Vec<_>>(), programs, (Depth::Short, filter), reports);
}

fn run_guests(
    workspace: &Workspace,
    guests: &[&'static Guest],
    programs: &[TestProgram],
    selection: (Depth, Option<&str>),
    reports: Sender<Report>,
) {
    let waiting = Mutex::new(guests.iter().copied());
    let run_next = &|reports: Sender<Report>| {
        while let Some(guest) = next_guest(&waiting) {
            let outcome = run_guest(workspace, guest, programs, selection);
            // The receiver is only dropped before the guests end if the run panicked.
            let _ = reports.send(Box::new(move |stats| report(guest, outcome, stats)));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT_GUESTS {
            let reports = reports.clone();
            scope.spawn(move || run_next(reports));
        }
    });
}

/// Prints and counts what a guest did.
fn report(guest: &Guest, outcome: Result<Option<Outcome>>, stats: &mut TestStats) {
    match outcome {
        Ok(Some(outcome)) => outcome.report(guest, stats),
        Ok(None) => {}
        Err(error) => stats.add_error(&format!("guest {}", guest.name), &error),
    }
}

fn next_guest<T>(waiting: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next()
}

/// Runs a guest and returns its result; `None` if no test is selected.
fn run_guest(
    workspace: &Workspace,
    guest: &Guest,
    programs: &[TestProgram],
    (depth, filter): (Depth, Option<&str>),
) -> Result<Option<Outcome>> {
    let test_runs = guest.test_runs(programs, depth, filter)?;
    if test_runs.is_empty() {
        return Ok(None);
    }
    let Some(unpacked) = guest.kernel.unpacked(workspace) else {
        return Ok(Some(Outcome::without_kernel()));
    };
    let folder = workspace.vm_dir().join(format!("guest-{}", guest.name));
    std::fs::create_dir_all(&folder)?;
    let archive = folder.join("initramfs");
    initramfs::build(&archive, &unpacked, &test_runs, programs)?;
    machine::boot(guest, &unpacked, &archive, &folder, test_runs.len()).map(Some)
}
