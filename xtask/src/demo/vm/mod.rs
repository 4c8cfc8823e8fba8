//! `demo --vm`: two virtual machines, each request from the guest's system call to the host's disk.
//!
//! ```text
//! guest:  sqlite3, cat ─→ ext4 ─→ vda                                   agent ─┐
//!                                  │ virtio                                    │ virtio-serial port
//! host:                           QEMU ─→ pwrite64 … ─→ ext4 ─→ loop0   agent ─┴→ Kafka ─→ aggregator ─→ Zipkin
//! ```
//!
//! *Out*: the share of each layer in the time of the guests' system calls, the slowest calls across both kernels, and
//! Zipkin's page of one. *Invariant*: the shares are of calls of which all requests have QEMU's operations, and the
//! number of requests without one is printed. All processes that the demo started end with it.
//!
//! *Rejected*: KVM, which not every machine has. An emulated guest is slower; its layers are the same.

mod guest;
mod layers;

use std::cmp::Reverse;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cluster::with_machine_id;
use super::output::{self, ProcessLine, print_line, thousands};
use super::services::{self, Services};
use super::{Disk, summaries, zipkin_pages};
use crate::servers::{Process, Zipkin};
use crate::setup::Kernel;
use crate::workspace::Workspace;

use guest::{Guest, KINDS, Kind};
use layers::{GuestTrace, Layers, milliseconds};

/// Time in which the host's agent reads which images are open, and bounds the clocks.
const SETTLE_TIME: Duration = Duration::from_secs(4);
/// Zipkin has probably received all spans after it has received none for this time: a request waits up to 10 s for
/// its operation.
const IDLE_TIME: Duration = Duration::from_secs(12);
/// Maximum number of traces in a query.
const TRACES_MAX: u32 = 10_000;
/// Minimum number of requests of both programs, a fifth of what they make.
const REQUESTS_MIN: u64 = 100;
/// Number of slowest calls, and lines of each.
const SLOWEST: usize = 2;
const LINES_MAX: usize = 16;
/// Maximum number of spans that fit on a page.
const SPANS_MAX: usize = 30;

/// Runs the demo. `blkkin` is a static program, which the guests run too.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    services::in_folder(workspace, "vm", |folder| run_demo(workspace, blkkin, folder))
}

fn run_demo(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<()> {
    let Traced { zipkin, excused } = trace_guests(workspace, blkkin, folder)?;
    let spans: Vec<Vec<Vec<Value>>> =
        KINDS.iter().map(|kind| zipkin.traces(kind.program, "", TRACES_MAX)).collect::<Result<_>>()?;
    let traces: Vec<_> = KINDS.iter().zip(&spans).map(|(kind, spans)| of_guest(kind, spans)).collect();
    print_shares(&traces);
    print_slowest(traces.iter().flatten());
    output::heading("look");
    let page = zipkin_pages::trace_page(&zipkin, &find_durable_call(&zipkin)?);
    print_line("  a call of sqlite3 in the guest, down to the host's disk");
    print_line(&format!("    {page}"));
    print_line("  dependencies between services");
    print_line(&format!("    {}", zipkin_pages::dependency_page(&zipkin)));
    let (requests, linked) = requests_of(&traces);
    let without = requests - linked;
    // QEMU may serve several requests with one operation, below the first of them.
    if requests < REQUESTS_MIN || without > requests / 100 + excused {
        bail!(
            "{linked} of {requests} requests have an operation of QEMU: the logs are in {}",
            folder.display()
        );
    }
    output::wait_for_interrupt();
    Ok(())
}

/// Returns the traces that begin in this guest.
fn of_guest<'a>(kind: &Kind, traces: &'a [Vec<Value>]) -> Vec<GuestTrace<'a>> {
    let machine_id = kind.machine_id();
    traces.iter().filter_map(|spans| GuestTrace::new(spans, &machine_id)).collect()
}

/// Returns the number of the guests' requests, and of those with an operation of QEMU.
fn requests_of(traces: &[Vec<GuestTrace<'_>>]) -> (u64, u64) {
    let counts = traces.iter().flatten().map(GuestTrace::requests);
    counts.fold((0, 0), |(all, linked), (more, more_linked)| (all + more, linked + more_linked))
}

/// Prints the share of each layer for each guest.
fn print_shares(traces: &[Vec<GuestTrace<'_>>]) {
    output::heading("time of the guests' system calls by layer");
    print_row("", "", ["calls", "time"].map(str::to_owned), layers::NAMES.map(str::to_owned));
    for (kind, traces) in KINDS.iter().zip(traces) {
        let mut sum = Layers::default();
        traces.iter().filter_map(GuestTrace::layers).for_each(|layers| sum += layers);
        let time: u64 = sum.times.iter().sum();
        let share = |part: u64| format!("{:.1} %", part as f64 * 100.0 / time.max(1) as f64);
        let columns = [thousands(sum.calls), format!("{:.2} s", time as f64 / 1e6)];
        print_row(kind.name, kind.program, columns, sum.times.map(share));
    }
    let (requests, linked) = requests_of(traces);
    let [requests, linked] = [requests, linked].map(thousands);
    print_line("  QEMU: from issue to completion of a guest's request, less QEMU's system calls.");
    print_line("  host kernel: these calls, less the requests of the host's disks.");
    print_line(&format!("  {linked} of {requests} requests of the programs have an operation of QEMU."));
    print_line("");
}

/// Draws the slowest calls.
fn print_slowest<'a>(traces: impl Iterator<Item = &'a GuestTrace<'a>>) {
    let mut traces: Vec<_> = traces.filter_map(|trace| Some((trace, trace.layers()?))).collect();
    traces.sort_by_key(|(trace, _)| Reverse(trace.duration()));
    output::heading("slowest calls across both kernels");
    for (trace, layers) in traces.into_iter().take(SLOWEST) {
        trace.draw(LINES_MAX).iter().for_each(|line| print_line(line));
        let parts = layers::NAMES.iter().zip(layers.times);
        let parts: Vec<String> = parts.map(|(name, time)| format!("{name} {}", milliseconds(time))).collect();
        print_line(&format!("  {}", parts.join(", ")));
        print_line("");
    }
}

fn print_row(machine: &str, program: &str, [calls, time]: [String; 2], shares: [String; 4]) {
    let [guest, qemu, host, device] = shares;
    print_line(&format!(
        "  {machine:<6}{program:<9}{calls:>6}{time:>9}{guest:>14}{qemu:>8}{host:>13}{device:>8}"
    ));
}

/// Result of a run.
pub(crate) struct Traced {
    /// Has the spans.
    pub(crate) zipkin: Zipkin,
    /// Number of records that were lost, and of endpoints that the aggregator refused because they had a choice.
    excused: u64,
}

/// Runs both guests with their workloads under agents.
pub(crate) fn trace_guests(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<Traced> {
    let kernel = Kernel::LINUX_6_12.unpacked(workspace);
    let kernel = kernel.context("no kernel for the guests: `cargo xtask setup --tests` fetches it")?;
    output::heading("what runs");
    let mut services = Services::start(workspace, blkkin, folder, &["aggregator"])?;
    let disk = Disk::make(folder)?;
    let ports = folder.join("ports");
    fs::create_dir_all(&ports).with_context(|| format!("cannot make {}", ports.display()))?;
    let mut command = with_machine_id("host", folder)?;
    command.arg(blkkin).args(["agent", "--metrics", "off", "--brokers", services.kafka.brokers()]);
    command.args(KINDS.iter().flat_map(|kind| ["--vm", kind.name])).arg("--guests").arg(&ports);
    let mut agent = Process::start("agent", &command, folder)?;
    agent.wait_for_log("tracing; ")?;
    ProcessLine { name: "agent", what: "of the host: QEMU, and what the guests send", pid: agent.pid() }
        .print();
    let mut guests = Vec::new();
    for kind in &KINDS {
        let guest = Guest::start(kind, blkkin, &kernel, (folder, disk.mount_point(), &ports))?;
        ProcessLine { name: kind.name, what: &guest.description(), pid: guest.pid() }.print();
        guests.push(guest);
    }
    print_line("  A virtual machine: an emulated CPU, Linux 6.12 of Debian, an agent in it, and");
    print_line(&format!("  a raw image on ext4 on {}.", disk.device()));
    print_line("");
    output::heading("what happens");
    guests.iter_mut().try_for_each(Guest::wait_until_ready)?;
    for kind in &KINDS {
        agent.wait_for_log(&format!("is connected: virtual machine `{}`", kind.name))?;
    }
    std::thread::sleep(SETTLE_TIME);
    print_line("  both guests have booted, and their agents are connected");
    guests.iter().try_for_each(Guest::start_workload)?;
    let mut lost = Vec::new();
    for guest in &mut guests {
        lost.push((guest.kind.name, summaries::lost(&guest.wait_for_end()?)?));
    }
    print_line("  both programs, their agents and the guests have ended");
    agent.finish()?;
    lost.push(("host", summaries::lost(&agent.log())?));
    services.wait_until_idle(IDLE_TIME)?;
    services.aggregators.iter_mut().try_for_each(|aggregator| aggregator.finish().map(drop))?;
    let refused = services.aggregators.iter().map(|aggregator| summaries::refused(&aggregator.log()));
    let refused = refused.sum::<Result<u64>>()?;
    let each: Vec<String> = lost.iter().map(|(name, lost)| format!("{name} {lost}")).collect();
    print_line(&format!("  lost records: {}; refused links: {refused}", each.join(", ")));
    print_line("");
    disk.remove()?;
    let Services { zipkin, .. } = services;
    Ok(Traced { zipkin, excused: refused + lost.iter().map(|(_, lost)| lost).sum::<u64>() })
}

/// Returns the trace id of the call of the database with the most spans that fits on a page, and of these the
/// fastest.
pub(crate) fn find_durable_call(zipkin: &Zipkin) -> Result<String> {
    let [db, _] = &KINDS;
    let traces = zipkin.traces(db.program, "fdatasync", TRACES_MAX)?;
    let linked = |spans: &&Vec<Value>| {
        let trace = GuestTrace::new(spans, &db.machine_id());
        spans.len() <= SPANS_MAX && trace.is_some_and(|trace| trace.layers().is_some())
    };
    let duration = |spans: &[Value]| GuestTrace::new(spans, &db.machine_id()).map(|trace| trace.duration());
    let most = traces.iter().filter(linked).max_by_key(|spans| (spans.len(), Reverse(duration(spans))));
    let most = most.context("no fdatasync of the guest has operations of QEMU")?;
    Ok(most[0]["traceId"].as_str().unwrap_or_default().to_owned())
}
