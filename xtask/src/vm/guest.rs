//! Which guests there are, and which tests run in each.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::disk::{Attach, Disk};
use super::kernel::Kernel;
use super::suites::{BY_KIND, EVERYWHERE, FURTHER, SINCE_6_12, SINCE_6_12_BY_KIND, Suite, suite};
use crate::shell;
use crate::test::TestProgram;

/// A kernel with its command line, and what runs in it.
pub(crate) struct Guest {
    pub(super) name: &'static str,
    pub(super) kernel: &'static Kernel,
    /// Added to the kernel's command line.
    pub(super) command_line: &'static str,
    suites: &'static [Suite],
    /// What no other kernel has.
    own: &'static [Suite],
    /// What a full run adds.
    more: &'static [Suite],
    /// And by which other kinds.
    by_kind: &'static [&'static [(Suite, &'static [Attach])]],
}

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// As part of all tests: what holds in one kernel and not in another.
    Short,
    /// Also on further devices.
    Full,
}

/// Longest first: two run at a time.
pub(super) const GUESTS: &[Guest] = &[
    Guest {
        name: "6.12",
        kernel: &Kernel::LINUX_6_12,
        command_line: "",
        suites: EVERYWHERE,
        own: SINCE_6_12,
        more: FURTHER,
        by_kind: &[BY_KIND, SINCE_6_12_BY_KIND],
    },
    Guest {
        name: "6.1",
        kernel: &Kernel::LINUX_6_1,
        command_line: "",
        suites: EVERYWHERE,
        own: &[],
        more: FURTHER,
        by_kind: &[BY_KIND],
    },
    Guest {
        name: "6.12-confidentiality",
        kernel: &Kernel::LINUX_6_12,
        command_line: "lockdown=confidentiality",
        suites: &[suite("guest_lockdown", "", Disk::Loop)],
        own: &[],
        more: &[],
        by_kind: &[],
    },
    Guest {
        name: "6.12-integrity",
        kernel: &Kernel::LINUX_6_12,
        command_line: "lockdown=integrity",
        suites: &[suite("kernels", "doctor", Disk::Loop)],
        own: &[],
        more: &[],
        by_kind: &[],
    },
    Guest {
        name: "5.10",
        kernel: &Kernel::LINUX_5_10,
        command_line: "",
        suites: &[suite("guest_too_old", "", Disk::Loop)],
        own: &[],
        more: &[],
        by_kind: &[],
    },
];

/// One program to run in a guest.
pub(super) struct Work {
    /// As it is counted: `blkkin/tests/attach on loop`.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// The tests, by their exact names.
    pub(super) tests: Vec<String>,
    pub(super) disk: Disk,
    pub(super) attach: Attach,
}

impl Guest {
    /// What runs here, each by its kind.
    fn suites(&self, depth: Depth) -> Vec<Suite> {
        let (more, by_kind) =
            if depth == Depth::Full { (self.more, self.by_kind) } else { (&[][..], &[][..]) };
        let repeated = by_kind.iter().copied().flatten();
        let repeated = repeated.flat_map(|(suite, kinds)| kinds.iter().map(|kind| suite.by(*kind)));
        let all: Vec<Suite> =
            self.suites.iter().chain(self.own).chain(more).copied().chain(repeated).collect();
        // What all tests of a program have in them is not run besides.
        all.iter().filter(|suite| suite.tests.is_empty() || !all.contains(&suite.whole())).copied().collect()
    }

    /// What is to run here, of that what `filter` leaves: a part of a test's name, or a program's whole name.
    pub(super) fn work(
        &self,
        programs: &[TestProgram],
        depth: Depth,
        filter: Option<&str>,
    ) -> Result<Vec<Work>> {
        let mut work = Vec::new();
        for suite in self.suites(depth) {
            let name = format!("blkkin/tests/{}", suite.program);
            let program = programs.iter().find(|program| program.name == name);
            let executable = program.with_context(|| format!("there is no {name}"))?.executable.clone();
            let listed = shell::capture(Command::new(&executable).args(["--list", "--format", "terse"]))?;
            let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
            let wanted = |test: &str| filter.is_none_or(|part| test.contains(part) || suite.program == part);
            let tests = tests.filter(|test| test.contains(suite.tests) && wanted(test));
            let tests: Vec<String> = tests.map(str::to_owned).collect();
            if !tests.is_empty() {
                let (name, disk, attach) = (suite.name(), suite.disk, suite.attach);
                work.push(Work { name, executable, tests, disk, attach });
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
