//! `demo --vm`: two virtual machines, each request from the guest's system call to the host's disk.
//!
//! ```text
//! guest:  sqlite3, cat ─→ ext4 ─→ vda                       agent ─┐
//!                                  │ virtio                        │ virtio-serial port
//! host:                           QEMU ─→ pwrite64 … ─→ ext4 ─→ loop0 ─→ blkkin trace --guests ─→ report, Zipkin
//! ```
//!
//! *Out*: blkkin's report on the guests: the share of each layer in the time of their calls and the slowest calls across both
//! kernels; and Zipkin's page of one. *Invariant*: all processes that the demo started end with it.
//!
//! *Rejected*: KVM, which not every machine has. An emulated guest is slower; its layers are the same.

mod guest;

use std::cmp::Reverse;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::output::{self, ProcessLine, print_line};
use super::{Disk, services, summaries, zipkin_pages};
use crate::servers::{Process, Zipkin};
use crate::setup::Kernel;
use crate::workspace::Workspace;

use guest::{Guest, KINDS};

/// Time in which blkkin reads which images are open, and bounds the clocks.
const SETTLE_TIME: Duration = Duration::from_secs(4);
/// Maximum number of traces in a query.
const TRACES_MAX: u32 = 10_000;
/// Minimum number of requests of both programs, a fifth of what they make.
const REQUESTS_MIN: u64 = 100;
/// Maximum number of spans that fit on a page.
const SPANS_MAX: usize = 30;

/// Runs the demo. `blkkin` is a static program, which the guests run too.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    services::in_folder(workspace, "vm", |folder| run_demo(workspace, blkkin, folder))
}

fn run_demo(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<()> {
    let Traced { zipkin, text, report, lost } = trace_guests(workspace, blkkin, folder)?;
    output::heading("blkkin trace --guests");
    text.lines().for_each(print_line);
    output::heading("look");
    let page = zipkin_pages::trace_page(&zipkin, &find_durable_call(&zipkin)?);
    print_line("  a call of sqlite3 in the guest, down to the host's disk");
    print_line(&format!("    {page}"));
    print_line("  dependencies between services");
    print_line(&format!("    {}", zipkin_pages::dependency_page(&zipkin)));
    let number = |name: &str| report["guests"][name].as_u64().unwrap_or_default();
    let (requests, linked) = (number("requests"), number("requests_linked"));
    let excused = number("endpoints_refused") + report["losses"]["total"].as_u64().unwrap_or_default() + lost;
    // QEMU may serve several requests with one operation, below the first of them.
    if requests < REQUESTS_MIN || requests - linked > requests / 100 + excused {
        bail!(
            "{linked} of {requests} requests have an operation of QEMU: the logs are in {}",
            folder.display()
        );
    }
    output::wait_for_interrupt();
    Ok(())
}

/// Result of a run.
pub(crate) struct Traced {
    /// Has the spans.
    pub(crate) zipkin: Zipkin,
    /// Report as text and as JSON.
    text: String,
    report: Value,
    /// Number of records that the guests lost.
    lost: u64,
}

/// Runs both guests with their workloads, and traces them.
pub(crate) fn trace_guests(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<Traced> {
    let kernel = Kernel::LINUX_6_12.unpacked(workspace);
    let kernel = kernel.context("no kernel for the guests: `cargo xtask setup --tests` fetches it")?;
    output::heading("what runs");
    let mut zipkin = Zipkin::start(workspace, folder)?;
    zipkin.wait()?;
    ProcessLine { name: "zipkin", what: &zipkin.url(), pid: zipkin.pid() }.print();
    let disk = Disk::make(folder)?;
    let ports = folder.join("ports");
    fs::create_dir_all(&ports).with_context(|| format!("cannot make {}", ports.display()))?;
    let mut guests = Vec::new();
    for kind in &KINDS {
        let guest = Guest::start(kind, blkkin, &kernel, (folder, disk.mount_point(), &ports))?;
        ProcessLine { name: kind.name, what: &guest.description(), pid: guest.pid() }.print();
        guests.push(guest);
    }
    print_line("  A virtual machine: an emulated CPU, Linux 6.12 of Debian, an agent in it, and");
    print_line(&format!("  a raw image on ext4 on {}.", disk.device()));
    let [text, json] = ["report.txt", "report.json"].map(|name| folder.join(name));
    let mut trace = Command::new("sh");
    // The report and the messages are in files of their own.
    trace.args(["-c", "exec \"$0\" \"$@\" > \"$REPORT\""]).arg(blkkin).env("REPORT", &text);
    trace.arg("trace").args(KINDS.iter().flat_map(|kind| ["--vm", kind.name])).arg("--guests").arg(&ports);
    trace.args(["--show", "guests", "--slowest", "2", "--to"]).arg(format!("zipkin={}", zipkin.url()));
    trace.arg(format!("--json={}", json.display())).env("COLUMNS", "80");
    let mut trace = Process::start("trace", &trace, folder)?;
    ProcessLine { name: "blkkin", what: "trace --vm db --vm web --guests FOLDER", pid: trace.pid() }.print();
    print_line("");
    output::heading("what happens");
    guests.iter_mut().try_for_each(Guest::wait_until_ready)?;
    for kind in &KINDS {
        trace.wait_for_log(&format!("is connected: virtual machine `{}`", kind.name))?;
    }
    std::thread::sleep(SETTLE_TIME);
    print_line("  both guests have booted, and their agents are connected");
    guests.iter().try_for_each(Guest::start_workload)?;
    let mut lost = 0;
    for guest in &mut guests {
        lost += summaries::lost(&guest.wait_for_end()?)?;
    }
    print_line("  both programs, their agents and the guests have ended");
    print_line("");
    let status = trace.finish()?;
    if !status.success() {
        bail!("blkkin trace failed ({status}): {}", trace.log());
    }
    disk.remove()?;
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let report = serde_json::from_str(&read(&json)?).context("the report is no JSON")?;
    Ok(Traced { zipkin, text: read(&text)?, report, lost })
}

/// Returns the trace id of the call of the database with the most spans that fits on a page, and of these the
/// fastest.
pub(crate) fn find_durable_call(zipkin: &Zipkin) -> Result<String> {
    let [db, _] = &KINDS;
    let traces = zipkin.traces(db.program, "fdatasync", TRACES_MAX)?;
    let is_qemus = |span: &Value| {
        span["localEndpoint"]["serviceName"].as_str().is_some_and(|name| name.starts_with("qemu"))
    };
    let linked = |spans: &&Vec<Value>| spans.len() <= SPANS_MAX && spans.iter().any(is_qemus);
    let duration = |spans: &[Value]| spans.iter().map(|span| span["duration"].as_u64()).max();
    let most = traces.iter().filter(linked).max_by_key(|spans| (spans.len(), Reverse(duration(spans))));
    let most = most.context("no fdatasync of the guest has operations of QEMU")?;
    Ok(most[0]["traceId"].as_str().unwrap_or_default().to_owned())
}
