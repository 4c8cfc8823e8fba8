//! `peers`: cost of tracing in comparison with other tools, each doing the most similar work.
//!
//! ```text
//! workload × tool → session (start, wait until it traces, load, stop) → Run → table, plot
//! ```
//!
//! *In*: the tools that run here (the report lists others with their error), and the workloads.
//! *Out*: a table per workload: operations per second, p99, resource usage of the tool, events,
//! losses and output size. Every tool has its defaults; no buffers are tuned, blkkin's neither.
//!
//! *Equal work*: the output per event is left as it is: strace's text, blktrace's binary, blkkin's
//! report and, in another run, its spans. A tool that sees one layer does less than blkkin;
//! [`tool`] lists what each does not see.
//!
//! The tools alternate, and the order rotates each round. [`crate::iops`] has more rounds of blkkin
//! alone, [`crate::matrix`] every load of fio with fewer.

mod fio_load;
pub(crate) mod kernelfs;
pub(crate) mod loads;
pub(crate) mod postgres;
pub(crate) mod session;
pub(crate) mod sqlite;
pub(crate) mod table;
pub(crate) mod tool;
pub(crate) mod tool_output;
mod tool_process;
pub(crate) mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::disk::{Looped, Mounted, RealFile};
use crate::frame::{BenchReport, RoundPolicy};
pub(crate) use fio_load::Fio;
use session::{Run, Session};
use tool::Tool;
use workload::Workload;

/// Number of rounds.
const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 0, min_rounds: 5, max_rounds: 5, time_limit: Duration::from_secs(3600) };

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let _mounted = kernelfs::mount()?;
    let targets = Targets::make(setting)?;
    let mut session = Session::new(setting)?;
    let peers = session.detect_tools(&targets.mounted.place("trial")?);
    let mut measured = Vec::new();
    let policy = POLICY.quick(setting.extent.is_quick());
    for mut workload in loads::usual(&targets, setting.extent)? {
        let runs = measure(&session, workload.as_mut(), &peers.available, policy)?;
        println!("{}", table::line(&runs));
        measured.push(runs);
    }
    Ok(table::build_report(&measured, &peers))
}

/// Disks of the workloads, removed on drop.
pub(crate) struct Targets {
    pub(crate) raw: Looped,
    pub(crate) mounted: Mounted,
    pub(crate) real: RealFile,
}

impl Targets {
    pub(crate) fn make(setting: &Setting) -> Result<Targets> {
        Ok(Targets {
            raw: Looped::make("raw")?,
            mounted: Mounted::make("ext4")?,
            real: RealFile::make(&setting.folder)?,
        })
    }
}

/// Results of one workload under each tool.
pub(crate) struct Measured {
    pub(crate) workload: String,
    /// Label in plots.
    pub(crate) short: String,
    pub(crate) unit: &'static str,
    pub(crate) goal: Option<workload::Goal>,
    pub(crate) tools: Vec<(Tool, Vec<Run>)>,
    /// Tools that failed with this workload, with the reason.
    pub(crate) failed: BTreeMap<Tool, String>,
}

/// Measures one workload under each of `tools`, alternating.
pub(crate) fn measure(
    session: &Session,
    workload: &mut dyn Workload,
    tools: &[Tool],
    policy: RoundPolicy,
) -> Result<Measured> {
    // Warms the caches. A workload that does not run at all is an error, not a property of a tool.
    session.run(Tool::Untraced, workload)?;
    let mut failed = BTreeMap::new();
    let measure_tool = |tool| {
        if failed.contains_key(&tool) {
            return Ok(None);
        }
        let run = session.run(tool, workload);
        Ok(run.map_err(|error| failed.insert(tool, format!("{error:#}"))).ok())
    };
    let runs = policy.run(tools, measure_tool, |_| true)?;
    let each = tools.iter().zip(runs).map(|(tool, runs)| (*tool, runs.into_iter().flatten().collect()));
    Ok(Measured {
        tools: each.filter(|(tool, _)| !failed.contains_key(tool)).collect(),
        workload: workload.name(),
        short: workload.short(),
        unit: workload.unit(),
        goal: workload.goal(),
        failed,
    })
}
