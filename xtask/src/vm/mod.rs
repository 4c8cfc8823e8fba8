//! `vm`: the system tests inside other kernels, stock ones of Debian, in QEMU without KVM.
//!
//! *In*: the test programs that cargo built, a kernel's package. *Out*: what the tests said, counted like any other's.
//! In the order of their use: [`guest`] says which guests there are and [`suites`] what runs in each, on which [`disk`]; [`kernel`] fetches (by
//! [`apt`]) and unpacks a kernel, and [`modules`] those parts of it that are loaded; [`initramfs`] puts these, the tests, the
//! programs that they call and the libraries of all of them into one [`archive`], which `init.sh` runs; [`machine`] boots
//! it, [`protocol`] reads what comes over its second serial line.
//!
//! *Invariant*: a guest that does not say that it is done has failed, whatever its tests said before; its console is
//! shown. No kernel is installed and no root is needed: all of it lies below `target/vm`.
//!
//! *Why not a static build of its own*: what runs inside is the very file that was tested outside, with its libraries
//! beside it. A second build would cost a minute and be another program.

mod apt;
mod archive;
mod disk;
mod guest;
mod initramfs;
mod kernel;
mod machine;
mod modules;
mod protocol;
mod suites;

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Result, bail};

use crate::setup::{self, Purpose};
use crate::test::{Tally, TestProgram, build};
use crate::timing::Timings;
use crate::workspace::Workspace;

use guest::{Depth, GUESTS, Guest};
pub(crate) use kernel::{Kernel, missing};
use machine::Outcome;

/// Guests that run at a time: each keeps one CPU busy and holds 2 GiB.
const AT_A_TIME: usize = 2;

/// Sets up, builds and runs all guests, or the one of this name, at full depth; of their tests those whose name contains
/// `only`, or whose program has that name.
pub(crate) fn run(workspace: &Workspace, name: Option<&str>, only: Option<&str>) -> Result<ExitCode> {
    let chosen: Vec<&Guest> =
        GUESTS.iter().filter(|guest| name.is_none_or(|name| guest.name == name)).collect();
    if chosen.is_empty() {
        bail!("there is no guest {}; there are:\n{}", name.unwrap_or_default(), guest::list());
    }
    let mut timings = Timings::default();
    timings.time("set-up", || setup::run(workspace, &[Purpose::Build, Purpose::Guests]))?;
    let programs = timings.time("build", || build(workspace))?;
    let mut tally = Tally::default();
    timings.time("guests", || run_these(workspace, &chosen, &programs, (Depth::Full, only), &mut tally));
    println!("\n{}\n{}", tally.details(), timings.summary());
    println!("{}", tally.last_line());
    Ok(if tally.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All guests that have a test whose name contains `filter`, at the depth that all tests have time for.
pub(crate) fn run_all(
    workspace: &Workspace,
    programs: &[TestProgram],
    filter: Option<&str>,
    tally: &mut Tally,
) {
    run_these(workspace, &GUESTS.iter().collect::<Vec<_>>(), programs, (Depth::Short, filter), tally);
}

fn run_these(
    workspace: &Workspace,
    guests: &[&Guest],
    programs: &[TestProgram],
    wanted: (Depth, Option<&str>),
    tally: &mut Tally,
) {
    let waiting = Mutex::new(guests.iter());
    let tally = Mutex::new(tally);
    let work = || {
        while let Some(guest) = take(&waiting) {
            let outcome = one(workspace, guest, programs, wanted);
            let mut tally = tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match outcome {
                Ok(Some(outcome)) => outcome.report(guest, &mut tally),
                Ok(None) => {}
                Err(error) => tally.broken(&format!("guest {}", guest.name), &error),
            }
        }
    };
    std::thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
}

fn take<T>(waiting: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next()
}

/// What became of a guest; none where it has nothing to do.
fn one(
    workspace: &Workspace,
    guest: &Guest,
    programs: &[TestProgram],
    (depth, filter): (Depth, Option<&str>),
) -> Result<Option<Outcome>> {
    let work = guest.work(programs, depth, filter)?;
    if work.is_empty() {
        return Ok(None);
    }
    let Some(unpacked) = guest.kernel.unpacked(workspace) else {
        return Ok(Some(Outcome::without_kernel()));
    };
    let folder = workspace.vm_dir().join(format!("guest-{}", guest.name));
    std::fs::create_dir_all(&folder)?;
    let archive = folder.join("initramfs");
    initramfs::build(&archive, &unpacked, &work, programs)?;
    machine::boot(guest, &unpacked, &archive, &folder, work.len()).map(Some)
}
