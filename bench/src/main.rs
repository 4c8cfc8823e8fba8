//! What blkkin costs: the benches behind `cargo xtask bench`, and the load that they measure with.
//!
//! *In*: the name of a bench, the `blkkin` to measure, a folder, the reference. *Out*: a table on standard output, the
//! same as JSON in that folder, and exit status 0 whatever came out: a figure is read by a person who knows what else
//! the machine was doing, and asserted by nobody. `docs` then writes the JSON into docs/performance.md.
//!
//! How a figure is made is [`frame`]'s. `calls` and `harness` make load and a tracer in this process; `call`, `contexts`, `hooks`,
//! `start`, `loss`, `memory`, `pipeline`, `wire`, `path`, `agent`, `nbd`, `daemon`, `optin`, `iops`, `peers` and `matrix` are the benches; `process` reads what another process took;
//! `bpf` asks the kernel itself; `library` compiles what a bench has in C; `between` and `zipkin` are what spans are sent to;
//! `disk` is what is read and written; [`blkkin_bench`] has what is joined.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is what it is for")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod affinity;
mod agent;
mod between;
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
mod stages;
mod start;
mod wire;
#[path = "../../blkkin/tests/support/zipkin.rs"]
#[allow(clippy::unwrap_used, reason = "shared with the tests: without a Zipkin there is nothing to measure")]
mod zipkin;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::frame::conditions::Watch;
use crate::frame::outcome::Outcome;
use crate::frame::reference::Reference;
use crate::frame::{Found, docs, print};

/// What a bench is given.
pub(crate) struct Setting {
    /// The `blkkin` to measure.
    pub(crate) blkkin: PathBuf,
    /// For files that a bench needs and its result; on a real disk.
    pub(crate) folder: PathBuf,
    pub(crate) extent: Extent,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Enough to see that it works; gives no verdict.
    Quick,
    /// What a figure is made of.
    Whole,
}

impl Extent {
    pub(crate) fn is_quick(self) -> bool {
        self == Extent::Quick
    }
}

type Bench = fn(&Setting) -> Result<Found>;

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
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Result<()> {
    match words {
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
    let watch = Watch::start(setting.extent.is_quick());
    let found = bench(setting)?;
    let outcome = Outcome::new(name, watch.end(), found);
    print!("{}", print::text(&outcome));
    let mut kept = Reference::read(reference)?;
    kept.compare(&outcome).iter().for_each(|line| println!("  {line}"));
    println!("written to {}", outcome.write(&setting.folder)?.display());
    if keep {
        kept.keep(&outcome, reference)?;
        println!("kept in {}", reference.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_has_its_place_in_the_docs() {
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
