//! `bench`: builds blkkin and `blkkin-bench` for release, and runs one of the measurements, or all.
//!
//! *Out*: a table for each, and `target/bench/NAME.json`. Whatever comes out, the task succeeds: a figure says what
//! it is worth (its spread, and a verdict only where that allows one), and a busy machine is no error in blkkin.
//! What is measured, and how, is in `bench/`; here is only what there is.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

/// A measurement: what it is called, what it measures, what it needs.
struct Bench {
    name: &'static str,
    measures: &'static str,
    /// What root is needed for; none where it is not.
    root_for: Option<&'static str>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "start",
        measures: "from starting blkkin run to its command's first instruction",
        root_for: Some("loading eBPF programs"),
    },
    Bench {
        name: "call",
        measures: "what a system call costs while traced, and beside a tracer (4 min)",
        root_for: Some("loading eBPF programs"),
    },
    Bench {
        name: "loss",
        measures: "events a second without loss, with defaults",
        root_for: Some("loading eBPF programs"),
    },
    Bench {
        name: "join",
        measures: "decode, translate and join on one core, in events a second",
        root_for: None,
    },
    Bench {
        name: "iops",
        measures: "random reads on a loop device over tmpfs, untraced and traced (4 min)",
        root_for: Some("a loop device and eBPF programs"),
    },
];

/// Runs the bench `name`; all of them without one (10 min); `list` names them.
pub(crate) fn run(workspace: &Workspace, name: Option<&str>) -> Result<ExitCode> {
    let name = name.unwrap_or("all");
    if name == "list" {
        BENCHES.iter().for_each(|bench| println!("{:<12} {}", bench.name, bench.measures));
        return Ok(ExitCode::SUCCESS);
    }
    let wanted: Vec<&Bench> = BENCHES.iter().filter(|bench| name == "all" || bench.name == name).collect();
    if wanted.is_empty() {
        bail!("no bench is called {name}: `cargo xtask bench list` lists them");
    }
    // fio comes with what the tests need.
    let needs_fio = wanted.iter().any(|bench| bench.name == "iops");
    let purposes: &[Purpose] = if needs_fio { &[Purpose::Build, Purpose::Tests] } else { &[Purpose::Build] };
    setup::run(workspace, purposes)?;
    let programs = build(workspace)?;
    // By the user, who can then delete what root puts there.
    let folder = workspace.root().join("target/bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    wanted.iter().try_for_each(|bench| measure(bench, &programs, &folder))?;
    Ok(ExitCode::SUCCESS)
}

struct Programs {
    blkkin: PathBuf,
    bench: PathBuf,
}

fn measure(bench: &Bench, programs: &Programs, folder: &Path) -> Result<()> {
    let mut command = match bench.root_for {
        Some(why) => shell::privileged("env", why)?,
        None => Command::new("env"),
    };
    // Cargo's, for build scripts: what is measured would look for its libraries there first.
    command.args(["--unset", "LD_LIBRARY_PATH"]);
    command.arg(&programs.bench).arg(bench.name).arg(&programs.blkkin).arg(folder);
    shell::run(command.stdin(Stdio::null()))
}

/// Cargo is asked where the programs are: the target directory is the user's to choose.
fn build(workspace: &Workspace) -> Result<Programs> {
    println!("bench: building blkkin and its benches (release)");
    let mut command = workspace.cargo();
    command.args(["build", "--release", "--locked", "--package", "blkkin", "--package", "blkkin-bench"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("blkkin does not build: see above");
    }
    let mut built = executables(&String::from_utf8_lossy(&output.stdout));
    let mut take =
        |name: &str| built.remove(name).with_context(|| format!("cargo built no program called {name}"));
    Ok(Programs { blkkin: take("blkkin")?, bench: take("blkkin-bench")? })
}

/// Programs by name, out of cargo's messages.
fn executables(messages: &str) -> HashMap<String, PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["kind"][0] == "bin")
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"blkkin","kind":["bin"]},"executable":"/t/blkkin"}
{"reason":"compiler-artifact","target":{"name":"blkkin","kind":["lib"]},"executable":null}
not json"#;
        let found = executables(messages);
        assert_eq!(found.get("blkkin"), Some(&PathBuf::from("/t/blkkin")));
        assert_eq!(found.len(), 1);
    }
}
