//! `peers`: what tracing costs beside the tools that a person would otherwise pick, each doing the nearest equal work.
//!
//! ```text
//! workload × tool → session (start, wait until it traces, load, stop) → Run → table, plot
//! ```
//!
//! *In*: the tools that run here (a tool that does not is listed with what it said), and the workloads. *Out*: for each
//! workload a table: operations a second, p99, what the tool itself took, what it saw, lost and wrote. Every tool has
//! its defaults; buffers are not tuned for any, blkkin's neither.
//!
//! *Equal work*: what a tool writes for each event is left as it is: strace's text, blktrace's binary, blkkin's report
//! and, once more, its spans. Who sees one layer only does less than blkkin; [`tool`] says what each does not see.
//!
//! The tools run in turns, the order changed each round; [`crate::iops`] has more rounds of blkkin alone, [`crate::matrix`] every load
//! of fio with fewer.

mod fio_load;
pub(crate) mod kernelfs;
pub(crate) mod postgres;
mod running;
pub(crate) mod said;
pub(crate) mod session;
pub(crate) mod sqlite;
pub(crate) mod table;
pub(crate) mod tool;
pub(crate) mod tree;
pub(crate) mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::disk::{Looped, Mounted, RealFile};
use crate::frame::{Found, Turns};
pub(crate) use fio_load::Fio;
use session::{Run, Session};
use tool::Tool;
use workload::Workload;

/// How often each runs.
const TURNS: Turns = Turns { warm_up: 0, least: 5, most: 5, at_most: Duration::from_secs(3600) };

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let _mounted = kernelfs::mount()?;
    let grounds = Grounds::make(setting)?;
    let mut session = Session::new(setting)?;
    let peers = session.which_run(&grounds.mounted.place("trial")?);
    let mut measured = Vec::new();
    let turns = TURNS.quick(setting.extent.is_quick());
    for mut workload in workload::usual(&grounds, setting.extent)? {
        let runs = measure(&session, workload.as_mut(), &peers.running, turns)?;
        println!("{}", table::line(&runs));
        measured.push(runs);
    }
    Ok(table::found(&measured, &peers))
}

/// What the workloads work on; gone when dropped.
pub(crate) struct Grounds {
    pub(crate) raw: Looped,
    pub(crate) mounted: Mounted,
    pub(crate) real: RealFile,
}

impl Grounds {
    pub(crate) fn make(setting: &Setting) -> Result<Grounds> {
        Ok(Grounds {
            raw: Looped::make("raw")?,
            mounted: Mounted::make("ext4")?,
            real: RealFile::make(&setting.folder)?,
        })
    }
}

/// One workload under each tool.
pub(crate) struct Measured {
    pub(crate) workload: String,
    /// For a plot.
    pub(crate) short: String,
    pub(crate) unit: &'static str,
    pub(crate) goal: Option<workload::Goal>,
    pub(crate) tools: Vec<(Tool, Vec<Run>)>,
    /// Tools that did not get through this workload, and why.
    pub(crate) broken: BTreeMap<Tool, String>,
}

/// One workload under each of `tools`, in turns.
pub(crate) fn measure(
    session: &Session,
    workload: &mut dyn Workload,
    tools: &[Tool],
    turns: Turns,
) -> Result<Measured> {
    // Warms the caches; and a workload that does not run at all is an error, not a property of tools.
    session.run(Tool::Untraced, workload)?;
    let mut broken = BTreeMap::new();
    let turn = |tool| {
        if broken.contains_key(&tool) {
            return Ok(None);
        }
        let run = session.run(tool, workload);
        Ok(run.map_err(|error| broken.insert(tool, format!("{error:#}"))).ok())
    };
    let runs = turns.run(tools, turn, |_| true)?;
    let each = tools.iter().zip(runs).map(|(tool, runs)| (*tool, runs.into_iter().flatten().collect()));
    Ok(Measured {
        tools: each.filter(|(tool, _)| !broken.contains_key(tool)).collect(),
        workload: workload.name(),
        short: workload.short(),
        unit: workload.unit(),
        goal: workload.goal(),
        broken,
    })
}
