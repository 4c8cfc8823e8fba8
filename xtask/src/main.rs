//! blkkin's own tasks: `cargo xtask demo | test | vm | setup | bench | soak | dist | screenshots | lint`.
//!
//! A task may install things, so each says what it is about to do and why before it does it, and does nothing
//! when nothing is missing. This file only parses the command line.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "talking to the person at the terminal is what a task is for"
)]

mod bench;
mod demo;
mod dist;
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

use crate::setup::Purpose;
use crate::workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "blkkin's own tasks",
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
        /// Three nodes instead, through a real Kafka into a real Zipkin, with an aggregator killed in the middle
        #[arg(long)]
        cluster: bool,
        /// An NBD server instead, which says what it does: its requests above its system calls, in a real Zipkin
        #[arg(long, conflicts_with = "cluster")]
        nbd: bool,
        /// A service that traces itself instead: its own spans with the disk below them, in a real Zipkin
        #[arg(long, conflicts_with_all = ["cluster", "nbd"])]
        application: bool,
        /// Set up and built already, and root: only the part that needs root (used by the demo itself)
        #[arg(long, hide = true, value_name = "BLKKIN")]
        traced_part: Option<std::path::PathBuf>,
    },
    /// Install what the tests need, then run them all, quick ones first
    Test {
        /// Only tests whose name contains this
        filter: Option<String>,
    },
    /// Run the system tests inside other kernels, emulated; without a name in all of them (part of `test`)
    Vm {
        /// Which guest
        name: Option<String>,
        /// Only tests whose name contains this, or those of the program of this name
        #[arg(long, value_name = "FILTER")]
        only: Option<String>,
    },
    /// Install what a build needs and is missing here (nothing on a machine that is set up)
    Setup {
        /// Also what the tests need
        #[arg(long)]
        tests: bool,
        /// Also what the demo needs
        #[arg(long)]
        demo: bool,
    },
    /// Make the pictures of Zipkin in docs/ anew (as root)
    Screenshots {
        /// Use this program instead of building one
        #[arg(long, value_name = "FILE")]
        blkkin: Option<std::path::PathBuf>,
        /// Only the pictures whose name contains this
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
    },
    /// Measure what blkkin costs, beside its peers
    Bench(bench::Options),
    /// Events of three nodes to Zipkin while every service is killed: what comes out is the same
    Soak(soak::Options),
    /// Make what is brought to other machines: one static binary, in target/dist
    Dist {
        /// And a container image of it
        #[arg(long)]
        image: bool,
    },
    /// Format, clippy, documentation, licences and sources of dependencies
    Lint {
        /// Also known vulnerabilities (fetches the RustSec database)
        #[arg(long)]
        advisories: bool,
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
        Task::Demo { cluster, nbd, application, traced_part } => {
            let which = demo::Which::of(cluster, nbd, application);
            match traced_part {
                None => demo::run(workspace, which),
                Some(blkkin) => demo::traced_part(workspace, &blkkin, which),
            }
        }
        Task::Screenshots { blkkin, only } => screenshots::run(workspace, blkkin, only.as_deref()),
        Task::Test { filter } => test::run(workspace, filter.as_deref()),
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
        Task::Dist { image } => dist::run(workspace, image).map(|()| ExitCode::SUCCESS),
        Task::Lint { advisories } => lint::run(workspace, advisories).map(|()| ExitCode::SUCCESS),
    }
}
