//! `sampling`: what head sampling saves, without and with rules that decide about an operation when it ends.
//!
//! ```text
//! 4 loads of fio × tools → Measured → for each load a table, tools side by side
//! ```
//!
//! *Equal work*: `blkkin run` records each call, bio and request; with `--sample 1/1024` next to none of them, so
//! what is left is the cost of the probes; with `--keep` the records of each operation wait in the kernel until it
//! ends, and are dropped. bpftrace keeps one histogram of the device.

use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::disk::DiskTarget;
use crate::fio::{Job, Length, Op};
use crate::frame::figure::{Figure, Goal};
use crate::frame::{BenchReport, RoundPolicy};
use crate::peers::session::Session;
use crate::peers::tool::Tool;
use crate::peers::{Fio, Measured, Targets, kernelfs, measure, table};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 0, min_rounds: 11, max_rounds: 11, time_limit: Duration::from_secs(1200) };
const LENGTH: Length = Length { run_ms: 1000, ramp_ms: 200 };
const TOOLS: [Tool; 5] =
    [Tool::Untraced, Tool::BlkkinSampled, Tool::BlkkinKept, Tool::BpftraceHistogram, Tool::Blkkin];
/// Goals in per cent of the operations, on a fast disk and on a real one.
const FAST_MAX: f64 = 5.0;
const REAL_MAX: f64 = 1.0;

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let _mounted = kernelfs::mount()?;
    let targets = Targets::make(setting)?;
    let session = Session::new(setting)?;
    let policy = POLICY.quick(setting.extent.is_quick());
    let psync = |jobs| Job { engine: "psync", op: Op::RandomRead, jobs, depth: 1 };
    let uring = Job { engine: "io_uring", op: Op::RandomRead, jobs: 1, depth: 32 };
    let (raw, real): (DiskTarget, DiskTarget) = (targets.raw.place()?, targets.real.place());
    let loads = [
        (psync(2), &raw, FAST_MAX),
        (uring, &raw, FAST_MAX),
        (psync(1), &real, REAL_MAX),
        (uring, &real, REAL_MAX),
    ];
    let mut report = BenchReport::default();
    for (job, place, goal) in loads {
        let mut load = Fio { job, place: place.clone(), length: LENGTH };
        let measured = measure(&session, &mut load, &TOOLS, policy)?;
        println!("{}", table::line(&measured));
        report.figures.extend(figures(&measured, goal));
        report.tables.push(table::table(&measured));
    }
    report.how = format!(
        "4 KiB; {} rounds of {} ms of each tool, alternating; medians. *Fewer* is against the untraced run of the same round. \
         bpftrace's script is biolatency's: one histogram of the device, from issue to completion.",
        policy.max_rounds, LENGTH.run_ms
    );
    Ok(report)
}

fn figures(measured: &Measured, goal: f64) -> Vec<Figure> {
    let of = |tool: Tool| {
        let name = format!("{}: fewer with {}", measured.workload, tool.name());
        Figure::of(name, &measured.fewer(tool), "%")
    };
    vec![
        of(Tool::BlkkinSampled),
        of(Tool::BlkkinKept).goal(Goal::AtMost(goal)),
        of(Tool::BpftraceHistogram),
        of(Tool::Blkkin),
    ]
}
