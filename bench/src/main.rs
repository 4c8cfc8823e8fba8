//! What blkkin costs: the benches behind `cargo xtask bench`, and the load that they measure with.
//!
//! *In*: the name of a bench, the `blkkin` to measure, a folder. *Out*: a table on standard output, the same as JSON
//! in that folder, and exit status 0 whatever came out: a figure is read by a person who knows what else the
//! machine was doing, and asserted by nobody.
//!
//! How a figure is made: what is compared runs in turns (A B A B …), after a warm-up, with the load bound to one CPU
//! and the rest of ours to the others; the figure says its spread, and where the spread is larger than the
//! distance to the goal the verdict is that there is none (see [`figure`]).
//!
//! `calls` and `harness` make load and a tracer in this process; `call`, `start`, `loss`, `join`, `iops` are the
//! benches; `process` reads what another process took; `disk` and `records` are what is read and what is joined.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is what it is for")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod affinity;
mod call;
mod calls;
mod disk;
mod figure;
mod fio;
mod harness;
mod iops;
mod join;
mod load;
mod loss;
mod output;
mod process;
mod start;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::figure::Figure;

/// What a bench is given.
pub(crate) struct Setting {
    /// The `blkkin` to measure.
    pub(crate) blkkin: PathBuf,
    /// For files that a bench needs and its result.
    pub(crate) folder: PathBuf,
}

type Bench = fn(&Setting) -> Result<Vec<Figure>>;

const BENCHES: &[(&str, Bench)] = &[
    ("start", start::run),
    ("call", call::run),
    ("loss", loss::run),
    ("join", join::run),
    ("iops", iops::run),
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
        ["run", name, blkkin, folder, _reference, _extent @ ..] => {
            let Some((_, bench)) = BENCHES.iter().find(|(known, _)| known == name) else {
                bail!("no bench is called {name}");
            };
            let setting = Setting { blkkin: blkkin.into(), folder: folder.into() };
            std::fs::create_dir_all(&setting.folder)
                .with_context(|| format!("cannot make {}", setting.folder.display()))?;
            output::show(name, &bench(&setting)?, &setting.folder)
        }
        _ => bail!("usage: blkkin-bench run BENCH BLKKIN FOLDER REFERENCE, as `cargo xtask bench` calls it"),
    }
}
