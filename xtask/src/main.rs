//! `cargo xtask`: blkkin's development tasks, from `setup` to `dist`.
//!
//! A task may install programs. It prints what it installs and why beforehand, and does nothing if
//! nothing is missing. This file only parses the command line.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tasks print to the terminal of the developer")]

mod bench;
mod cargo_build;
mod demo;
mod dist;
mod docs;
mod fuzz;
mod http;
mod interrupt;
mod lint;
mod packages;
mod screenshots;
mod servers;
mod setup;
mod shell;
mod soak;
mod test;
mod timing;
mod toolchain;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::demo::Scenario;
use crate::setup::Purpose;
use crate::workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "blkkin's development tasks",
    disable_version_flag = true
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Trace SQLite on ext4 over a loop device, from system call to block request
    Demo {
        /// Three nodes: agents, a real Kafka, a real Zipkin, and an aggregator that is killed
        /// during the run
        #[arg(long)]
        cluster: bool,
        /// An instrumented NBD server: its daemon spans with the system calls below them, in a real
        /// Zipkin
        #[arg(long, conflicts_with = "cluster")]
        nbd: bool,
        /// An application that exports its own spans: the same traces with the disk below them, in
        /// a real Zipkin
        #[arg(long, conflicts_with_all = ["cluster", "nbd"])]
        application: bool,
        /// Two virtual machines: the time of their system calls by layer, down to the host's disk
        #[arg(long, conflicts_with_all = ["cluster", "nbd", "application"])]
        vm: bool,
        /// Only the part that needs root, with this blkkin; expects set-up and build (used by the
        /// demo)
        #[arg(long, hide = true, value_name = "BLKKIN")]
        traced_part: Option<std::path::PathBuf>,
    },
    /// Install what the tests need, then run them all, quick ones first
    Test {
        /// Only tests whose name contains this text
        filter: Option<String>,
        /// Accept every skipped test, not only those that the list of allowed skips has
        #[arg(long)]
        allow_skips: bool,
    },
    /// Run the system tests inside other kernels, emulated; without a name in all guests (part of
    /// `test`)
    Vm {
        /// Name of the guest
        name: Option<String>,
        /// Only tests whose name contains this text, or all tests of the program with this name
        #[arg(long, value_name = "FILTER")]
        only: Option<String>,
    },
    /// Install what a build needs and this machine lacks (nothing on a machine that is set up)
    Setup {
        /// Install the tools of the tests too
        #[arg(long)]
        tests: bool,
        /// Install the tools of the demo too
        #[arg(long)]
        demo: bool,
    },
    /// Make the screenshots of Zipkin in docs/ again (as root)
    Screenshots {
        /// Use this program instead of building one
        #[arg(long, value_name = "FILE")]
        blkkin: Option<std::path::PathBuf>,
        /// Only the screenshots whose file name contains this text
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
    },
    /// Measure what blkkin costs, also in comparison with other tools
    Bench(bench::Options),
    /// Send events of three nodes to Zipkin while every service is killed, and compare the result
    /// with an undisturbed run
    Soak(soak::Options),
    /// Feed mutated inputs to every decoder of foreign bytes, guided by coverage (libFuzzer)
    Fuzz(fuzz::Options),
    /// Build the distributables in target/dist: a static binary, a Debian package, an archive
    Dist {
        /// Build a container image of it too
        #[arg(long)]
        image: bool,
    },
    /// Make HTML pages of docs/ in target/docs, and check every link
    Docs,
    /// Check format, vocabulary, clippy, documentation, the book, and the licences and
    /// sources of dependencies
    Lint {
        /// Check for known vulnerabilities (fetches the RustSec database)
        #[arg(long)]
        advisories: bool,
        /// Only the checks whose name contains this
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
    },
}

fn main() -> ExitCode {
    match Workspace::find().and_then(|workspace| run(&workspace, Arguments::parse().task)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(workspace: &Workspace, task: Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::Demo { cluster, nbd, application, vm, traced_part } => {
            let scenario = match () {
                () if cluster => Scenario::Cluster,
                () if nbd => Scenario::Nbd,
                () if application => Scenario::Application,
                () if vm => Scenario::VirtualMachines,
                () => Scenario::OneMachine,
            };
            match traced_part {
                None => demo::run(workspace, scenario),
                Some(blkkin) => demo::traced_part(workspace, &blkkin, scenario),
            }
        }
        Task::Screenshots { blkkin, only } => screenshots::run(workspace, blkkin, only.as_deref()),
        Task::Test { filter, allow_skips } => {
            test::run(workspace, filter.as_deref(), allow_skips, vm::run_all)
        }
        Task::Setup { tests, demo } => {
            let wanted = [
                (true, Purpose::Build),
                (demo, Purpose::Demo),
                (tests, Purpose::Tests),
                (tests, Purpose::Guests),
            ];
            let purposes: Vec<Purpose> =
                wanted.iter().filter(|(asked, _)| *asked).map(|(_, purpose)| *purpose).collect();
            setup::run(workspace, &purposes).map(|()| ExitCode::SUCCESS)
        }
        Task::Vm { name, only } => vm::run(workspace, name.as_deref(), only.as_deref()),
        Task::Bench(options) => bench::run(workspace, &options),
        Task::Soak(options) => soak::run(workspace, &options),
        Task::Fuzz(options) => fuzz::run(workspace, &options),
        Task::Dist { image } => dist::run(workspace, image).map(|()| ExitCode::SUCCESS),
        Task::Docs => docs::run(workspace).map(|()| ExitCode::SUCCESS),
        Task::Lint { advisories, only } => {
            lint::run(workspace, advisories, only.as_deref()).map(|()| ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn every_task_in_the_documentation_exists() {
        let workspace = Workspace::find().unwrap();
        let mut count = 0;
        let pages = workspace.sources(&["md"]).unwrap().into_iter();
        // The changelog has tasks of former versions.
        for page in pages.filter(|page| page != "CHANGELOG.md") {
            let text = std::fs::read_to_string(workspace.root().join(&page)).unwrap();
            for command in docs::commands::commands(&text, &["cargo", "xtask"]) {
                count += 1;
                let line = ["cargo xtask".to_owned()].into_iter().chain(command.arguments);
                let Err(error) = Arguments::try_parse_from(line) else { continue };
                let is_fine = error.kind() == ErrorKind::DisplayHelp
                    || error.kind() == ErrorKind::MissingRequiredArgument;
                assert!(is_fine, "{page}: {}: {error}", command.text);
            }
        }
        assert!(count > 20, "{count} command lines");
    }
}
