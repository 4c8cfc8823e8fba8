//! Accounting of the cluster demo: the counters of every component, and whether they agree.
//!
//! *In*: metrics of agents, shutdown summaries of aggregators and exporters, Zipkin's counter.
//! *Out*: [`ClusterStats`]. *Invariant*: this task counts nothing; each number comes from the
//! component whose name is next to it.

use anyhow::{Context, Result};

use crate::demo::output::{heading, print_line, thousands};
use crate::demo::summaries::number_before;

/// Counters of an agent, summed over all record kinds except names, which tasks emit as long as
/// they exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AgentStats {
    /// Records that were due, counted in the kernel.
    pub(super) fired: u64,
    /// Records that the agent read from the rings.
    pub(super) read: u64,
}

/// Final state of an agent.
pub(super) struct AgentReport {
    pub(super) node: &'static str,
    pub(super) count: AgentStats,
    /// Records lost in rings and tables.
    pub(super) lost: u64,
}

/// Shutdown summary of the remaining aggregator, over all partitions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AggregatorStats {
    partitions: u64,
    received: u64,
    joined: u64,
    late: u64,
    orphaned: u64,
    pending: u64,
    names: u64,
    /// Spans emitted by the join stage.
    made: u64,
    pub(super) written: u64,
}

pub(super) struct ClusterStats {
    pub(super) agents: Vec<AgentReport>,
    pub(super) joined: AggregatorStats,
    pub(super) exported: u64,
    pub(super) zipkin: u64,
}

impl AggregatorStats {
    /// Parses the last summary in the log; restarts of the same aggregator wrote earlier ones.
    pub(super) fn read(log: &str) -> Result<Self> {
        let line = |start: &str| {
            let found = log.lines().rev().find(|line| line.contains(start));
            found.with_context(|| format!("the aggregator's log has no shutdown summary: {log}"))
        };
        let (join, assemble) = (line("join: ")?, line("assemble: ")?);
        Ok(Self {
            partitions: number_before(join, " partitions")?,
            received: number_before(join, " events")?,
            joined: number_before(join, " joined")?,
            late: number_before(join, " late")?,
            orphaned: number_before(join, " orphaned")?,
            pending: number_before(join, " pending")?,
            names: number_before(join, " names")?,
            made: number_before(join, " spans written")?,
            written: number_before(assemble, " spans written")?,
        })
    }

    /// Returns whether the aggregator has received all records of the agents and emitted all spans.
    pub(super) fn accounts_for(&self, agents: &[AgentReport]) -> bool {
        let read: u64 = agents.iter().map(|sent| sent.count.read).sum();
        self.received == read && self.pending == 0 && self.made == self.written
    }
}

impl ClusterStats {
    pub(super) fn is_consistent(&self) -> bool {
        let fired = self.agents.iter().all(|sent| sent.count.fired == sent.count.read);
        let same = self.joined.written == self.exported && self.exported == self.zipkin;
        fired && same && self.joined.accounts_for(&self.agents)
    }

    pub(super) fn print(&self) {
        let AggregatorStats { joined, late, orphaned, pending, names, made, .. } = self.joined;
        let sum = |of: fn(&AgentReport) -> u64| self.agents.iter().map(of).sum::<u64>();
        let row = |what: &str, value: u64, why: &str| {
            print_line(&format!("  {what:<26} {:>10}   {why}", thousands(value)));
        };
        heading("accounting");
        for sent in &self.agents {
            row(&format!("records of {}", sent.node), sent.count.fired, &format_lost(sent.lost));
        }
        row("records due in the kernel", sum(|sent| sent.count.fired), "");
        row("records read by agents", sum(|sent| sent.count.read), "and sent through Kafka");
        let remainder = [(late, "late"), (orphaned, "orphaned"), (pending, "pending")];
        let remainder: String =
            remainder.iter().map(|(count, what)| format!(", {} {what}", thousands(*count))).collect();
        row("joined into traces", joined, remainder.trim_start_matches(", "));
        row("names", names, "of tasks, files and devices");
        row("spans written", made, "");
        row("spans exported", self.exported, "");
        row("spans counted by Zipkin", self.zipkin, "");
        print_line(match (self.is_consistent(), sum(|sent| sent.lost)) {
            (true, 0) => "  all agree: no loss and no duplicates, although an aggregator was killed",
            (true, _) => "  all agree: records were lost in the kernel only, and are counted",
            (false, _) => "  THEY DO NOT AGREE",
        });
    }
}

fn format_lost(lost: u64) -> String {
    format!("{} lost", thousands(lost))
}

/// Sums an agent's metrics.
pub(super) fn count(metrics: &str) -> AgentStats {
    let sum = |name: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with(name) && !line.contains("\"name\""));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    };
    AgentStats { fired: sum("blkkin_records_fired_total"), read: sum("blkkin_records_read_total") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "blkkin: aggregating; events from blkkin.events\n\
        blkkin: join: 12 partitions, 19 events = 17 joined + 1 late + 0 orphaned + 1 pending; 5 names; 3 fragments of 18 spans written\n\
        blkkin: assemble: 12 partitions, 3 fragments = 3 sampled + 0 dropped by sampling; 18 spans written; 1 duplicate fragments\n";

    fn sent(read: u64) -> AgentReport {
        AgentReport { node: "a", count: AgentStats { fired: read, read }, lost: 0 }
    }

    #[test]
    fn shutdown_summaries_are_parsed() {
        let joined = AggregatorStats::read(SUMMARY).expect("a summary");
        let expected = AggregatorStats {
            partitions: 12,
            received: 19,
            joined: 17,
            late: 1,
            pending: 1,
            names: 5,
            made: 18,
            written: 18,
            ..AggregatorStats::default()
        };
        assert_eq!(joined, expected);
        assert!(AggregatorStats::read("blkkin: join: killed").is_err());
    }

    #[test]
    fn stats_are_consistent_only_if_every_number_is() {
        let joined = AggregatorStats { pending: 0, ..AggregatorStats::read(SUMMARY).expect("a summary") };
        let accounting = ClusterStats { agents: vec![sent(10), sent(9)], joined, exported: 18, zipkin: 18 };
        assert!(accounting.is_consistent());
        assert!(!ClusterStats { zipkin: 17, ..accounting }.is_consistent());
        assert!(
            !AggregatorStats::read(SUMMARY).expect("a summary").accounts_for(&[sent(19)]),
            "one is pending"
        );
    }

    #[test]
    fn metrics_of_all_kinds_are_summed() {
        let metrics = "# TYPE blkkin_records_fired counter\nblkkin_records_fired_total{kind=\"call\"} 3\n\
            blkkin_records_fired_total{kind=\"bio\"} 4\n\
            blkkin_records_fired_total{kind=\"name\"} 9\nblkkin_records_read_total{kind=\"call\"} 2\n";
        assert_eq!(count(metrics), AgentStats { fired: 7, read: 2 });
    }
}
