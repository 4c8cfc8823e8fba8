//! `demo --cluster`: what happens on three nodes, by way of a real Kafka into a real Zipkin, and what becomes of it when an
//! aggregator is killed in the middle.
//!
//! ```text
//! 3 nodes: program → disk ← agent ─→ Kafka ─→ 2 aggregators ─→ Kafka ─→ exporter ─→ Zipkin
//! ```
//!
//! *A node* is what has a machine id: an agent in a mount namespace in which /etc/machine-id is another, which follows one
//! disk, that nobody else uses. The three share this machine's kernel, and the demo says so.
//!
//! *Out*: the story as it goes, and at the end the books: what the kernel's side counted, what was joined, what Zipkin has
//! counted. They agree, or the demo fails. *Invariant*: whatever ends it, all that it started ends with it: see
//! [`crate::servers`] and [`super::disk`].

mod books;
mod node;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{look, story};
use crate::interrupt;
use crate::servers::{Kafka, Process, Zipkin};
use crate::workspace::Workspace;

use super::story::{Line, say};
use books::Books;
use node::Node;
pub(crate) use node::as_machine;

/// Load before the kill, and at least so long after it: the group gives a dead member's partitions away after 6 s.
const BEFORE_THE_KILL: Duration = Duration::from_secs(4);
const AFTER_THE_KILL: Duration = Duration::from_secs(8);
/// Zipkin has all, probably, once it has taken nothing for so long; the books tell.
const QUIET: Duration = Duration::from_secs(2);
/// So often the books are asked again before they are called wrong.
const ROUNDS_MAX: u32 = 20;
const TICK: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(2);
/// What is worth to be looked at on one page.
const SPANS_MAX: usize = 30;

/// The whole of it. `blkkin` is the program.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    let folder = workspace.demo_dir().join("cluster");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let told = tell(workspace, blkkin, &folder);
    // What all said is wanted where something failed only.
    if told.is_ok() || interrupt::came() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    told.map(|()| ExitCode::SUCCESS)
}

fn tell(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<()> {
    let cluster = Cluster::start(workspace, blkkin, folder)?;
    let (zipkin, books) = cluster.play(blkkin, folder)?;
    books.print();
    say("");
    let trace = look::a_durable_write(&zipkin, SPANS_MAX)?;
    story::heading("look");
    say("  a write of sqlite3 that waited for its journal's commit, layer by layer");
    say(&format!("    {}", look::trace_page(&zipkin, &trace)));
    say("  who asks whom, from the programs down to the disks");
    say(&format!("    {}", look::dependency_page(&zipkin)));
    if !books.agree() {
        bail!("the books do not agree: what every part said is in {}", folder.display());
    }
    story::stay();
    Ok(())
}

/// All that runs. What is first ends first.
struct Cluster {
    nodes: Vec<Node>,
    exporter: Process,
    aggregators: Vec<Process>,
    zipkin: Zipkin,
    kafka: Kafka,
}

impl Cluster {
    fn start(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<Self> {
        story::heading("what runs");
        let mut kafka = Kafka::start(workspace, folder)?;
        let mut zipkin = Zipkin::start(workspace, folder)?;
        kafka.wait()?;
        Line { name: "kafka", what: kafka.brokers(), pid: kafka.pid() }.say();
        zipkin.wait()?;
        Line { name: "zipkin", what: &zipkin.url(), pid: zipkin.pid() }.say();
        let mut aggregators = Vec::new();
        for name in ["aggregator-1", "aggregator-2"] {
            let aggregator = aggregator(blkkin, folder, kafka.brokers(), name)?;
            let what = "blkkin.events → spans → blkkin.traces";
            Line { name, what, pid: aggregator.pid() }.say();
            aggregators.push(aggregator);
        }
        let mut export = Command::new(blkkin);
        export.args(["exporter", "--brokers", kafka.brokers(), "--to"]);
        export.arg(format!("zipkin={}", zipkin.url()));
        let mut exporter = Process::start("exporter", &export, folder)?;
        exporter.wait_for_words("exporting ")?;
        Line { name: "exporter", what: "blkkin.traces → zipkin", pid: exporter.pid() }.say();
        let mut nodes = Vec::new();
        for kind in node::KINDS {
            let node = Node::start(kind, blkkin, folder, kafka.brokers())?;
            Line { name: kind.name, what: &node.what(), pid: node.agent_pid() }.say();
            nodes.push(node);
        }
        say("  A node: an agent with a machine id and a disk of its own. All three are");
        say("  on this machine, and share its kernel.");
        say("");
        Ok(Self { nodes, exporter, aggregators, zipkin, kafka })
    }

    /// Load, a kill in its middle, and the end. Zipkin stays.
    fn play(mut self, blkkin: &Path, folder: &Path) -> Result<(Zipkin, Books)> {
        story::heading("what happens");
        for node in &mut self.nodes {
            node.work()?;
        }
        let begun = Instant::now();
        self.watch(begun, BEFORE_THE_KILL)?;
        let mut first = self.aggregators.remove(0);
        let pid = first.pid();
        first.kill()?;
        at(begun, &format!("kill -9 {pid}: aggregator-1 is gone, whatever it was about to do"));
        at(begun, "in 6 s Kafka takes it for dead, and gives its half to aggregator-2");
        self.watch(begun, BEFORE_THE_KILL + AFTER_THE_KILL)?;
        for node in &mut self.nodes {
            node.rest()?;
        }
        at(begun, "the programs end; agents, aggregator-2 and exporter are asked to");
        let mut agents = Vec::new();
        for node in &mut self.nodes {
            agents.push(node.finish()?);
        }
        let mut second = self.aggregators.remove(0);
        let mut rounds = 0;
        let joined = loop {
            self.until_quiet()?;
            second.finish()?;
            let joined = books::Joined::read(&second.said())?;
            rounds += 1;
            if joined.is_all_of(&agents) || rounds == ROUNDS_MAX {
                break joined;
            }
            // It was asked too early; it goes on where it was.
            second = aggregator(blkkin, folder, self.kafka.brokers(), "aggregator-2")?;
        };
        let zipkin = self.zipkin;
        self.exporter.wait_until("Zipkin has every span", || {
            zipkin.spans().is_ok_and(|spans| spans >= joined.written)
        })?;
        self.exporter.finish()?;
        let exported = books::exported(&self.exporter.said())?;
        at(begun, "all have ended, and said what became of everything");
        say("");
        let books = Books { agents, joined, exported, zipkin: zipkin.spans()? };
        Ok((zipkin, books))
    }

    /// Says what has come so far, until so long after the beginning.
    fn watch(&self, begun: Instant, until: Duration) -> Result<()> {
        let mut said = begun.elapsed();
        while begun.elapsed() < until {
            interrupt::check()?;
            std::thread::sleep(TICK);
            if begun.elapsed().saturating_sub(said) < LINE_EVERY {
                continue;
            }
            said += LINE_EVERY;
            let records: u64 = self.nodes.iter().map(|node| node.count().map_or(0, |count| count.read)).sum();
            let spans = story::thousands(self.zipkin.spans()?);
            let records = story::thousands(records);
            at(begun, &format!("{records:>9} records read by agents   {spans:>9} spans in Zipkin"));
        }
        Ok(())
    }

    fn until_quiet(&self) -> Result<()> {
        let (mut spans, mut since) = (self.zipkin.spans()?, Instant::now());
        while since.elapsed() < QUIET {
            interrupt::check()?;
            std::thread::sleep(TICK);
            let now = self.zipkin.spans()?;
            if now != spans {
                (spans, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}

/// Something happens now.
fn at(begun: Instant, what: &str) {
    say(&format!("  {:>3} s  {what}", begun.elapsed().as_secs()));
}

fn aggregator(blkkin: &Path, folder: &Path, brokers: &str, name: &str) -> Result<Process> {
    let mut command = Command::new(blkkin);
    command.args(["aggregator", "--brokers", brokers, "--save-every", "1s", "--metrics", "off"]);
    let mut process = Process::start(name, &command, folder)?;
    process.wait_for_words("aggregating; ")?;
    Ok(process)
}
