//! `bench callgrind`: instructions a call, with what it caused, stage by stage, counted by valgrind: the gate of `cargo xtask test`.
//!
//! *In*: `blkkin-pipeline` (see bench/), built for release, over fixed input; `bench/callgrind.json`, what it took
//! when that file was last changed. *Out*: a table, and which stages take more than [`WORSE_MAX`] per cent more.
//!
//! Instructions are counted because nothing else is the same twice: with one thread, no clock and hashes without
//! seeds two runs agree to the instruction, whatever else the machine does. They are not time: a stage that misses
//! its caches is slow at any count. For time there are `bench join` and `cargo bench`.
//!
//! Counts of different compilers or C libraries cannot be compared: then the gate is skipped, and says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::build;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

/// Per cent that a stage may take more than the reference. Compilers round loops differently after unrelated edits;
/// that is below 1 % here, and a copy or a branch an event is above 3.
const WORSE_MAX: f64 = 3.0;
/// Calls that are sent through: 15,000 events, which is 15 s for all stages under valgrind.
const CALLS: u64 = 11_000;
const STAGES: [&str; 6] = ["decode", "decode_translate", "join", "report", "spans", "encode"];
/// The C library chooses its memcpy by the processor. Without these it takes the same one everywhere.
const TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX512VL,-AVX512BW,-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-BMI2";

/// Whose counts they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MadeWith {
    arch: String,
    rustc: String,
    libc: String,
}

/// `bench/callgrind.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    made_with: MadeWith,
    calls: u64,
    /// Why the counts are what they are: of the last change.
    reason: String,
    instructions_per_call: BTreeMap<String, f64>,
}

/// What the gate found.
pub(crate) enum Gate {
    Passed(String),
    Skipped(String),
    Failed(String),
}

/// For `cargo xtask test`.
pub(crate) fn gate(workspace: &Workspace) -> Result<Gate> {
    if let Err(error) = setup::run(workspace, &[Purpose::Build, Purpose::Count]) {
        return Ok(Gate::Skipped(format!("valgrind counts the instructions, and is not there: {error:#}")));
    }
    let reference = read(&path(workspace))?;
    let here = made_with(workspace)?;
    if reference.made_with != here {
        return Ok(Gate::Skipped(format!(
            "counted with {}, and this is {}: such counts cannot be compared",
            reference.made_with, here
        )));
    }
    let counts = count(&build::program(workspace, "blkkin-bench", "blkkin-pipeline")?)?;
    print!("{}", table(&counts, Some(&reference)));
    let worse = worse(&counts, &reference);
    if worse.is_empty() {
        return Ok(Gate::Passed(format!(
            "no stage takes {WORSE_MAX} % more instructions than the reference"
        )));
    }
    Ok(Gate::Failed(format!(
        "{}; if that is the price of something, say of what: cargo xtask bench callgrind --accept \"WHY\", and commit \
         bench/callgrind.json with it",
        worse.join(", ")
    )))
}

/// For `cargo xtask bench callgrind`; with a reason it makes what it finds the reference.
pub(crate) fn run(workspace: &Workspace, accept: Option<&str>) -> Result<()> {
    setup::run(workspace, &[Purpose::Build, Purpose::Count])?;
    let counts = count(&build::program(workspace, "blkkin-bench", "blkkin-pipeline")?)?;
    let path = path(workspace);
    let reference = read(&path).ok();
    print!("{}", table(&counts, reference.as_ref()));
    if let Some(reason) = accept {
        if reason.trim().is_empty() {
            bail!("a reference is changed for a reason: say it");
        }
        let reference = Reference {
            made_with: made_with(workspace)?,
            calls: CALLS,
            reason: reason.trim().to_owned(),
            instructions_per_call: counts,
        };
        std::fs::write(&path, serde_json::to_string_pretty(&reference)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("written to {}", path.display());
    }
    Ok(())
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.root().join("bench/callgrind.json")
}

fn read(path: &Path) -> Result<Reference> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} cannot be understood", path.display()))
}

/// Instructions a call, by stage. Not an event: how many events a call is told by is a matter of the records.
fn count(program: &Path) -> Result<BTreeMap<String, f64>> {
    let calls = CALLS as f64;
    let each = STAGES.iter().map(|stage| Ok(((*stage).to_owned(), instructions(program, stage)? / calls)));
    each.map(|one: Result<_>| one.map(|(stage, count): (String, f64)| (stage, (count * 10.0).round() / 10.0)))
        .collect()
}

/// Of one stage, all its passes. The environment is ours: its size moves the stack, and copies depend on alignment.
fn instructions(program: &Path, stage: &str) -> Result<f64> {
    let mut command = Command::new("valgrind");
    command.env_clear().env("GLIBC_TUNABLES", TUNABLES).env("PATH", "/usr/bin:/bin");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect=*::stage_{stage}")).arg(program);
    let output = command.args([&CALLS.to_string(), stage]).output().context("cannot start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed ({}): {}", output.status, said.trim());
    }
    match collected(&said).with_context(|| format!("valgrind did not say what it collected: {said}"))? {
        // The name is a pattern: one that matches nothing counts nothing.
        0.0 => bail!("valgrind found no function stage_{stage}"),
        count => Ok(count),
    }
}

/// `==7== Collected : 3498327`
fn collected(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

fn worse(counts: &BTreeMap<String, f64>, reference: &Reference) -> Vec<String> {
    let more = counts.iter().filter_map(|(stage, count)| {
        let Some(before) = reference.instructions_per_call.get(stage) else {
            return Some(format!("{stage} has no reference"));
        };
        let more = 100.0 * (count / before - 1.0);
        (more > WORSE_MAX)
            .then(|| format!("{stage} takes {count} instructions a call, {more:+.1} % of {before}"))
    });
    more.collect()
}

fn table(counts: &BTreeMap<String, f64>, reference: Option<&Reference>) -> String {
    let mut text = format!("  {:<18} {:>22} {:>12} {:>9}\n", "stage", "instructions a call", "reference", "");
    for stage in STAGES {
        let Some(count) = counts.get(stage) else { continue };
        let before = reference.and_then(|reference| reference.instructions_per_call.get(stage));
        text += &match before {
            Some(before) => format!(
                "  {stage:<18} {count:>22.1} {before:>12.1} {:>+8.1}%\n",
                100.0 * (count / before - 1.0)
            ),
            None => format!("  {stage:<18} {count:>22.1} {:>12}\n", "none"),
        };
    }
    text
}

fn made_with(workspace: &Workspace) -> Result<MadeWith> {
    let rustc = shell::capture(Command::new("rustc").current_dir(workspace.root()).arg("--version"))?;
    let libc = shell::capture(Command::new("getconf").arg("GNU_LIBC_VERSION")).unwrap_or_default();
    Ok(MadeWith {
        arch: std::env::consts::ARCH.to_owned(),
        rustc: rustc.split_whitespace().nth(1).unwrap_or_default().to_owned(),
        libc: libc.trim().to_owned(),
    })
}

impl std::fmt::Display for MadeWith {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rustc {}, {}, {}", self.rustc, self.libc, self.arch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, f64)]) -> BTreeMap<String, f64> {
        of.iter().map(|(stage, count)| ((*stage).to_owned(), *count)).collect()
    }

    fn reference() -> Reference {
        let made_with = MadeWith { arch: "a".into(), rustc: "1".into(), libc: "2".into() };
        let instructions_per_call = counts(&[("decode", 100.0), ("join", 1000.0)]);
        Reference { made_with, calls: CALLS, reason: "first".into(), instructions_per_call }
    }

    #[test]
    fn three_per_cent_more_pass_and_beyond_it_fails_by_name() {
        assert!(worse(&counts(&[("decode", 102.9), ("join", 500.0)]), &reference()).is_empty());
        let found = worse(&counts(&[("decode", 100.0), ("join", 1040.0)]), &reference());
        assert_eq!(found, ["join takes 1040 instructions a call, +4.0 % of 1000"]);
    }

    #[test]
    fn a_stage_without_a_reference_fails() {
        assert_eq!(worse(&counts(&[("encode", 1.0)]), &reference()), ["encode has no reference"]);
    }

    #[test]
    fn what_valgrind_collected_is_found() {
        let said =
            "==7== Events    : Ir\n==7== Collected : 3498327\n==7== \n==7== I   refs:      3,498,327\n";
        assert_eq!(collected(said), Some(3_498_327.0));
        assert_eq!(collected("==7== nothing"), None);
    }
}
