//! `bench callgrind`: instructions per system call and its block I/O, by stage, counted by
//! valgrind. It is a gate of `cargo xtask test`.
//!
//! *In*: `blkkin-pipeline` (see bench/), built for release, over fixed input;
//! `bench/callgrind.json`, the counts of the last accepted change. *Out*: a table, and the stages
//! that exceed the reference by more than [`REGRESSION_MAX`] per cent.
//!
//! Only instruction counts are reproducible: with one thread, no clock and unseeded hashes, two
//! runs agree exactly on a busy machine. They are not time: a stage with cache misses is slow at
//! any count. `bench pipeline` measures time.
//!
//! Counts of different compilers or C libraries cannot be compared: the gate is then skipped and
//! reports it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

/// Maximum excess over the reference in per cent. Compilers round loops differently after unrelated
/// edits, which costs below 1 % here; one copy or branch per event costs more than 3 %.
const REGRESSION_MAX: f64 = 3.0;
/// System calls in the input: 15,000 events, which take 15 s for all stages under valgrind.
const CALLS: u64 = 11_000;
const STAGES: [&str; 6] = ["decode", "decode_translate", "join", "report", "spans", "encode"];
/// Tunables of the C library, which otherwise chooses its memcpy by the processor.
const TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX512VL,-AVX512BW,-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-BMI2";

/// Build environment of the counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MadeWith {
    arch: String,
    rustc: String,
    libc: String,
}

/// Content of `bench/callgrind.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    made_with: MadeWith,
    calls: u64,
    /// Reason of the last change of the counts.
    reason: String,
    instructions_per_call: BTreeMap<String, f64>,
}

/// Result of the gate.
pub(crate) enum Gate {
    Passed(String),
    Skipped(String),
    Failed(String),
}

/// Compares the counts with the reference, for `cargo xtask test`.
pub(crate) fn gate(workspace: &Workspace) -> Result<Gate> {
    if let Err(error) = setup::run(workspace, &[Purpose::Build, Purpose::Count]) {
        return Ok(Gate::Skipped(format!("valgrind is not available: {error:#}")));
    }
    let reference = read(&path(workspace))?;
    let here = current_environment(workspace)?;
    if reference.made_with != here {
        return Ok(Gate::Skipped(format!(
            "the reference was counted with {}, this build uses {}: the counts cannot be compared",
            reference.made_with, here
        )));
    }
    let counts = count(&super::build(workspace, "blkkin-bench", "blkkin-pipeline")?)?;
    print!("{}", table(&counts, Some(&reference)));
    let regressions = regressions(&counts, &reference);
    if regressions.is_empty() {
        return Ok(Gate::Passed(format!(
            "no stage takes {REGRESSION_MAX} % more instructions than the reference"
        )));
    }
    Ok(Gate::Failed(format!(
        "{}; to accept it, state the reason: cargo xtask bench callgrind --accept \"REASON\", and commit \
         bench/callgrind.json with it",
        regressions.join(", ")
    )))
}

/// Counts for `cargo xtask bench callgrind`. With a reason, the counts become the reference.
pub(crate) fn run(workspace: &Workspace, accept: Option<&str>) -> Result<()> {
    setup::run(workspace, &[Purpose::Build, Purpose::Count])?;
    let counts = count(&super::build(workspace, "blkkin-bench", "blkkin-pipeline")?)?;
    let path = path(workspace);
    let reference = read(&path).ok();
    print!("{}", table(&counts, reference.as_ref()));
    if let Some(reason) = accept {
        if reason.trim().is_empty() {
            bail!("--accept needs a reason");
        }
        let reference = Reference {
            made_with: current_environment(workspace)?,
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
    serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))
}

/// Counts instructions per system call by stage. Not per event, because the number of events per
/// call depends on the record format.
fn count(program: &Path) -> Result<BTreeMap<String, f64>> {
    let calls = CALLS as f64;
    let each = STAGES.iter().map(|stage| Ok(((*stage).to_owned(), instructions(program, stage)? / calls)));
    each.map(|one: Result<_>| one.map(|(stage, count): (String, f64)| (stage, (count * 10.0).round() / 10.0)))
        .collect()
}

/// Counts all passes of one stage. The environment is cleared: its size moves the stack, and copies
/// depend on alignment.
fn instructions(program: &Path, stage: &str) -> Result<f64> {
    let mut command = Command::new("valgrind");
    command.env_clear().env("GLIBC_TUNABLES", TUNABLES).env("PATH", "/usr/bin:/bin");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect=*::stage_{stage}")).arg(program);
    let output = command.args([&CALLS.to_string(), stage]).output().context("cannot start valgrind")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed ({}): {}", output.status, stderr.trim());
    }
    match collected(&stderr).with_context(|| format!("valgrind printed no count: {stderr}"))? {
        // The name is a pattern, and one without a match counts nothing.
        0.0 => bail!("valgrind found no function stage_{stage}"),
        count => Ok(count),
    }
}

/// Parses `==7== Collected : 3498327`.
fn collected(stderr: &str) -> Option<f64> {
    stderr.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

fn regressions(counts: &BTreeMap<String, f64>, reference: &Reference) -> Vec<String> {
    let more = counts.iter().filter_map(|(stage, count)| {
        let Some(reference_count) = reference.instructions_per_call.get(stage) else {
            return Some(format!("{stage} has no reference"));
        };
        let more = 100.0 * (count / reference_count - 1.0);
        (more > REGRESSION_MAX)
            .then(|| format!("{stage} takes {count} instructions a call, {more:+.1} % of {reference_count}"))
    });
    more.collect()
}

fn table(counts: &BTreeMap<String, f64>, reference: Option<&Reference>) -> String {
    let mut text = format!("  {:<18} {:>22} {:>12} {:>9}\n", "stage", "instructions a call", "reference", "");
    for stage in STAGES {
        let Some(count) = counts.get(stage) else { continue };
        let reference_count = reference.and_then(|reference| reference.instructions_per_call.get(stage));
        text += &match reference_count {
            Some(reference_count) => format!(
                "  {stage:<18} {count:>22.1} {reference_count:>12.1} {:>+8.1}%\n",
                100.0 * (count / reference_count - 1.0)
            ),
            None => format!("  {stage:<18} {count:>22.1} {:>12}\n", "none"),
        };
    }
    text
}

fn current_environment(workspace: &Workspace) -> Result<MadeWith> {
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
    fn three_percent_pass_and_more_fails_by_stage() {
        assert!(regressions(&counts(&[("decode", 102.9), ("join", 500.0)]), &reference()).is_empty());
        let found = regressions(&counts(&[("decode", 100.0), ("join", 1040.0)]), &reference());
        assert_eq!(found, ["join takes 1040 instructions a call, +4.0 % of 1000"]);
    }

    #[test]
    fn stage_without_reference_fails() {
        assert_eq!(regressions(&counts(&[("encode", 1.0)]), &reference()), ["encode has no reference"]);
    }

    #[test]
    fn collected_count_is_parsed() {
        let stderr =
            "==7== Events    : Ir\n==7== Collected : 3498327\n==7== \n==7== I   refs:      3,498,327\n";
        assert_eq!(collected(stderr), Some(3_498_327.0));
        assert_eq!(collected("==7== nothing"), None);
    }
}
