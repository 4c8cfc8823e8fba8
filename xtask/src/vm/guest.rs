//! Guests and the suites that run in each.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::disk::{Attach, Disk};
use super::suites::{
    BY_KIND, EVERYWHERE, FURTHER, ONCE_6_1, ONCE_6_12, SINCE_6_12, SINCE_6_12_BY_KIND, Suite, suite,
};
use crate::setup::Kernel;
use crate::test::TestProgram;

/// Kernel with a command line, and the suites that run in it.
pub(crate) struct Guest {
    pub(super) name: &'static str,
    pub(super) kernel: &'static Kernel,
    /// Addition to the kernel's command line.
    pub(super) command_line: &'static str,
    suites: &'static [&'static [Suite]],
    /// Suites that only a full run includes.
    full_only: &'static [&'static [Suite]],
    /// Suites that a full run repeats with other attach kinds.
    by_attach: &'static [&'static [(Suite, &'static [Attach])]],
}

/// Extent of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// Part of `cargo xtask test`: suites whose result depends on the kernel.
    Short,
    /// Complete: all suites, also on further devices and with other attach kinds.
    Full,
}

/// Guests, longest first, because two run at a time.
pub(super) const GUESTS: &[Guest] = &[
    Guest {
        name: "6.12",
        kernel: &Kernel::LINUX_6_12,
        command_line: "",
        suites: &[EVERYWHERE, ONCE_6_12, SINCE_6_12],
        full_only: &[ONCE_6_1, FURTHER],
        by_attach: &[BY_KIND, SINCE_6_12_BY_KIND],
    },
    Guest {
        name: "6.1",
        kernel: &Kernel::LINUX_6_1,
        command_line: "",
        suites: &[EVERYWHERE, ONCE_6_1],
        full_only: &[ONCE_6_12, FURTHER],
        by_attach: &[BY_KIND],
    },
    Guest {
        name: "6.12-confidentiality",
        kernel: &Kernel::LINUX_6_12,
        command_line: "lockdown=confidentiality",
        suites: &[&[suite("guest_lockdown", "", Disk::Loop)]],
        full_only: &[],
        by_attach: &[],
    },
    Guest {
        name: "6.12-integrity",
        kernel: &Kernel::LINUX_6_12,
        command_line: "lockdown=integrity",
        suites: &[&[suite("kernels", "doctor", Disk::Loop)]],
        full_only: &[],
        by_attach: &[],
    },
    // Programs by fentry can be preempted there.
    Guest {
        name: "6.12-preempt",
        kernel: &Kernel::LINUX_6_12,
        command_line: "preempt=full",
        suites: &[],
        full_only: &[&[suite("sleeps", "", Disk::Loop)]],
        by_attach: &[&[(suite("sleeps", "", Disk::Loop), &[Attach::Fentry])]],
    },
    Guest {
        name: "5.10",
        kernel: &Kernel::LINUX_5_10,
        command_line: "",
        suites: &[&[suite("guest_too_old", "", Disk::Loop)]],
        full_only: &[],
        by_attach: &[],
    },
];

/// Tests of one program that run in a guest.
pub(super) struct TestRun {
    /// Name in the results: `blkkin/tests/attach on loop`.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// Exact names of the tests.
    pub(super) tests: Vec<String>,
    pub(super) disk: Disk,
    pub(super) attach: Attach,
}

impl Guest {
    /// Returns the suites of this guest, each with its attach kind.
    fn suites(&self, depth: Depth) -> Vec<Suite> {
        let (full_only, by_attach) =
            if depth == Depth::Full { (self.full_only, self.by_attach) } else { (&[][..], &[][..]) };
        let repeated = by_attach.iter().copied().flatten();
        let repeated = repeated.flat_map(|(suite, kinds)| kinds.iter().map(|kind| suite.with_attach(*kind)));
        let named = self.suites.iter().chain(full_only).copied().flatten().copied();
        let all: Vec<Suite> = named.chain(repeated).collect();
        // A suite that is contained in another suite of the same program, or is there twice, is omitted.
        let mut suites: Vec<Suite> = Vec::new();
        for suite in all.iter().filter(|suite| suite.tests.is_empty() || !all.contains(&suite.whole())) {
            if !suites.contains(suite) {
                suites.push(*suite);
            }
        }
        suites
    }

    /// Returns the tests that `filter` selects: by a part of a test's name, or by a program's full
    /// name.
    pub(super) fn test_runs(
        &self,
        programs: &[TestProgram],
        depth: Depth,
        filter: Option<&str>,
    ) -> Result<Vec<TestRun>> {
        let mut test_runs = Vec::new();
        for suite in self.suites(depth) {
            let name = format!("blkkin/tests/{}", suite.program);
            let program = programs.iter().find(|program| program.name == name);
            let program = program.with_context(|| format!("no test program {name}"))?;
            let is_selected = |test: &str| {
                let test = test.split_once("::").map_or(test, |(_, test)| test);
                let by_filter = filter.is_none_or(|part| test.contains(part) || suite.program == part);
                test.contains(suite.tests) && by_filter
            };
            let tests = program.module_tests.iter().flatten().filter(|test| is_selected(test));
            let tests: Vec<String> = tests.cloned().collect();
            if !tests.is_empty() {
                let executable = program.executable.clone();
                let (name, disk, attach) = (suite.name(), suite.disk, suite.attach);
                test_runs.push(TestRun { name, executable, tests, disk, attach });
            }
        }
        Ok(test_runs)
    }
}

/// Lists the guests' names and command lines.
pub(super) fn list() -> String {
    GUESTS
        .iter()
        .map(|guest| format!("  {} {}", guest.name, guest.command_line).trim_end().to_owned() + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_run_has_every_suite_in_each_kernel_and_a_short_run_in_one() {
        let kernels = GUESTS.iter().filter(|guest| guest.by_attach.contains(&BY_KIND));
        let kernels: Vec<_> = kernels.collect();
        assert_eq!(kernels.len(), 2);
        for suite in ONCE_6_1.iter().chain(ONCE_6_12) {
            let with = |depth| {
                kernels.iter().filter(move |kernel| {
                    let suites = kernel.suites(depth);
                    suites.contains(suite) || suites.contains(&suite.whole())
                })
            };
            assert_eq!(with(Depth::Short).count(), 1, "{}", suite.name());
            assert_eq!(with(Depth::Full).count(), 2, "{}", suite.name());
        }
    }
}
