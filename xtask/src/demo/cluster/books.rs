//! What every part says of itself, and whether it is the same.
//!
//! *In*: metrics of agents, last words of aggregators and exporters, Zipkin's own count. *Out*: [`Books`]. *Invariant*: no
//! number comes from this task: each was counted by the part whose name stands beside it.

use anyhow::{Context, Result};

use crate::demo::story::{heading, say, thousands};

/// What an agent counts, over all kinds of records but names: those of tasks come as long as there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Due, counted in the kernel.
    pub(super) fired: u64,
    /// Read from the rings.
    pub(super) read: u64,
}

/// What an agent's end was.
pub(super) struct Sent {
    pub(super) node: &'static str,
    pub(super) count: Count,
    /// In rings and tables.
    pub(super) lost: u64,
}

/// What the aggregator that was left says at its end, of all partitions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Joined {
    partitions: u64,
    received: u64,
    joined: u64,
    late: u64,
    orphaned: u64,
    pending: u64,
    names: u64,
    /// Spans given out by the first stage, and by the second.
    made: u64,
    pub(super) written: u64,
}

pub(super) struct Books {
    pub(super) agents: Vec<Sent>,
    pub(super) joined: Joined,
    pub(super) exported: u64,
    pub(super) zipkin: u64,
}

impl Joined {
    /// Its last words; there may be earlier ones of who had its name.
    pub(super) fn read(said: &str) -> Result<Self> {
        let line = |start: &str| {
            let found = said.lines().rev().find(|line| line.contains(start));
            found.with_context(|| format!("the aggregator does not say what became of everything: {said}"))
        };
        let (join, assemble) = (line("join: ")?, line("assemble: ")?);
        Ok(Self {
            partitions: before(join, " partitions")?,
            received: before(join, " events")?,
            joined: before(join, " joined")?,
            late: before(join, " late")?,
            orphaned: before(join, " orphaned")?,
            pending: before(join, " pending")?,
            names: before(join, " names")?,
            made: before(join, " spans written")?,
            written: before(assemble, " spans written")?,
        })
    }

    /// Whether it is the end: it has seen all that agents have sent, and given all of it out.
    pub(super) fn is_all_of(&self, agents: &[Sent]) -> bool {
        let read: u64 = agents.iter().map(|sent| sent.count.read).sum();
        self.received == read && self.pending == 0 && self.made == self.written
    }
}

impl Books {
    pub(super) fn agree(&self) -> bool {
        let fired = self.agents.iter().all(|sent| sent.count.fired == sent.count.read);
        let same = self.joined.written == self.exported && self.exported == self.zipkin;
        fired && same && self.joined.is_all_of(&self.agents)
    }

    pub(super) fn print(&self) {
        let Joined { joined, late, orphaned, pending, names, made, .. } = self.joined;
        let sum = |of: fn(&Sent) -> u64| self.agents.iter().map(of).sum::<u64>();
        let row = |what: &str, value: u64, why: &str| {
            say(&format!("  {what:<26} {:>10}   {why}", thousands(value)));
        };
        heading("the books");
        for sent in &self.agents {
            row(&format!("records of {}", sent.node), sent.count.fired, &lost_words(sent.lost));
        }
        row("records due, by the kernel", sum(|sent| sent.count.fired), "");
        row("records read by agents", sum(|sent| sent.count.read), "and sent through Kafka");
        let parts = [(late, "late"), (orphaned, "orphaned"), (pending, "pending")];
        let parts: String =
            parts.iter().map(|(count, what)| format!(", {} {what}", thousands(*count))).collect();
        row("joined into traces", joined, parts.trim_start_matches(", "));
        row("names besides", names, "of tasks, files and devices");
        row("spans made", made, "");
        row("spans exported", self.exported, "");
        row("spans counted by Zipkin", self.zipkin, "");
        say(match (self.agree(), sum(|sent| sent.lost)) {
            (true, 0) => "  all agree: nothing lost, nothing twice, although an aggregator was killed",
            (true, _) => "  all agree: what was lost was lost in the kernel, and is counted",
            (false, _) => "  THEY DO NOT AGREE",
        });
    }
}

fn lost_words(lost: u64) -> String {
    format!("{} lost", thousands(lost))
}

/// An agent's metrics.
pub(super) fn count(metrics: &str) -> Count {
    let sum = |name: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with(name) && !line.contains("\"name\""));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    };
    Count { fired: sum("blkkin_records_fired_total"), read: sum("blkkin_records_read_total") }
}

/// What an agent's last words say it has lost.
pub(super) fn lost(said: &str) -> Result<u64> {
    let line = said.lines().rev().find(|line| line.contains("events delivered to"));
    before(line.with_context(|| format!("the agent does not say what it sent: {said}"))?, " records lost")
}

/// What an exporter's last words say it has delivered.
pub(super) fn exported(said: &str) -> Result<u64> {
    let line = said.lines().rev().find(|line| line.contains("spans delivered to"));
    before(
        line.with_context(|| format!("the exporter does not say what it delivered: {said}"))?,
        " spans delivered",
    )
}

/// The number right before these words.
fn before(line: &str, words: &str) -> Result<u64> {
    let number = line.split(words).next().and_then(|start| start.rsplit(' ').next());
    let number = number.filter(|_| line.contains(words)).and_then(|number| number.parse().ok());
    number.with_context(|| format!("no number before `{words}` in: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "blkkin: aggregating; events from blkkin.events\n\
        blkkin: join: 12 partitions, 19 events = 17 joined + 1 late + 0 orphaned + 1 pending; 5 names; 3 pieces of 18 spans written\n\
        blkkin: assemble: 12 partitions, 3 pieces = 3 kept + 0 left out; 18 spans written; 1 pieces came again\n";

    fn sent(read: u64) -> Sent {
        Sent { node: "a", count: Count { fired: read, read }, lost: 0 }
    }

    #[test]
    fn last_words_are_read_as_they_are_said() {
        let joined = Joined::read(SAID).expect("it says all");
        let meant = Joined {
            partitions: 12,
            received: 19,
            joined: 17,
            late: 1,
            pending: 1,
            names: 5,
            made: 18,
            written: 18,
            ..Joined::default()
        };
        assert_eq!(joined, meant);
        assert!(Joined::read("blkkin: join: killed").is_err());
        assert_eq!(lost("x\nblkkin: 7 events delivered to t; 2 records lost before that").expect("said"), 2);
        assert_eq!(exported("blkkin: 18 spans delivered to z; 0 records left").expect("said"), 18);
    }

    #[test]
    fn the_books_agree_only_where_every_number_does() {
        let joined = Joined { pending: 0, ..Joined::read(SAID).expect("it says all") };
        let books = Books { agents: vec![sent(10), sent(9)], joined, exported: 18, zipkin: 18 };
        assert!(books.agree());
        assert!(!Books { zipkin: 17, ..books }.agree());
        assert!(!Joined::read(SAID).expect("it says all").is_all_of(&[sent(19)]), "one is pending");
    }

    #[test]
    fn metrics_of_all_kinds_are_summed() {
        let metrics = "# TYPE blkkin_records_fired counter\nblkkin_records_fired_total{kind=\"call\"} 3\n\
            blkkin_records_fired_total{kind=\"bio\"} 4\n\
            blkkin_records_fired_total{kind=\"name\"} 9\nblkkin_records_read_total{kind=\"call\"} 2\n";
        assert_eq!(count(metrics), Count { fired: 7, read: 2 });
    }
}
