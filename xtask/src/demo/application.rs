//! `demo --application`: a service that traces itself, whose own trace gains the layers below it.
//!
//! ```text
//! shop ─ POST /orders ─ find item ──→ pread64 ──→ ext4 ─→ bio ─→ request ─→ loop device
//!   │                 └ save order ─→ pwrite64, fdatasync ─→ ext4, its journal ─→ bio ─→ request
//!   └─ its own spans, by itself ──┐        └─ eBPF ─ blkkin run ─┐
//!                                 └──────────────────────────────┴─→ Zipkin
//! ```
//!
//! *Out*: blkkin's report, a page of Zipkin for one order with both halves, and how many orders have both. *Invariant*: whatever ends it, all
//! that it started ends with it.

use std::cmp::Reverse;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::story::{self, say, thousands};
use super::{Disk, traced};
use crate::servers::Zipkin;
use crate::workspace::Workspace;

const ORDERS: u32 = 300;
/// More than is read: each order finds its item on the disk.
const STOCK_BYTES: usize = 48 << 20;
/// Of these fits a page.
pub(crate) const SPANS_MAX: usize = 26;
const TRACES_MAX: u32 = 2_000;
/// Its name, as Zipkin is asked for it, and those of its steps.
const ORDER: &str = "post%20/orders";
const STEPS: [&str; 2] = ["find item", "save order"];

/// The whole of it. `blkkin` is the program; the service lies beside it.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    let (folder, zipkin) = traced::zipkin(workspace, "application")?;
    say("  shop            a service that exports its own spans to it");
    story::heading("blkkin run");
    let mut program = Command::new(blkkin);
    program.arg("run");
    play(&folder, blkkin, &zipkin, program)?;
    let seen = zipkin.traces("shop", ORDER, TRACES_MAX)?;
    let whole = seen.iter().filter(|trace| has_both_halves(trace)).count();
    story::heading("look");
    say(&format!(
        "  {} orders in Zipkin, {} of them down to the disk in both of their steps",
        thousands(seen.len() as u64),
        thousands(whole as u64)
    ));
    if whole < seen.len() {
        say("  (others found their item in memory, or came before the service was looked at)");
    }
    let trace = a_whole_order(&zipkin)?;
    traced::show(zipkin, &trace, "one of them", &folder)?;
    Ok(ExitCode::SUCCESS)
}

/// The service at work on files on ext4; its spans and blkkin's go to the same Zipkin. `program` is `blkkin run`, as it is to be started.
pub(crate) fn play(folder: &Path, blkkin: &Path, zipkin: &Zipkin, program: Command) -> Result<()> {
    let shop = traced::beside(blkkin, "examples/shop", "-p blkkin-ust --example shop")?;
    let disk = Disk::make(folder)?;
    let [stock, orders] = ["stock", "orders"].map(|name| disk.mount_point().join(name));
    traced::cold_file(&stock, STOCK_BYTES)?;
    let mut command = program;
    command.args(["--slowest", "1", "--to"]).arg(format!("zipkin={}", zipkin.url()));
    let address = zipkin.url();
    command.arg("--").arg(&shop).args([&stock, &orders]);
    command.arg(address.trim_start_matches("http://")).arg(ORDERS.to_string()).stdin(Stdio::null());
    traced::succeeded(traced::run(&mut command, disk)?)
}

/// A request of the disk's below each of the order's steps.
fn has_both_halves(trace: &[Value]) -> bool {
    let is_request = |span: &&Value| span["name"].as_str().is_some_and(|name| name.starts_with("request "));
    STEPS.iter().all(|name| {
        let step = trace.iter().find(|span| span["name"] == *name);
        step.is_some_and(|step| trace.iter().filter(is_request).any(|request| is_below(trace, step, request)))
    })
}

fn is_below(trace: &[Value], ancestor: &Value, span: &Value) -> bool {
    let parent = |span: &&Value| trace.iter().find(|one| one["id"] == span["parentId"]);
    // No trace is deeper.
    std::iter::successors(Some(span), parent).take(trace.len()).any(|span| span["parentId"] == ancestor["id"])
}

/// The id of an order's trace that has both halves, and of those that fit a page, if any does, the quickest; one that waited for the journal
/// before others.
pub(crate) fn a_whole_order(zipkin: &Zipkin) -> Result<String> {
    let traces = zipkin.traces("shop", ORDER, TRACES_MAX)?;
    let whole = traces.iter().filter(|trace| has_both_halves(trace));
    let commits = |trace: &[Value]| trace.iter().any(|span| span["name"] == "journal commit");
    let took = |trace: &[Value]| trace.iter().filter_map(|span| span["duration"].as_u64()).max();
    // Where none fits a page, which is as the disk makes it, the one that is the least too long.
    let best =
        whole.max_by_key(|trace| (Reverse(trace.len().max(SPANS_MAX)), commits(trace), Reverse(took(trace))));
    let best = best.context("no order has come to Zipkin with what the disk did for it")?;
    Ok(best[0]["traceId"].as_str().unwrap_or_default().to_owned())
}
