//! `bench callgrind`: instructions per system call and its block I/O, by stage, counted by
//! valgrind. It is a gate of `cargo xtask test`.
//!
//! *In*: `blkkin-pipeline` (bench/pipeline/), built for release, over fixed input;
//! `bench/callgrind.json`, the counts of the last accepted change, with a ceiling and the reason of
//! the last raise for each stage. *Out*: a table, and the stages that exceed the reference by more
//! than [`REGRESSION_MAX`] per cent.
//!
//! *Invariant*: a reference never exceeds its ceiling. `--accept` raises references and no ceiling,
//! so small raises cannot add up without an edit of the file that a reviewer sees.
//!
//! Only instruction counts are reproducible: with one thread, no clock and unseeded hashes, two
//! runs agree exactly on a busy machine. They are not time: a stage with cache misses is slow at
//! any count. `bench pipeline` measures time.
//!
//! Counts of different compilers or C libraries cannot be compared to the reference. The gate then
//! only fails above [`OTHER_BUILD_MAX`] times the ceiling, and reports it.

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
/// Maximum of another compiler's or C library's count in multiples of the ceiling. The difference
/// between compilers was not measured; copying each event twice exceeds this.
const OTHER_BUILD_MAX: f64 = 1.5;
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
    /// Explanation of the ceilings.
    ceilings: String,
    stages: BTreeMap<String, Row>,
}

/// Reference of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    instructions_per_call: f64,
    /// Maximum of the reference.
    ceiling: f64,
    /// Feature that the last raise paid for.
    reason: String,
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
    let counts = count(&super::build(workspace, "blkkin-pipeline", "blkkin-pipeline")?)?;
    let table = table(&counts, Some(&reference));
    if reference.made_with != here {
        let above = above_ceilings(&counts, &reference, OTHER_BUILD_MAX);
        return Ok(if above.is_empty() {
            Gate::Passed(format!(
                "{table}the reference was counted with {}, this build uses {here}: no stage exceeds {OTHER_BUILD_MAX} times its ceiling",
                reference.made_with
            ))
        } else {
            Gate::Failed(format!("\n{table}{}", above.join(", ")))
        });
    }
    let regressions = regressions(&counts, &reference);
    if regressions.is_empty() {
        return Ok(Gate::Passed(format!(
            "{table}no stage takes {REGRESSION_MAX} % more instructions than the reference"
        )));
    }
    Ok(Gate::Failed(format!(
        "\n{table}{}; to accept it, state the reason: cargo xtask bench callgrind --accept \"REASON\", and commit \
         bench/callgrind.json with it",
        regressions.join(", ")
    )))
}

/// Counts for `cargo xtask bench callgrind`. With a reason, the counts become the reference.
pub(crate) fn run(workspace: &Workspace, accept: Option<&str>) -> Result<()> {
    setup::run(workspace, &[Purpose::Build, Purpose::Count])?;
    let counts = count(&super::build(workspace, "blkkin-pipeline", "blkkin-pipeline")?)?;
    let path = path(workspace);
    let reference = read(&path)?;
    print!("{}", table(&counts, Some(&reference)));
    if let Some(reason) = accept {
        let mut reference = accepted(&counts, reference, reason)?;
        reference.made_with = current_environment(workspace)?;
        std::fs::write(&path, serde_json::to_string_pretty(&reference)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("written to {}", path.display());
    }
    Ok(())
}

/// Returns the reference with these counts. Stages whose count was raised get the reason; the others
/// keep theirs.
fn accepted(counts: &BTreeMap<String, f64>, mut reference: Reference, reason: &str) -> Result<Reference> {
    if reason.trim().is_empty() {
        bail!("--accept needs a reason");
    }
    let above = above_ceilings(counts, &reference, 1.0);
    if !above.is_empty() {
        bail!("{}; first make it cheaper, or edit the ceiling in bench/callgrind.json", above.join(", "));
    }
    for (stage, count) in counts {
        let row = reference.stages.get_mut(stage).with_context(|| format!("{stage} has no ceiling"))?;
        if *count > row.instructions_per_call {
            row.reason = reason.trim().to_owned();
        }
        row.instructions_per_call = *count;
    }
    Ok(reference)
}

/// Returns the stages whose count exceeds their ceiling times `factor`.
fn above_ceilings(counts: &BTreeMap<String, f64>, reference: &Reference, factor: f64) -> Vec<String> {
    let above = counts.iter().filter_map(|(stage, count)| {
        let ceiling = reference.stages.get(stage)?.ceiling * factor;
        (*count > ceiling).then(|| format!("{stage} takes {count} instructions a call, above {ceiling}"))
    });
    above.collect()
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
        let Some(row) = reference.stages.get(stage) else {
            return Some(format!("{stage} has no reference"));
        };
        let reference_count = row.instructions_per_call;
        let more = 100.0 * (count / reference_count - 1.0);
        (more > REGRESSION_MAX)
            .then(|| format!("{stage} takes {count} instructions a call, {more:+.1} % of {reference_count}"))
    });
    more.collect()
}

fn table(counts: &BTreeMap<String, f64>, reference: Option<&Reference>) -> String {
    let mut text = format!(
        "  {:<18} {:>22} {:>12} {:>9} {:>10}\n",
        "stage", "instructions a call", "reference", "", "ceiling"
    );
    for stage in STAGES {
        let Some(count) = counts.get(stage) else { continue };
        let row = reference.and_then(|reference| reference.stages.get(stage));
        text += &match row {
            Some(Row { instructions_per_call, ceiling, .. }) => format!(
                "  {stage:<18} {count:>22.1} {instructions_per_call:>12.1} {:>+8.1}% {ceiling:>10.0}\n",
                100.0 * (count / instructions_per_call - 1.0)
            ),
            None => format!("  {stage:<18} {count:>22.1} {:>12}\n", "none"),
        };
    }
    text
}

fn current_environment(workspace: &Workspace) -> Result<MadeWith> {
    let rustc = workspace.compiler_version()?;
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
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn counts(of: &[(&str, f64)]) -> BTreeMap<String, f64> {
        of.iter().map(|(stage, count)| ((*stage).to_owned(), *count)).collect()
    }

    fn reference() -> Reference {
        let made_with = MadeWith { arch: "a".into(), rustc: "1".into(), libc: "2".into() };
        let row = |(stage, count): (&str, f64)| {
            let row = Row { instructions_per_call: count, ceiling: 1.1 * count, reason: "first".into() };
            (stage.to_owned(), row)
        };
        let stages = [("decode", 100.0), ("join", 1000.0)].map(row).into();
        Reference { made_with, calls: CALLS, ceilings: String::new(), stages }
    }

    #[test]
    fn only_a_raised_stage_gets_the_reason() {
        let new = accepted(&counts(&[("decode", 104.0), ("join", 990.0)]), reference(), "tails").unwrap();
        let row = |stage: &str| (new.stages[stage].instructions_per_call, new.stages[stage].reason.as_str());
        assert_eq!((row("decode"), row("join")), ((104.0, "tails"), (990.0, "first")));
        assert_eq!(new.stages["decode"].ceiling, reference().stages["decode"].ceiling);
    }

    #[test]
    fn no_reason_raises_a_reference_above_its_ceiling() {
        let error = accepted(&counts(&[("join", 1101.0)]), reference(), "needed").unwrap_err();
        assert!(error.to_string().starts_with("join takes 1101 instructions a call, above 1100"), "{error}");
        assert!(accepted(&counts(&[("join", 900.0)]), reference(), " ").is_err());
    }

    #[test]
    fn the_committed_reference_has_a_reason_and_a_ceiling_for_each_stage() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/callgrind.json");
        let reference = read(&file).unwrap();
        assert_eq!(reference.calls, CALLS);
        assert!(reference.stages.keys().map(String::as_str).eq(sorted(STAGES)));
        for (stage, row) in &reference.stages {
            assert!(row.instructions_per_call <= row.ceiling, "{stage}: {row:?}");
            // Where a stage became cheaper, its ceiling follows.
            assert!(row.ceiling <= 1.25 * row.instructions_per_call, "a ceiling that holds nothing: {stage}");
            assert!(!row.reason.is_empty(), "{stage}");
        }
    }

    fn sorted<const N: usize>(mut all: [&str; N]) -> [&str; N] {
        all.sort_unstable();
        all
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
