//! `matrix`: what each tool costs over every engine, operation, depth and number of jobs, on a fast and on a real disk.
//!
//! ```text
//! 30 jobs of fio × 2 disks × tools → Measured → for each disk a table a question, tools side by side
//! ```
//!
//! [`crate::peers`] has the loads that say most, each with all that was seen of it; here is where a tool is dear that was
//! not looked for. Rounds are as short as in [`crate::iops`] and only three: a cell is a median with its range, and no
//! goal hangs on it.

use std::time::Duration;

use anyhow::Result;

use crate::Setting;
use crate::fio::Length;
use crate::frame::number::{number, with_spread};
use crate::frame::{Found, Rounds, Table, Turns};
use crate::peers::session::{Run, Session};
use crate::peers::tool::Tool;
use crate::peers::{Grounds, Measured, kernelfs, measure, table, workload};

const TURNS: Turns = Turns { warm_up: 0, least: 3, most: 3, at_most: Duration::from_secs(3600) };
const LENGTH: Length = Length { run_ms: 500, ramp_ms: 100 };
const PLACES: [&str; 2] = ["Loop device over tmpfs (write + fsync: ext4 on it)", "The real disk"];

/// What is asked of a load under a tool; a table each.
struct Question {
    title: &'static str,
    answer: fn(&Measured, Tool) -> String,
}

const QUESTIONS: [Question; 5] = [
    Question {
        title: "fewer operations than untraced, %",
        answer: |load, tool| {
            let fewer = load.fewer(tool);
            with_spread(fewer.median(), fewer.spread())
        },
    },
    Question {
        title: "p99, times that of untraced",
        answer: |load, tool| {
            let p99 = |tool| load.runs(tool).iter().map(|run| run.p99).collect::<Rounds>();
            number(Rounds::ratios(&p99(tool), &p99(Tool::Untraced)).median())
        },
    },
    Question {
        title: "the tool's own CPUs, without its start",
        answer: |load, tool| median(load, tool, |run| run.cpus),
    },
    Question {
        title: "lost, % of its events",
        answer: |load, tool| {
            median(load, tool, |run| {
                let all = run.events.seen + run.events.lost;
                if all == 0 { 0.0 } else { 100.0 * run.events.lost as f64 / all as f64 }
            })
        },
    },
    Question {
        title: "written by the tool, MB",
        answer: |load, tool| median(load, tool, |run| run.bytes as f64 / 1e6),
    },
];

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let _mounted = kernelfs::mount()?;
    let grounds = Grounds::make(setting)?;
    let mut session = Session::new(setting)?;
    let peers = session.which_run(&grounds.mounted.place("trial")?);
    // Every span to a file is more than any of the others does; `peers` has it.
    let tools: Vec<Tool> = peers.running.iter().copied().filter(|tool| *tool != Tool::BlkkinSpans).collect();
    let turns = TURNS.quick(setting.extent.is_quick());
    let (mut found, mut all) = (Found::default(), Vec::new());
    for (place, loads) in PLACES.iter().zip(workload::every_fio(&grounds, LENGTH)?) {
        let mut measured = Vec::new();
        for mut load in loads {
            let one = measure(&session, &mut load, &tools, turns)?;
            println!("{}", table::line(&one));
            measured.push((load.job.name(), one));
        }
        found.tables.extend(QUESTIONS.iter().map(|question| question.table(place, &measured, &tools)));
        all.extend(measured.into_iter().map(|(_, one)| one));
    }
    found.tables.push(table::unseen(&peers));
    if !peers.absent.is_empty() {
        found.tables.push(table::absent(&peers));
    }
    found.notes = table::notes(&all, &peers);
    found.how = format!(
        "4 KiB; {} rounds of {} ms of each tool, in turns, with its defaults; medians, behind ± the range. An empty cell: the \
         tool did not get through.",
        turns.most, LENGTH.run_ms
    );
    Ok(found)
}

impl Question {
    fn table(&self, place: &str, measured: &[(String, Measured)], running: &[Tool]) -> Table {
        let tools: Vec<Tool> = running.iter().copied().filter(|tool| *tool != Tool::Untraced).collect();
        let columns = ["fio", "untraced, IOPS"].into_iter().chain(tools.iter().map(|tool| tool.name()));
        let mut table = Table::new(format!("{place}: {}", self.title), &columns.collect::<Vec<_>>());
        for (job, load) in measured {
            let cells = tools.iter().map(|tool| {
                if load.runs(*tool).is_empty() { String::new() } else { (self.answer)(load, *tool) }
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
