//! `bench`: builds blkkin and `blkkin-bench` for release, and runs one or all benchmarks.
//!
//! *Out*: a table for each, and `target/bench/NAME.json`. The task succeeds whatever the results
//! are: a figure contains its spread, and a verdict only if the spread allows one; a busy machine
//! is not an error of blkkin. `bench/` defines what is measured and how; this file lists the
//! benchmarks. Two names measure no time: `callgrind` counts instructions (and is a gate of `cargo
//! xtask test`). `docs` writes the results into docs/performance/, so that no figure there is
//! typed by hand.

pub(crate) mod callgrind;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cargo_build;
use crate::dist;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Names of benchmarks, all without a name; `list` lists them
    names: Vec<String>,
    /// Few and short rounds: shows that everything works, without a verdict
    #[arg(long)]
    quick: bool,
    /// `callgrind`: make the counts the reference (bench/callgrind.json), for this reason
    #[arg(long, value_name = "WHY")]
    accept: Option<String>,
}

/// Benchmark: name, contents and requirements.
struct Bench {
    name: &'static str,
    measures: &'static str,
    /// Reason why root is needed; `None` if it is not.
    root_for: Option<&'static str>,
    purposes: &'static [Purpose],
}

const PROBES: Option<&str> = Some("loading eBPF programs");
const DISKS: Option<&str> = Some("loop devices and eBPF programs");
const WITH_PEERS: &[Purpose] = &[Purpose::Build, Purpose::Disks, Purpose::Peers];
const BUILD_ONLY: &[Purpose] = &[Purpose::Build];
/// fio and the tools that make disks.
const WITH_FIO: &[Purpose] = &[Purpose::Build, Purpose::Disks];

/// QEMU and a kernel for a guest.
const WITH_GUEST: &[Purpose] = &[Purpose::Build, Purpose::Guests];
/// A Kafka broker and a Zipkin come with the tests' tools.
const WITH_CLUSTER: &[Purpose] = &[Purpose::Build, Purpose::Disks, Purpose::Tests];

const BENCHES: &[Bench] = &[
    bench("start", "from starting blkkin run to its command's first instruction (10 s)", PROBES, BUILD_ONLY),
    bench("call", "cost of a system call while traced, and next to a tracer (5 min)", PROBES, BUILD_ONLY),
    bench("contexts", "cost of a system call with a thread context (2 min)", PROBES, BUILD_ONLY),
    bench(
        "pipeline",
        "decode, translate, join, report, spans, JSON: ns and bytes per event (1 min)",
        None,
        BUILD_ONLY,
    ),
    bench(
        "loss",
        "events per second without loss and memory, with defaults, by rate (5 min)",
        PROBES,
        BUILD_ONLY,
    ),
    bench(
        "memory",
        "of a request in flight in the join, and of the maps in the kernel (10 s)",
        PROBES,
        BUILD_ONLY,
    ),
    bench(
        "fleet",
        "memory and take-over of an aggregator of 1,000 nodes, simulated; bytes of its bounds (1 min)",
        None,
        BUILD_ONLY,
    ),
    bench("wire", "bytes and ns per event of batches as sent (2 min)", DISKS, WITH_FIO),
    bench(
        "path",
        "latency from the kernel's event through Kafka to Zipkin, by part (4 min)",
        DISKS,
        WITH_CLUSTER,
    ),
    bench("agent", "CPU and memory of an agent, by requests per second (3 min)", DISKS, WITH_CLUSTER),
    bench("nbd", "a storage daemon instrumented and traced: time per request (4 min)", None, WITH_CLUSTER),
    bench("nbdkit", "blkkin-nbd without tracing, compared with nbdkit (2 min)", None, WITH_PEERS),
    bench("ust", "a call of blkkin-ust, while no session records and recorded (4 min)", None, WITH_CLUSTER),
    bench("decode", "reading LTTng streams, compared with babeltrace2 (2 min)", None, WITH_CLUSTER),
    bench("failover", "time until a killed group member is replaced (10 min)", None, WITH_CLUSTER),
    bench("daemon", "latency from a storage daemon's event to Zipkin (3 min)", PROBES, WITH_CLUSTER),
    bench(
        "guest",
        "operations per second that an emulated guest loses to its agent (5 min)",
        None,
        WITH_GUEST,
    ),
    bench("iops", "lost operations per second on a fast and on a real disk (up to 15 min)", DISKS, WITH_FIO),
    bench("peers", "compared with other tools: fio, SQLite, PostgreSQL, files (20 min)", DISKS, WITH_PEERS),
    bench("top", "requests that are counted, beside recorded ones and bpftrace (6 min)", DISKS, WITH_PEERS),
    bench(
        "sampling",
        "operations that are sampled or kept by rules, beside all of them (7 min)",
        DISKS,
        WITH_PEERS,
    ),
    bench(
        "matrix",
        "compared with other tools: every engine, operation, depth of fio (1 h)",
        DISKS,
        WITH_PEERS,
    ),
];

const fn bench(
    name: &'static str,
    measures: &'static str,
    root_for: Option<&'static str>,
    purposes: &'static [Purpose],
) -> Bench {
    Bench { name, measures, root_for, purposes }
}

/// Runs the benchmarks that `options` names.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    match options.names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["list"] => list(),
        ["callgrind"] => callgrind::run(workspace, options.accept.as_deref())?,
        ["docs"] => docs(workspace)?,
        names => measure_all(workspace, &selected(names)?, options)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list() {
    BENCHES.iter().for_each(|bench| println!("{:<12} {}", bench.name, bench.measures));
    println!("{:<12} instructions per system call, by valgrind (15 s)", "callgrind");
    println!("{:<12} writes the last results into docs/performance/", "docs");
}

/// Updates the pages from `target/bench`, without measuring.
fn docs(workspace: &Workspace) -> Result<()> {
    let mut command = Command::new(build(workspace, "blkkin-bench", "blkkin-bench")?);
    shell::run(command.arg("docs").arg(folder(workspace)).arg(workspace.root().join("docs/performance")))
}

/// Builds the program `name` of `package` only.
fn build(workspace: &Workspace, package: &str, name: &str) -> Result<PathBuf> {
    println!("bench: building {name} (release)");
    cargo_build::release(workspace, package, name, &["--bin", name])
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("target/bench")
}

/// Returns the named benchmarks, or all.
fn selected(names: &[&str]) -> Result<Vec<&'static Bench>> {
    if names.is_empty() || names == ["all"] {
        return Ok(BENCHES.iter().collect());
    }
    let found = names.iter().map(|name| {
        let found = BENCHES.iter().find(|bench| bench.name == *name);
        found.with_context(|| format!("no benchmark {name}: `cargo xtask bench list` lists them"))
    });
    found.collect()
}

fn measure_all(workspace: &Workspace, benches: &[&Bench], options: &Options) -> Result<()> {
    let purposes: Vec<Purpose> = benches.iter().flat_map(|bench| bench.purposes).copied().collect();
    setup::run(workspace, &purposes)?;
    let blkkin = build(workspace, "blkkin", "blkkin")?;
    let program = build(workspace, "blkkin-bench", "blkkin-bench")?;
    // Expected in the folder of the measuring program.
    if benches.iter().any(|bench| ["nbd", "daemon", "nbdkit"].contains(&bench.name)) {
        build(workspace, "blkkin-nbd", "blkkin-nbd")?;
    }
    if benches.iter().any(|bench| bench.name == "guest") {
        dist::static_release(workspace)?;
    }
    // Made by the user, so that the user can delete the files that root creates in it.
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
    // A benchmark that cannot run here does not stop the others.
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
    // Cargo sets this variable for build scripts; the measured program would search its libraries
    // there first.
    command.args(["--unset", "LD_LIBRARY_PATH"]);
    command.arg(format!("BLKKIN_ZIPKIN_JAR={}", setup::server_jar(workspace).display()));
    command.arg(format!("BLKKIN_KAFKA_JARS={}", setup::broker_jars(workspace).display()));
    command.arg(format!("BLKKIN_STATIC={}", dist::release_binary(workspace).display()));
    command.arg(program).args(["run", bench.name]);
    command.args([blkkin, folder]);
    command.args(options.quick.then_some("--quick"));
    shell::run(command.stdin(Stdio::null()))
}
