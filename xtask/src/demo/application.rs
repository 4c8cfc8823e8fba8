//! `demo --application`: an application that exports its own spans, and whose traces gain the
//! layers below them.
//!
//! ```text
//! shop ─ POST /orders ─ find item ──→ pread64 ──→ ext4 ─→ bio ─→ request ─→ loop device
//!   │                 └ save order ─→ pwrite64, fdatasync ─→ ext4, its journal ─→ bio ─→ request
//!   └─ its own spans, exported ────┐        └─ eBPF ─ blkkin run ─┐
//!                                 └──────────────────────────────┴─→ Zipkin
//! ```
//!
//! *Out*: blkkin's report, a Zipkin page of one order with the spans of both, and the number of
//! orders that have both. *Invariant*: all processes that the demo started end with it, even if it
//! is killed.

use std::cmp::Reverse;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::output::{self, print_line, thousands};
use super::{Disk, traced};
use crate::servers::Zipkin;
use crate::workspace::Workspace;

const ORDERS: u32 = 300;
/// Size of the stock file, larger than the part that is read, so that each order finds its item on
/// the disk.
const STOCK_BYTES: usize = 48 << 20;
/// Maximum number of spans that fit on a page.
pub(crate) const SPANS_MAX: usize = 26;
const TRACES_MAX: u32 = 2_000;
/// URL-encoded name of the order's span, and names of its steps.
const ORDER: &str = "post%20/orders";
const STEPS: [&str; 2] = ["find item", "save order"];

/// Runs the demo. `blkkin` is the path of the program; the application is in the same folder.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    let (folder, zipkin) = traced::zipkin(workspace, "application")?;
    print_line("  shop            an application that exports its own spans");
    output::heading("blkkin run");
    let mut program = Command::new(blkkin);
    program.arg("run");
    run_workload(&folder, blkkin, &zipkin, program)?;
    let traces = zipkin.traces("shop", ORDER, TRACES_MAX)?;
    let complete = traces.iter().filter(|trace| covers_both_steps(trace)).count();
    output::heading("look");
    print_line(&format!(
        "  {} orders in Zipkin, {} of them with disk requests in both steps",
        thousands(traces.len() as u64),
        thousands(complete as u64)
    ));
    if complete < traces.len() {
        print_line("  (the others hit the page cache, or ran before the context was discovered)");
    }
    let trace = find_complete_order(&zipkin)?;
    traced::show_in_zipkin(zipkin, &trace, "an order", &folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the application on files on ext4. Its spans and blkkin's go to the same Zipkin. `program`
/// is the prepared `blkkin run`.
pub(crate) fn run_workload(folder: &Path, blkkin: &Path, zipkin: &Zipkin, program: Command) -> Result<()> {
    let shop = traced::sibling_program(blkkin, "examples/shop", "-p blkkin-ust --example shop")?;
    let disk = Disk::make(folder)?;
    let [stock, orders] = ["stock", "orders"].map(|name| disk.mount_point().join(name));
    traced::cold_file(&stock, STOCK_BYTES)?;
    let mut command = program;
    command.args(["--slowest", "1", "--to"]).arg(format!("zipkin={}", zipkin.url()));
    let address = zipkin.url();
    command.arg("--").arg(&shop).args([&stock, &orders]);
    command.arg(address.trim_start_matches("http://")).arg(ORDERS.to_string()).stdin(Stdio::null());
    traced::require_success(traced::run(&mut command, disk)?)
}

/// Checks that a block request is a descendant of each of the order's steps.
fn covers_both_steps(trace: &[Value]) -> bool {
    let is_request = |span: &&Value| span["name"].as_str().is_some_and(|name| name.starts_with("request "));
    STEPS.iter().all(|name| {
        let step = trace.iter().find(|span| span["name"] == *name);
        step.is_some_and(|step| {
            trace.iter().filter(is_request).any(|request| is_descendant(trace, step, request))
        })
    })
}

fn is_descendant(trace: &[Value], ancestor: &Value, span: &Value) -> bool {
    let parent = |span: &&Value| trace.iter().find(|one| one["id"] == span["parentId"]);
    // Bounded by the number of spans, so that a cycle ends.
    std::iter::successors(Some(span), parent).take(trace.len()).any(|span| span["parentId"] == ancestor["id"])
}

/// Returns the trace id of the best complete order: one that fits on a page, then one that waited
/// for a journal commit, then the fastest.
pub(crate) fn find_complete_order(zipkin: &Zipkin) -> Result<String> {
    let traces = zipkin.traces("shop", ORDER, TRACES_MAX)?;
    let complete = traces.iter().filter(|trace| covers_both_steps(trace));
    let commits = |trace: &[Value]| trace.iter().any(|span| span["name"] == "journal commit");
    let longest_span = |trace: &[Value]| trace.iter().filter_map(|span| span["duration"].as_u64()).max();
    // If none fits, which depends on the disk, the shortest one.
    let best = complete.max_by_key(|trace| {
        (Reverse(trace.len().max(SPANS_MAX)), commits(trace), Reverse(longest_span(trace)))
    });
    let best = best.context("no order in Zipkin has disk requests in both steps")?;
    Ok(best[0]["traceId"].as_str().unwrap_or_default().to_owned())
}
