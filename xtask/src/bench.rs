//! `bench`: runs one of the measurements by name.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

/// A measurement: what it is called, what it measures, how it runs.
struct Bench {
    name: &'static str,
    measures: &'static str,
    run: fn(&Workspace) -> Result<ExitCode>,
}

const BENCHES: &[Bench] = &[];

/// Runs the bench `name`; lists them all without a name.
pub(crate) fn run(workspace: &Workspace, name: Option<&str>) -> Result<ExitCode> {
    if BENCHES.is_empty() {
        bail!("there is no bench yet");
    }
    let Some(name) = name else {
        BENCHES.iter().for_each(|bench| println!("{:<12} {}", bench.name, bench.measures));
        return Ok(ExitCode::SUCCESS);
    };
    match BENCHES.iter().find(|bench| bench.name == name) {
        Some(bench) => (bench.run)(workspace),
        None => bail!("no bench is called {name}: `cargo xtask bench` lists them"),
    }
}
