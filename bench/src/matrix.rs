//! `matrix`: the cost of each tool over every engine, operation, depth and number of jobs, on a
//! fast and on a real disk.
//!
//! ```text
//! 30 jobs of fio × 2 disks × tools → Measured → for each disk a table per metric, tools side by side
//! ```
//!
//! [`crate::peers`] has the most informative loads with all their details; the matrix finds loads
//! in which a tool is unexpectedly expensive. Rounds are as short as in [`crate::iops`] and only
//! three: a cell is a median with its range, and no goal depends on it.

use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::fio::Length;
use crate::frame::number::{number, with_spread};
use crate::frame::{BenchReport, RoundPolicy, Rounds, Table};
use crate::peers::session::{Run, Session};
use crate::peers::tool::Tool;
use crate::peers::{Measured, Targets, kernelfs, loads, measure, table};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 0, min_rounds: 3, max_rounds: 3, time_limit: Duration::from_secs(3600) };
const LENGTH: Length = Length { run_ms: 500, ramp_ms: 100 };
const PLACES: [&str; 2] = ["Loop device over tmpfs (write + fsync: ext4 on it)", "The real disk"];

/// Metric of a load under a tool, shown as a table.
struct Metric {
    title: &'static str,
    value: fn(&Measured, Tool) -> String,
}

const METRICS: [Metric; 5] = [
    Metric {
        title: "fewer operations than untraced, %",
        value: |load, tool| {
            let fewer = load.fewer(tool);
            with_spread(fewer.median(), fewer.spread())
        },
    },
    Metric {
        title: "p99, times that of untraced",
        value: |load, tool| {
            let p99 = |tool| load.runs(tool).iter().map(|run| run.p99).collect::<Rounds>();
            number(Rounds::ratios(&p99(tool), &p99(Tool::Untraced)).median())
        },
    },
    Metric {
        title: "the tool's own CPUs, without its start",
        value: |load, tool| median(load, tool, |run| run.cpus),
    },
    Metric {
        title: "lost, % of its events",
        value: |load, tool| {
            median(load, tool, |run| {
                let all = run.events.seen + run.events.lost;
                if all == 0 { 0.0 } else { 100.0 * run.events.lost as f64 / all as f64 }
            })
        },
    },
    Metric {
        title: "written by the tool, MB",
        value: |load, tool| median(load, tool, |run| run.bytes as f64 / 1e6),
    },
];

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let _mounted = kernelfs::mount()?;
    let targets = Targets::make(setting)?;
    let mut session = Session::new(setting)?;
    let peers = session.detect_tools(&targets.mounted.place("trial")?);
    // Exporting every span to a file exceeds the work of the other tools; `peers` measures it.
    let tools: Vec<Tool> =
        peers.available.iter().copied().filter(|tool| *tool != Tool::BlkkinSpans).collect();
    let policy = POLICY.quick(setting.extent.is_quick());
    let (mut report, mut all) = (BenchReport::default(), Vec::new());
    for (place, loads) in PLACES.iter().zip(loads::every_fio(&targets, LENGTH)?) {
        let mut measured = Vec::new();
        for mut load in loads {
            let measured_load = measure(&session, &mut load, &tools, policy)?;
            println!("{}", table::line(&measured_load));
            measured.push((load.job.name(), measured_load));
        }
        report.tables.extend(METRICS.iter().map(|metric| metric.table(place, &measured, &tools)));
        all.extend(measured.into_iter().map(|(_, measured_load)| measured_load));
    }
    report.tables.push(table::blind_spots_table(&peers));
    if !peers.unavailable.is_empty() {
        report.tables.push(table::unavailable_table(&peers));
    }
    report.notes = table::notes(&all, &peers);
    report.how = format!(
        "4 KiB; {} rounds of {} ms of each tool, alternating, with its defaults; medians ± the range. An empty cell: the \
         tool did not get through.",
        policy.max_rounds, LENGTH.run_ms
    );
    Ok(report)
}

impl Metric {
    fn table(&self, place: &str, measured: &[(String, Measured)], running: &[Tool]) -> Table {
        let tools: Vec<Tool> = running.iter().copied().filter(|tool| *tool != Tool::Untraced).collect();
        let columns = ["fio", "untraced, IOPS"].into_iter().chain(tools.iter().map(|tool| tool.name()));
        let mut table = Table::new(format!("{place}: {}", self.title), &columns.collect::<Vec<_>>());
        for (job, load) in measured {
            let cells = tools.iter().map(|tool| {
                if load.runs(*tool).is_empty() { String::new() } else { (self.value)(load, *tool) }
            });
            let untraced = number(load.ops(Tool::Untraced).median());
            table.row([job.clone(), untraced].into_iter().chain(cells));
        }
        table
    }
}

fn median(load: &Measured, tool: Tool, of: fn(&Run) -> f64) -> String {
    number(load.runs(tool).iter().map(of).collect::<Rounds>().median())
}
