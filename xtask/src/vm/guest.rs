//! Which guests there are, and which tests run in each.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::kernel::Kernel;
use crate::shell;
use crate::test::TestProgram;

/// A kernel with its command line, and what runs in it.
pub(crate) struct Guest {
    pub(super) name: &'static str,
    pub(super) kernel: &'static Kernel,
    /// Added to the kernel's command line.
    pub(super) command_line: &'static str,
    suites: &'static [Suite],
}

/// Tests of one program, on one disk.
struct Suite {
    /// As in `blkkin/tests/NAME.rs`.
    program: &'static str,
    /// Tests whose names contain this; all with the empty one.
    tests: &'static str,
    disk: Disk,
}

/// What the tests take for their disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Disk {
    /// A loop device of their own, as on the host.
    Loop,
    /// The machine's virtio disk.
    Virtio,
}

const fn suite(program: &'static str, tests: &'static str, disk: Disk) -> Suite {
    Suite { program, tests, disk }
}

/// What must hold in every kernel that blkkin is for.
const EVERYWHERE: &[Suite] = &[
    suite("kernels", "", Disk::Virtio),
    suite("attach", "", Disk::Loop),
    suite("device", "", Disk::Virtio),
    suite("fio", "the_report", Disk::Virtio),
];

const fn guest(
    name: &'static str,
    kernel: &'static Kernel,
    command_line: &'static str,
    suites: &'static [Suite],
) -> Guest {
    Guest { name, kernel, command_line, suites }
}

/// Longest first: two run at a time.
pub(super) const GUESTS: &[Guest] = &[
    guest("6.12", &Kernel::LINUX_6_12, "", EVERYWHERE),
    guest("6.1", &Kernel::LINUX_6_1, "", EVERYWHERE),
    guest(
        "6.12-confidentiality",
        &Kernel::LINUX_6_12,
        "lockdown=confidentiality",
        &[suite("guest_lockdown", "", Disk::Loop)],
    ),
    guest(
        "6.12-integrity",
        &Kernel::LINUX_6_12,
        "lockdown=integrity",
        &[suite("kernels", "doctor", Disk::Loop)],
    ),
    guest("5.10", &Kernel::LINUX_5_10, "", &[suite("guest_too_old", "", Disk::Loop)]),
];

/// One program to run in a guest.
pub(super) struct Work {
    /// As it is counted: `blkkin/tests/attach`.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// The tests, by their exact names.
    pub(super) tests: Vec<String>,
    pub(super) disk: Disk,
}

impl Guest {
    /// What is to run here, of that what `filter` leaves.
    pub(super) fn work(&self, programs: &[TestProgram], filter: Option<&str>) -> Result<Vec<Work>> {
        let mut work = Vec::new();
        for suite in self.suites {
            let name = format!("blkkin/tests/{}", suite.program);
            let program = programs.iter().find(|program| program.name == name);
            let executable = program.with_context(|| format!("there is no {name}"))?.executable.clone();
            let listed = shell::capture(Command::new(&executable).args(["--list", "--format", "terse"]))?;
            let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
            let tests =
                tests.filter(|test| test.contains(suite.tests) && test.contains(filter.unwrap_or("")));
            let tests: Vec<String> = tests.map(str::to_owned).collect();
            if !tests.is_empty() {
                work.push(Work { name, executable, tests, disk: suite.disk });
            }
        }
        Ok(work)
    }
}

/// Their names, for somebody who looks for one.
pub(super) fn list() -> String {
    GUESTS
        .iter()
        .map(|guest| format!("  {} {}", guest.name, guest.command_line).trim_end().to_owned() + "\n")
        .collect()
}
