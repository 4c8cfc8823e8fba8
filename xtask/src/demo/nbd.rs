//! `demo --nbd`: an instrumented storage daemon, traced with its client and its system calls.
//!
//! ```text
//! fio ─ NBD ─→ blkkin-nbd ─→ pread64, pwrite64, fdatasync ─→ ext4 ─→ bio ─→ request ─→ loop device
//!   └─ eBPF ──┐  └─ LTTng-UST ──┐        └─ eBPF ──┐
//!             └─────────────────┴ blkkin run --ust --nbd ─→ Zipkin
//! ```
//!
//! *Out*: blkkin's report, a Zipkin page of one NBD request with all layers, and the number of
//! daemon spans that have a client span as parent and system calls as children. *Invariant*: all
//! processes that the demo started end with it, even if it is killed.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::output::{self, print_line, thousands};
use super::{Disk, traced};
use crate::servers::Zipkin;
use crate::workspace::Workspace;

/// Requests of fio on each connection. One in five writes, and after every 16 writes fio sends a
/// flush.
const REQUESTS: u32 = 300;
const CONNECTIONS: u32 = 2;
const BYTES: usize = 48 << 20;
/// Maximum number of spans that fit on a page.
pub(crate) const SPANS_MAX: usize = 12;
const TRACES_MAX: u32 = 2_000;

/// Runs the demo. `blkkin` is the path of the program; the daemon is in the same folder.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    let (folder, zipkin) = traced::zipkin(workspace, "nbd")?;
    print_line("  blkkin-nbd      an NBD server with tracepoints (LTTng-UST)");
    print_line("  fio             its client: reads, writes, flushes over two connections");
    output::heading("blkkin run --ust --nbd");
    let mut program = Command::new(blkkin);
    program.arg("run");
    run_workload(&folder, blkkin, &zipkin, program)?;
    let traces = zipkin.traces("blkkin-nbd", "", TRACES_MAX)?;
    let requests = traces.iter().filter(|trace| has_nbd_span(trace)).count();
    let complete = traces.iter().filter(|trace| has_client_and_server(trace) && trace.len() > 2).count();
    output::heading("look");
    print_line(&format!(
        "  {} NBD requests in Zipkin, {} of them with client, daemon and system calls",
        thousands(requests as u64),
        thousands(complete as u64)
    ));
    let trace = find_complete_request(&zipkin)?;
    traced::show_in_zipkin(zipkin, &trace, "a request that reached the disk", &folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the daemon on a file on ext4 and exports the spans to Zipkin. `program` is the prepared
/// `blkkin run`.
pub(crate) fn run_workload(folder: &Path, blkkin: &Path, zipkin: &Zipkin, program: Command) -> Result<()> {
    let server = traced::sibling_program(blkkin, "blkkin-nbd", "-p blkkin-nbd")?;
    let disk = Disk::make(folder)?;
    let volume = disk.mount_point().join("volume.img");
    traced::cold_file(&volume, BYTES)?;
    let script = folder.join("nbd.sh");
    fs::write(&script, script_of(&server, &volume, folder))
        .with_context(|| format!("cannot write {}", script.display()))?;
    let mut command = program;
    command.args(["--ust", "--nbd", "--slowest", "1", "--to"]).arg(format!("zipkin={}", zipkin.url()));
    command.arg("--").arg("sh").arg(&script).stdin(Stdio::null());
    traced::require_success(traced::run(&mut command, disk)?)
}

fn script_of(server: &Path, volume: &Path, folder: &Path) -> String {
    format!(
        "set -e\n\
         BLKKIN_UST_ROOTS=0 '{server}' '{volume}' --unix '{folder}/socket' > '{folder}/uri' &\n\
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

fn has_nbd_span(trace: &[Value]) -> bool {
    trace.iter().any(|span| span["name"].as_str().is_some_and(|name| name.starts_with("nbd ")))
}

/// Checks that the trace contains the spans of both endpoints: fio's and the daemon's.
fn has_client_and_server(trace: &[Value]) -> bool {
    let ends = trace.iter().filter(|span| span["name"].as_str().is_some_and(|name| name.starts_with("nbd ")));
    ends.count() == 2
}

/// Returns for how many µs spans last after the client had the reply: the daemon reports
/// completion after it has sent the reply.
fn time_after_reply(trace: &[Value]) -> u64 {
    let end = |span: &Value| {
        span["timestamp"].as_u64().zip(span["duration"].as_u64()).map_or(0, |(at, duration)| at + duration)
    };
    let replied = trace.iter().find(|span| span["parentId"].is_null()).map_or(0, end);
    trace.iter().map(end).max().unwrap_or(0).saturating_sub(replied)
}

/// Returns the trace id of the complete request with the most layers that fits on a page, and of
/// these the one that ended closest to its reply.
pub(crate) fn find_complete_request(zipkin: &Zipkin) -> Result<String> {
    let traces = zipkin.traces("blkkin-nbd", "nbd%20read", TRACES_MAX)?;
    let fit = traces.iter().filter(|trace| has_client_and_server(trace) && trace.len() <= SPANS_MAX);
    let most = fit.max_by_key(|trace| (trace.len(), Reverse(time_after_reply(trace))));
    let most = most.context("no NBD request in Zipkin has both endpoints")?;
    Ok(most[0]["traceId"].as_str().unwrap_or_default().to_owned())
}
