//! `fleet`: an aggregator of 1,000 nodes and 64 partitions: memory, states, take-over, and the
//! bytes of each bound.
//!
//! *The fleet* is simulated in one process: the real stages over logs in memory
//! (`aggregator/tests/support/fleet/`, which also runs as a test). One member has all partitions,
//! or a quarter of them. It is killed halfway between two saves. *Bounds*: each table of a
//! partition gets twice as many entries as it has room for.
//!
//! *Not included*: Kafka's part of a take-over. The coordinator misses a killed member after 6 s,
//! and a state is read from the topic first.

use anyhow::{Result, ensure};

use crate::Setting;
use crate::frame::number::{count, number};
use crate::frame::{BenchReport, Figure, Table};
use crate::simulation::bounds::{self, Bound};
use crate::simulation::{self, Outcome, Size};

const MIB: f64 = (1 << 20) as f64;
const WHOLE: Size = Size { nodes: 1_000, partitions: 64, seconds: 12, calls: 40, names: 500, members: 1 };
const QUICK: Size = Size { nodes: 100, seconds: 10, calls: 8, names: 50, ..WHOLE };
/// Numbers of members that share the partitions.
const MEMBERS: [u32; 2] = [1, 4];

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let size = if setting.extent.is_quick() { QUICK } else { WHOLE };
    let runs: Vec<(u32, Outcome)> =
        MEMBERS.into_iter().map(|members| (members, simulation::run(Size { members, ..size }))).collect();
    for (_, outcome) in &runs {
        ensure!((outcome.lost, outcome.doubled, outcome.misplaced) == (0, 0, 0), "{outcome:?}");
    }
    Ok(build_report(&size, &runs, &bounds::try_all()))
}

fn build_report(size: &Size, runs: &[(u32, Outcome)], bounds: &[Bound]) -> BenchReport {
    let how = format!(
        "{} nodes, {} partitions, {} s of {} calls a second and node, a quarter of them served by another node; {} names of \
         tasks and of files a node. A member is killed halfway between two saves.",
        count(size.nodes),
        size.partitions,
        size.seconds,
        size.calls,
        size.names,
    );
    let all = runs[0].1.memory.iter().sum::<u64>() as f64 / MIB;
    BenchReport {
        how,
        figures: vec![Figure::new("memory of all partitions' stages", all, 0.0, "MiB")],
        tables: vec![members(size, runs), stages(&runs[0].1), tried(bounds)],
        ..BenchReport::default()
    }
}

fn members(size: &Size, runs: &[(u32, Outcome)]) -> Table {
    let columns = [
        "members",
        "partitions of one",
        "its memory, MiB",
        "restored, ms",
        "caught up, ms",
        "records read again",
        "spans",
        "lost",
        "doubled",
    ];
    let mut table = Table::new("A member and its take-over", &columns);
    for (members, outcome) in runs {
        let share = f64::from(outcome.taken_over) / f64::from(size.partitions);
        table.row([
            members.to_string(),
            outcome.taken_over.to_string(),
            number(outcome.memory.iter().sum::<u64>() as f64 / MIB * share),
            number(outcome.restored.as_secs_f64() * 1e3),
            number(outcome.caught_up.as_secs_f64() * 1e3),
            count(outcome.read_again),
            count(outcome.spans),
            count(outcome.lost),
            count(outcome.doubled),
        ]);
    }
    table
}

fn stages(outcome: &Outcome) -> Table {
    let mut table = Table::new("All partitions, by stage", &["stage", "memory, MiB", "states, MiB"]);
    for (n, stage) in ["join", "link", "assemble"].into_iter().enumerate() {
        let mib = |bytes: [u64; 3]| number(bytes[n] as f64 / MIB);
        table.row([stage.to_owned(), mib(outcome.memory), mib(outcome.states)]);
    }
    table
}

fn tried(bounds: &[Bound]) -> Table {
    let columns = ["table", "bound", "offered", "given up and counted", "memory of the stage, MiB"];
    let mut table = Table::new("Bounds of a partition, at twice their size", &columns);
    for bound in bounds {
        let Bound { table: name, max, offered, given_up, bytes } = bound;
        let mib = number(*bytes as f64 / MIB);
        table.row([(*name).to_owned(), count(*max), count(*offered), count(*given_up), mib]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_a_row_for_each_member_count_stage_and_bound() {
        let bound = Bound { table: "sources", max: 4_096, offered: 8_192, given_up: 4_096, bytes: 1 << 20 };
        let report = build_report(&QUICK, &[(1, Outcome::default()), (4, Outcome::default())], &[bound]);
        assert_eq!(report.tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [2, 3, 1]);
        assert_eq!(report.tables[2].rows[0], ["sources", "4,096", "8,192", "4,096", "1.00"]);
    }
}
