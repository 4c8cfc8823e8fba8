//! Benchmarks of blkkin, run by `cargo xtask bench`, and the load generators that they use.
//!
//! *In*: the name of a benchmark, the `blkkin` to measure, a folder, the reference. *Out*: a table
//! on standard output and the same data as JSON in that folder. The exit status is 0 whatever the
//! figures are: no figure is asserted, because only a person knows what else the machine ran.
//! `docs` writes the JSON into docs/performance.md.
//!
//! [`frame`] makes and compares figures. `calls` and `harness` generate load and run a tracer in
//! this process. The benchmarks are `call`, `contexts`, `hooks`, `start`, `loss`, `memory`,
//! `pipeline`, `wire`, `path`, `agent`, `nbd`, `daemon`, `optin`, `iops`, `peers` and `matrix`.
//! `process` measures child processes; `bpf` loads hand-written eBPF programs; `library` compiles C
//! code. `proxy` and `zipkin` receive spans; `disk` makes block devices. [`blkkin_bench`] contains
//! the stages that other programs measure too.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is what it is for")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod affinity;
mod agent;
mod bpf;
#[path = "../../bus/tests/support/mod.rs"]
#[allow(clippy::unwrap_used, reason = "shared with the tests: without a broker there is nothing to measure")]
mod broker;
mod call;
mod calls;
mod contexts;
mod daemon;
mod disk;
mod fio;
mod frame;
mod harness;
mod hooks;
mod iops;
mod library;
mod load;
mod loss;
mod matrix;
mod memory;
mod nbd;
mod optin;
mod path;
mod peers;
mod process;
mod proxy;
mod stages;
mod start;
mod wire;
#[path = "../../blkkin/tests/support/zipkin.rs"]
#[allow(clippy::unwrap_used, reason = "shared with the tests: without a Zipkin there is nothing to measure")]
mod zipkin;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::frame::conditions::ConditionsRecorder;
use crate::frame::outcome::Outcome;
use crate::frame::reference::Reference;
use crate::frame::{BenchReport, docs, print};

/// Input of a benchmark.
pub(crate) struct Setting {
    /// Path of the `blkkin` to measure.
    pub(crate) blkkin: PathBuf,
    /// Folder on a real disk for the benchmark's files and its result.
    pub(crate) folder: PathBuf,
    pub(crate) extent: Extent,
}

/// Extent of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Enough to see that the benchmark works, without verdicts.
    Quick,
    /// Enough rounds for a figure.
    Whole,
}

impl Extent {
    pub(crate) fn is_quick(self) -> bool {
        self == Extent::Quick
    }
}

type Bench = fn(&Setting) -> Result<BenchReport>;

const BENCHES: &[(&str, Bench)] = &[
    ("start", start::run),
    ("call", call::run),
    ("contexts", contexts::run),
    ("hooks", hooks::run),
    ("loss", loss::run),
    ("memory", memory::run),
    ("pipeline", stages::run),
    ("wire", wire::run),
    ("path", path::run),
    ("agent", agent::run),
    ("nbd", nbd::run),
    ("daemon", daemon::run),
    ("optin", optin::run),
    ("iops", iops::run),
    ("peers", peers::run),
    ("matrix", matrix::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["load", rest @ ..] => load::run(rest),
        ["docs", folder, page] => {
            let written = docs::write(Path::new(folder), Path::new(page))?;
            println!(
                "{page}: {}",
                if written.is_empty() { "nothing".to_owned() } else { written.join(", ") }
            );
            Ok(())
        }
        ["run", name, blkkin, folder, reference, flags @ ..] => {
            let extent = if flags.contains(&"--quick") { Extent::Quick } else { Extent::Whole };
            let setting = Setting { blkkin: blkkin.into(), folder: folder.into(), extent };
            run(name, &setting, Path::new(reference), flags.contains(&"--keep"))
        }
        _ => bail!("usage: blkkin-bench run BENCH BLKKIN FOLDER REFERENCE, as `cargo xtask bench` calls it"),
    }
}

fn run(name: &str, setting: &Setting, reference: &Path, keep: bool) -> Result<()> {
    let Some((_, bench)) = BENCHES.iter().find(|(known, _)| *known == name) else {
        bail!("no bench is called {name}");
    };
    std::fs::create_dir_all(&setting.folder)
        .with_context(|| format!("cannot make {}", setting.folder.display()))?;
    let recorder = ConditionsRecorder::start(setting.extent.is_quick());
    let found = bench(setting)?;
    let outcome = Outcome::new(name, recorder.end(), found);
    print!("{}", print::text(&outcome));
    let mut reference_values = Reference::read(reference)?;
    reference_values.compare(&outcome).iter().for_each(|line| println!("  {line}"));
    println!("written to {}", outcome.write(&setting.folder)?.display());
    if keep {
        reference_values.save(&outcome, reference)?;
        println!("saved in {}", reference.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_has_marks_in_the_docs() {
        let page = concat!(
            include_str!("../../docs/performance.md"),
            include_str!("../../docs/performance-matrix.md")
        );
        for (name, _) in BENCHES {
            let (begin, end) = (format!("<!-- bench {name} -->\n"), format!("<!-- end {name} -->\n"));
            assert!(page.contains(&begin) && page.contains(&end), "{name}");
        }
    }
}
