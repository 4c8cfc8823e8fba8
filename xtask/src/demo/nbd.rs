//! `demo --nbd`: a storage daemon that says what it does, traced with who asked it and what the kernel does for it.
//!
//! ```text
//! fio ─ NBD ─→ blkkin-nbd ─→ pread64, pwrite64, fdatasync ─→ ext4 ─→ bio ─→ request ─→ loop device
//!   └─ eBPF ──┐  └─ LTTng-UST ──┐        └─ eBPF ──┐
//!             └─────────────────┴ blkkin run --ust --nbd ─→ Zipkin
//! ```
//!
//! *Out*: blkkin's report, a page of Zipkin for one NBD request with all its layers, and how many of the daemon's operations have
//! their client's above them and their calls below. *Invariant*: whatever ends it, all that it started ends with it.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::story::{self, say, thousands};
use super::{Disk, traced};
use crate::servers::Zipkin;
use crate::workspace::Workspace;

/// Requests of fio's, over each of as many connections. One in five writes, and after every 16 writes it asks for a flush.
const REQUESTS: u32 = 300;
const CONNECTIONS: u32 = 2;
const BYTES: usize = 48 << 20;
/// Of these fits a page.
pub(crate) const SPANS_MAX: usize = 12;
const TRACES_MAX: u32 = 2_000;

/// The whole of it. `blkkin` is the program; the daemon lies beside it.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    let (folder, zipkin) = traced::zipkin(workspace, "nbd")?;
    say("  blkkin-nbd      an NBD server that says what it does (LTTng-UST)");
    say("  fio             its client: reads, writes, flushes over two connections");
    story::heading("blkkin run --ust --nbd");
    let mut program = Command::new(blkkin);
    program.arg("run");
    play(&folder, blkkin, &zipkin, program)?;
    let seen = zipkin.traces("blkkin-nbd", "", TRACES_MAX)?;
    let operations = seen.iter().filter(|trace| is_an_operation(trace)).count();
    let whole = seen.iter().filter(|trace| is_asked_and_answered(trace) && trace.len() > 2).count();
    story::heading("look");
    say(&format!(
        "  {} NBD requests in Zipkin, {} of them from who asked to the calls that they were made of",
        thousands(operations as u64),
        thousands(whole as u64)
    ));
    let trace = a_whole_request(&zipkin)?;
    traced::show(zipkin, &trace, "one that reached the disk", &folder)?;
    Ok(ExitCode::SUCCESS)
}

/// The daemon at work on a file on ext4, spans to Zipkin. `program` is `blkkin run`, as it is to be started.
pub(crate) fn play(folder: &Path, blkkin: &Path, zipkin: &Zipkin, program: Command) -> Result<()> {
    let server = traced::beside(blkkin, "blkkin-nbd", "-p blkkin-nbd")?;
    let disk = Disk::make(folder)?;
    let volume = disk.mount_point().join("volume.img");
    traced::cold_file(&volume, BYTES)?;
    let script = folder.join("nbd.sh");
    fs::write(&script, script_of(&server, &volume, folder))
        .with_context(|| format!("cannot write {}", script.display()))?;
    let mut command = program;
    command.args(["--ust", "--nbd", "--slowest", "1", "--to"]).arg(format!("zipkin={}", zipkin.url()));
    command.arg("--").arg("sh").arg(&script).stdin(Stdio::null());
    traced::succeeded(traced::run(&mut command, disk)?)
}

fn script_of(server: &Path, volume: &Path, folder: &Path) -> String {
    format!(
        "set -e\n\
         '{server}' '{volume}' --unix '{folder}/socket' > '{folder}/uri' &\n\
         until [ -s '{folder}/uri' ]; do sleep 0.02; done\n\
         fio --name=demo --ioengine=nbd --uri=\"$(head -n 1 '{folder}/uri')\" --rw=randrw --rwmixread=80 --fsync=16 --bs=4k \
         --iodepth=4 --numjobs={CONNECTIONS} --thread --size={BYTES} --number_ios={REQUESTS} --output='{folder}/fio.out'\n\
         kill $!\n\
         wait $! || true\n",
        volume = volume.display(),
        server = server.display(),
        folder = folder.display()
    )
}

fn is_an_operation(trace: &[Value]) -> bool {
    trace.iter().any(|span| span["name"].as_str().is_some_and(|name| name.starts_with("nbd ")))
}

/// Both ends of a request: fio's and the daemon's.
fn is_asked_and_answered(trace: &[Value]) -> bool {
    let ends = trace.iter().filter(|span| span["name"].as_str().is_some_and(|name| name.starts_with("nbd ")));
    ends.count() == 2
}

/// µs for which something of a request went on when its client had the answer: the daemon says that it is done after it has sent it.
fn overhang(trace: &[Value]) -> u64 {
    let end = |span: &Value| {
        span["timestamp"].as_u64().zip(span["duration"].as_u64()).map_or(0, |(at, took)| at + took)
    };
    let asked = trace.iter().find(|span| span["parentId"].is_null()).map_or(0, end);
    trace.iter().map(end).max().unwrap_or(0).saturating_sub(asked)
}

/// The id of an NBD request's trace that has the most layers, of those that fit a page; of these one that ended as it was answered.
pub(crate) fn a_whole_request(zipkin: &Zipkin) -> Result<String> {
    let traces = zipkin.traces("blkkin-nbd", "nbd%20read", TRACES_MAX)?;
    let fit = traces.iter().filter(|trace| is_asked_and_answered(trace) && trace.len() <= SPANS_MAX);
    let most = fit.max_by_key(|trace| (trace.len(), Reverse(overhang(trace))));
    let most = most.context("no NBD request has come to Zipkin from both of its ends")?;
    Ok(most[0]["traceId"].as_str().unwrap_or_default().to_owned())
}
