//! Results of the comparison as tables, figures and plots.

use super::Measured;
use super::session::{AvailableTools, Run};
use super::tool::Tool;
use super::workload;
use crate::frame::number::{bytes, count, number, with_spread};
use crate::frame::outcome::Series;
use crate::frame::{BenchReport, Figure, Goal, Plot, Rounds, Table};

/// Goals: maximum loss of operations in per cent.
const DISK_MAX: f64 = 1.0;
const FAST_MAX: f64 = 10.0;
/// Minimum rate of a fast workload, in untraced operations per second.
const FAST: f64 = 100_000.0;

/// Maximum number of groups of bars in a plot.
const PLOT_GROUPS: usize = 8;

const COLUMNS: [&str; 9] =
    ["tool", "a second", "fewer, %", "p99, µs", "own CPUs", "MiB", "events", "lost", "written"];

impl Measured {
    pub(crate) fn runs(&self, tool: Tool) -> &[Run] {
        self.tools.iter().find(|(found, _)| *found == tool).map_or(&[], |(_, runs)| runs)
    }

    pub(crate) fn ops(&self, tool: Tool) -> Rounds {
        self.runs(tool).iter().map(|run| run.ops).collect()
    }

    /// Returns the loss of operations in per cent of the untraced run in the same round.
    pub(crate) fn fewer(&self, tool: Tool) -> Rounds {
        Rounds::ratios(&self.ops(tool), &self.ops(Tool::Untraced)).map(|ratio| 100.0 * (1.0 - ratio))
    }

    /// Makes blkkin's figure with the workload's goal.
    pub(crate) fn figure(&self) -> Figure {
        let name = format!("{}: fewer with blkkin", self.workload);
        let figure = Figure::of(name, &self.fewer(Tool::Blkkin), "%");
        let untraced = self.ops(Tool::Untraced).median();
        match self.goal {
            Some(workload::Goal::Disk) => figure.goal(Goal::AtMost(DISK_MAX)),
            Some(workload::Goal::Fast) if untraced > FAST => figure.goal(Goal::AtMost(FAST_MAX)),
            _ => figure,
        }
    }

    /// Lists tools that cost less than blkkin by more than both spreads.
    fn cheaper_tools(&self) -> Vec<&'static str> {
        let blkkin = self.fewer(Tool::Blkkin);
        let peers = self.tools.iter().map(|(tool, _)| *tool).filter(|tool| *tool > Tool::BlkkinSpans);
        let cheaper_tools = peers.filter(|tool| {
            let peer = self.fewer(*tool);
            peer.median() + peer.spread() + blkkin.spread() < blkkin.median()
        });
        cheaper_tools.map(Tool::name).collect()
    }
}

/// Formats a line of progress.
pub(crate) fn line(measured: &Measured) -> String {
    let each = measured.tools.iter().filter(|(tool, _)| *tool != Tool::Untraced);
    let each = each.map(|(tool, _)| {
        let fewer = measured.fewer(*tool);
        format!("{} {} %", tool.name(), with_spread(fewer.median(), fewer.spread()))
    });
    let untraced = measured.ops(Tool::Untraced).median();
    let each: Vec<String> = each.collect();
    format!("{}: {} {}; fewer with {}", measured.workload, number(untraced), measured.unit, each.join(", "))
}

/// Makes the report.
pub(crate) fn build_report(measured: &[Measured], peers: &AvailableTools) -> BenchReport {
    let mut tables: Vec<Table> = measured.iter().map(table).collect();
    tables.push(blind_spots_table(peers));
    if !peers.unavailable.is_empty() {
        tables.push(unavailable_table(peers));
    }
    let figures = measured.iter().map(|load| {
        let cheaper_tools = load.cheaper_tools();
        let note = if cheaper_tools.is_empty() {
            String::new()
        } else {
            format!("cheaper: {}", cheaper_tools.join(", "))
        };
        load.figure().note(note)
    });
    let how = format!(
        "Every tool with its defaults, alternating, {} rounds; medians. *Fewer* is against the untraced run of the same \
         round. *Own CPUs* is the processor time of the tool's own process while the load ran, without its start; the time that it \
         costs inside the load's calls is in the load's own figures. *Events* are those of one run: calls, bios, \
         requests, by its nature. *Written* is what it wrote to files.",
        measured.first().map_or(0, |load| load.runs(Tool::Untraced).len())
    );
    BenchReport {
        how,
        figures: figures.collect(),
        tables,
        plots: plots(measured),
        notes: notes(measured, peers),
    }
}

/// Makes a load's table.
pub(crate) fn table(measured: &Measured) -> Table {
    let mut table = Table::new(format!("{} ({})", measured.workload, measured.unit), &COLUMNS);
    for (tool, runs) in &measured.tools {
        let each = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Rounds>();
        let fewer = measured.fewer(*tool);
        let ops = each(|run| run.ops);
        let alone = *tool == Tool::Untraced;
        let own = |text: String| if alone { String::new() } else { text };
        table.row([
            tool.name().to_owned(),
            with_spread(ops.median(), ops.spread()),
            own(with_spread(fewer.median(), fewer.spread())),
            number(each(|run| run.p99).median()),
            own(number(each(|run| run.cpus).median())),
            own(number(each(|run| run.resident as f64).median() / f64::from(1 << 20))),
            own(count(each(|run| run.events.seen as f64).median() as u64)),
            own(count(each(|run| run.events.lost as f64).median() as u64)),
            own(bytes(each(|run| run.bytes as f64).median() as u64)),
        ]);
    }
    table
}

/// Lists what each available tool does not see.
pub(crate) fn blind_spots_table(peers: &AvailableTools) -> Table {
    let mut table = Table::new("What each does not see", &["tool", "not seen"]);
    for tool in peers.available.iter().filter(|tool| **tool != Tool::Untraced) {
        table.row([tool.name(), tool.blind_spots()]);
    }
    table
}

/// Lists the unavailable tools.
pub(crate) fn unavailable_table(peers: &AvailableTools) -> Table {
    let mut table = Table::new("Tools that do not run here, with their error", &["tool", "reason"]);
    for (tool, reason) in &peers.unavailable {
        table.row([tool.name(), reason]);
    }
    table
}

/// Lists versions, and tools that failed.
pub(crate) fn notes(measured: &[Measured], peers: &AvailableTools) -> Vec<String> {
    let mut notes = vec![format!("Versions: {}.", peers.versions.join("; "))];
    for load in measured {
        notes.extend(
            load.failed
                .iter()
                .map(|(tool, why)| format!("{}: {} did not get through: {why}", load.workload, tool.name())),
        );
    }
    notes
}

fn plots(measured: &[Measured]) -> Vec<Plot> {
    measured.chunks(PLOT_GROUPS).enumerate().map(|(page, some)| plot(page, some)).collect()
}

fn plot(page: usize, measured: &[Measured]) -> Plot {
    let tools = Tool::ALL
        .into_iter()
        .filter(|tool| *tool != Tool::Untraced && measured.iter().any(|load| !load.runs(*tool).is_empty()));
    let series = tools.map(|tool| {
        let values = measured.iter().enumerate().filter(|(_, load)| !load.runs(tool).is_empty());
        let points = values.map(|(at, load)| (at as f64, load.fewer(tool).median()));
        Series { name: tool.name().to_owned(), points: points.filter(|point| point.1.is_finite()).collect() }
    });
    Plot {
        name: if page == 0 { "peers".to_owned() } else { format!("peers-{}", page + 1) },
        title: "Fewer operations a second than untraced: less is better".to_owned(),
        x: "workload; of fio engine, operation, jobs × depth".to_owned(),
        y: "% fewer".to_owned(),
        series: series.collect(),
        groups: measured.iter().map(|load| load.short.clone()).collect(),
    }
}
