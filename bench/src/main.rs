//! Benchmarks of blkkin, run by `cargo xtask bench`, and the load generators that they use.
//!
//! *In*: the name of a benchmark, the `blkkin` to measure, a folder. *Out*: a table on standard
//! output and the same data as JSON in that folder. The exit status is 0 whatever the figures are:
//! no figure is asserted, because only a person knows what else the machine ran. `docs` writes the
//! JSON into docs/performance/.
//!
//! [`frame`] makes and compares figures. `calls` and `harness` generate load and run a tracer in
//! this process. [`BENCHES`] lists the benchmarks. `process` runs and measures child processes;
//! `library` compiles C code. `proxy` and `zipkin` receive spans, which `posts` parses; `disk`
//! makes block devices. [`blkkin_pipeline`] contains the stages that other programs measure too.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is what it is for")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod affinity;
mod agent;
#[path = "../../bus/tests/support/mod.rs"]
#[allow(clippy::unwrap_used, reason = "shared with the tests: without a broker there is nothing to measure")]
mod broker;
mod call;
mod calls;
mod contexts;
mod daemon;
mod decode;
mod disk;
mod failover;
mod fio;
mod fleet;
mod frame;
mod guest;
mod harness;
mod iops;
mod library;
mod load;
mod loss;
mod matrix;
mod memory;
mod nbd;
mod path;
mod peers;
mod posts;
mod process;
mod proxy;
mod sampling;
#[path = "../../aggregator/tests/support/fleet/mod.rs"]
mod simulation;
mod stages;
mod start;
mod top;
mod ust;
mod wire;
#[path = "../../zipkin-export/tests/support/server.rs"]
#[allow(clippy::unwrap_used, reason = "shared with the tests: without a Zipkin there is nothing to measure")]
mod zipkin;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use broker::child;

use crate::frame::conditions::ConditionsRecorder;
use crate::frame::outcome::Outcome;
use crate::frame::{BenchReport, cost, docs};

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
    ("loss", loss::run),
    ("memory", memory::run),
    ("pipeline", stages::run),
    ("wire", wire::run),
    ("path", path::run),
    ("agent", agent::run),
    ("nbd", nbd::run),
    ("daemon", daemon::run),
    ("iops", iops::run),
    ("peers", peers::run),
    ("matrix", matrix::run),
    ("top", top::run),
    ("sampling", sampling::run),
    ("fleet", fleet::run),
    ("guest", guest::run),
    ("ust", ust::run),
    ("decode", decode::run),
    ("nbdkit", nbd::nbdkit::run),
    ("failover", failover::run),
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
        ["docs", folder, pages] => {
            let names = BENCHES.iter().map(|(name, _)| *name);
            let (folder, pages_folder) = (Path::new(folder), Path::new(pages));
            let written = docs::write(names, folder, pages_folder)?;
            let cost = pages_folder.with_file_name("cost.md");
            std::fs::write(&cost, cost::page(pages_folder)?)
                .with_context(|| format!("cannot write {}", cost.display()))?;
            println!(
                "{pages}: {}",
                if written.is_empty() { "nothing".to_owned() } else { written.join(", ") }
            );
            Ok(())
        }
        ["run", name, blkkin, folder, flags @ ..] => {
            let extent = if flags.contains(&"--quick") { Extent::Quick } else { Extent::Whole };
            let setting = Setting { blkkin: blkkin.into(), folder: folder.into(), extent };
            run(name, &setting)
        }
        _ => bail!("usage: blkkin-bench run BENCH BLKKIN FOLDER, as `cargo xtask bench` calls it"),
    }
}

fn run(name: &str, setting: &Setting) -> Result<()> {
    let Some((_, bench)) = BENCHES.iter().find(|(known, _)| *known == name) else {
        bail!("no bench is called {name}");
    };
    std::fs::create_dir_all(&setting.folder)
        .with_context(|| format!("cannot make {}", setting.folder.display()))?;
    let recorder = ConditionsRecorder::start(setting.extent.is_quick());
    let found = bench(setting)?;
    let outcome = Outcome::new(name, recorder.end(), found);
    println!("# {name}\n\n{}", docs::section(&outcome));
    println!("written to {}", outcome.write(&setting.folder)?.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");

    fn page(path: &str) -> String {
        std::fs::read_to_string(Path::new(DOCS).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn every_bench_has_a_page_that_the_summary_links() {
        let summary = page("performance.md");
        for (name, _) in BENCHES {
            assert!(
                page(&format!("performance/{name}.md")).starts_with(&format!("# `cargo xtask bench {name}`"))
            );
            assert!(summary.contains(&format!("(performance/{name}.md)")), "{name}");
        }
    }

    /// The page of a modified checkout, from before such results were refused. None may be added.
    const MODIFIED: (&str, &str) = ("iops", "fbd3751");

    #[test]
    fn every_page_names_its_commit_as_the_summary_does() {
        let summary = page("performance.md");
        for (name, _) in BENCHES {
            let text = page(&format!("performance/{name}.md"));
            // The last line has the machine, the commit and the date.
            let machine = text.rsplit("; blkkin ").next().unwrap();
            let commit = machine.split(',').next().unwrap();
            assert!(!commit.is_empty() && commit.len() < 20, "{name}: {machine}");
            let (commit, checkout) = match commit.strip_suffix("-dirty") {
                Some(commit) => (commit, "modified"),
                None => (commit, "clean"),
            };
            assert!(checkout == "clean" || MODIFIED == (name, commit), "{name}: {commit}");
            let row = format!("| [{name}](performance/{name}.md) | {commit} | {checkout} |");
            assert!(summary.contains(&row), "{row}");
        }
    }

    #[test]
    fn the_cost_page_is_made_from_the_pages_of_today() {
        let made = cost::page(&Path::new(DOCS).join("performance")).unwrap();
        assert_eq!(page("cost.md"), made, "cargo xtask bench docs");
    }

    /// A row of README's table is `| what | cost |`, with the cost of a line of the page.
    #[test]
    fn costs_of_the_readme_are_those_of_the_cost_page() {
        let readme = page("../README.md");
        let (_, section) = readme.split_once("## What it costs").unwrap();
        let (section, _) = section.split_once("## ").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
        let costs: Vec<&str> = rows.skip(1).filter_map(|row| Some(row.split_once(" | ")?.1)).collect();
        let page = page("cost.md");
        assert!(costs.len() >= 5, "{costs:?}");
        assert!(costs.iter().all(|cost| page.contains(&format!("| {cost} |"))), "{costs:?}\n{page}");
    }

    /// A row of the summary is `| what | figures, separated by ";" | goal | [page](path) |`.
    #[test]
    fn figures_of_the_summary_are_in_the_generated_pages() {
        let summary = page("performance.md");
        let rows = summary.lines().filter_map(|line| line.strip_prefix("| "));
        let mut count = 0;
        for row in rows {
            let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
            let [_, figures, _, source] = cells[..] else { continue };
            let Some(path) = source.split_once("](").and_then(|(_, rest)| rest.strip_suffix(')')) else {
                continue;
            };
            let text = page(path);
            for figure in figures.split(';').map(str::trim) {
                assert!(text.contains(figure), "{figure} is not in {path}");
                count += 1;
            }
        }
        assert!(count > 20, "the summary quotes {count} figures");
    }
}
