//! `bench`: builds blkkin and `blkkin-bench` for release, and runs one of the measurements, or all.
//!
//! *Out*: a table for each, and `target/bench/NAME.json`. Whatever comes out, the task succeeds: a figure says what
//! it is worth (its spread, and a verdict only where that allows one), and a busy machine is no error in blkkin.
//! What is measured, and how, is in `bench/`; here is only what there is. Two names measure nothing by a clock:
//! `callgrind` counts instructions (and is a gate of `cargo xtask test`), `docs` writes what was measured into
//! docs/performance.md, so that no figure there is typed by hand.

mod build;
pub(crate) mod callgrind;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

/// What `cargo xtask bench` may be told.
#[derive(Args)]
pub(crate) struct Options {
    /// Which ones; `list` lists them, all of them without a name
    names: Vec<String>,
    /// Few and short rounds: shows that everything works, and gives no verdict
    #[arg(long, conflicts_with = "keep")]
    quick: bool,
    /// Keep what comes out as the reference that later runs are compared with (bench/reference.json)
    #[arg(long)]
    keep: bool,
    /// `callgrind`: make the counts the reference (bench/callgrind.json), for this reason
    #[arg(long, value_name = "WHY")]
    accept: Option<String>,
}

/// A measurement: what it is called, what it measures, what it needs.
struct Bench {
    name: &'static str,
    measures: &'static str,
    /// What root is needed for; none where it is not.
    root_for: Option<&'static str>,
    purposes: &'static [Purpose],
}

const PROBES: Option<&str> = Some("loading eBPF programs");
const DISKS: Option<&str> = Some("loop devices and eBPF programs");
const WITH_PEERS: &[Purpose] = &[Purpose::Build, Purpose::Disks, Purpose::Peers];
const NO_MORE: &[Purpose] = &[Purpose::Build];
/// fio and what makes a disk come with what the tests need.
const WITH_FIO: &[Purpose] = &[Purpose::Build, Purpose::Disks];

/// A broker and a Zipkin come with what the tests need too.
const WITH_CLUSTER: &[Purpose] = &[Purpose::Build, Purpose::Disks, Purpose::Tests];

const BENCHES: &[Bench] = &[
    bench("start", "from starting blkkin run to its command's first instruction (10 s)", PROBES, NO_MORE),
    bench("call", "what a system call costs while traced, and beside a tracer (5 min)", PROBES, NO_MORE),
    bench("contexts", "a call's cost where its thread says what it works for (2 min)", PROBES, NO_MORE),
    bench("hooks", "ns of each eBPF program, by the kernel's own statistics (3 min)", DISKS, WITH_FIO),
    bench(
        "pipeline",
        "decode, translate, join, report, spans, JSON: ns and bytes an event (1 min)",
        None,
        NO_MORE,
    ),
    bench("loss", "events a second without loss, with defaults: the curve (5 min)", PROBES, NO_MORE),
    bench("memory", "by open requests and by rate: the curves (2 min)", PROBES, NO_MORE),
    bench("wire", "bytes and ns an event of batches as they are sent (2 min)", DISKS, WITH_FIO),
    bench(
        "path",
        "from the kernel's event to Zipkin, by way of Kafka, part by part (4 min)",
        DISKS,
        WITH_CLUSTER,
    ),
    bench("agent", "what an agent takes, by requests a second (3 min)", DISKS, WITH_CLUSTER),
    bench("nbd", "a storage daemon instrumented, and traced: its time a request (4 min)", None, WITH_CLUSTER),
    bench("daemon", "from a storage daemon's event to Zipkin (3 min)", PROBES, WITH_CLUSTER),
    bench("optin", "what only who asks for it pays: probes, NBD clients (3 min)", PROBES, NO_MORE),
    bench("iops", "fewer operations a second on a fast and on a real disk (up to 15 min)", DISKS, WITH_FIO),
    bench("peers", "beside other tools: fio, SQLite, PostgreSQL, files (20 min)", DISKS, WITH_PEERS),
    bench("matrix", "beside other tools: every engine, operation, depth of fio (1 h)", DISKS, WITH_PEERS),
];

/// What `docs` writes into.
const PAGES: [&str; 2] = ["performance.md", "performance-matrix.md"];

const fn bench(
    name: &'static str,
    measures: &'static str,
    root_for: Option<&'static str>,
    purposes: &'static [Purpose],
) -> Bench {
    Bench { name, measures, root_for, purposes }
}

/// Runs the benches that `options` name.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    match options.names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["list"] => list(),
        ["callgrind"] => callgrind::run(workspace, options.accept.as_deref())?,
        ["docs"] => docs(workspace)?,
        names => measure_all(workspace, &wanted(names)?, options)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list() {
    BENCHES.iter().for_each(|bench| println!("{:<12} {}", bench.name, bench.measures));
    println!("{:<12} instructions a call, by valgrind (15 s)", "callgrind");
    println!("{:<12} writes what was measured last into docs/performance*.md", "docs");
}

/// Only what lies in `target/bench`: nothing is measured.
fn docs(workspace: &Workspace) -> Result<()> {
    let program = build::program(workspace, "blkkin-bench", "blkkin-bench")?;
    PAGES.iter().try_for_each(|page| {
        let mut command = Command::new(&program);
        command.arg("docs").arg(folder(workspace)).arg(workspace.root().join("docs").join(page));
        shell::run(&mut command)
    })
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("target/bench")
}

/// All without a name.
fn wanted(names: &[&str]) -> Result<Vec<&'static Bench>> {
    if names.is_empty() || names == ["all"] {
        return Ok(BENCHES.iter().collect());
    }
    let found = names.iter().map(|name| {
        let found = BENCHES.iter().find(|bench| bench.name == *name);
        found.with_context(|| format!("no bench is called {name}: `cargo xtask bench list` lists them"))
    });
    found.collect()
}

fn measure_all(workspace: &Workspace, benches: &[&Bench], options: &Options) -> Result<()> {
    let purposes: Vec<Purpose> = benches.iter().flat_map(|bench| bench.purposes).copied().collect();
    setup::run(workspace, &purposes)?;
    let blkkin = build::program(workspace, "blkkin", "blkkin")?;
    let program = build::program(workspace, "blkkin-bench", "blkkin-bench")?;
    // It is looked for beside the program that measures.
    if benches.iter().any(|bench| ["nbd", "daemon"].contains(&bench.name)) {
        build::program(workspace, "blkkin-nbd", "blkkin-nbd")?;
    }
    // By the user, who can then delete what root puts there.
    let folder = folder(workspace);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let failed: Vec<&str> = benches
        .iter()
        .filter_map(|bench| {
            let measured = measure(workspace, bench, &program, &blkkin, &folder, options);
            measured
                .inspect_err(|error| eprintln!("bench {}: {error:#}", bench.name))
                .err()
                .map(|_| bench.name)
        })
        .collect();
    // Each by itself: one that cannot run here takes nothing from the others.
    if !failed.is_empty() {
        bail!("these could not be measured: {}", failed.join(", "));
    }
    Ok(())
}

fn measure(
    workspace: &Workspace,
    bench: &Bench,
    program: &PathBuf,
    blkkin: &Path,
    folder: &Path,
    options: &Options,
) -> Result<()> {
    let mut command = match bench.root_for {
        Some(why) => shell::privileged("env", why)?,
        None => Command::new("env"),
    };
    // Cargo's, for build scripts: what is measured would look for its libraries there first.
    command.args(["--unset", "LD_LIBRARY_PATH"]);
    command.arg(format!("BLKKIN_ZIPKIN_JAR={}", setup::server_jar(workspace).display()));
    command.arg(format!("BLKKIN_KAFKA_JARS={}", setup::broker_jars(workspace).display()));
    command.arg(program).args(["run", bench.name]);
    command.args([blkkin, folder, &workspace.root().join("bench/reference.json")]);
    let extent = [(options.quick, "--quick"), (options.keep, "--keep")];
    command.args(extent.iter().filter(|(asked, _)| *asked).map(|(_, word)| word));
    shell::run(command.stdin(Stdio::null()))
}
