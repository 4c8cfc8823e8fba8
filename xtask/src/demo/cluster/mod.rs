//! `demo --cluster`: three nodes, through a real Kafka into a real Zipkin, while an aggregator is
//! killed.
//!
//! ```text
//! 3 nodes: program → disk ← agent ─→ Kafka ─→ 2 aggregators ─→ Kafka ─→ exporter ─→ Zipkin
//! ```
//!
//! *A node* is an agent with its own machine id, bound over /etc/machine-id in a mount namespace.
//! It traces one disk, which no other node uses. The three nodes share this machine's kernel, and
//! the output states it.
//!
//! *Out*: progress lines, then the accounting: records counted in the kernel, joined events, and
//! spans counted by Zipkin. The demo fails unless they agree. *Invariant*: all processes that the
//! demo started end with it, even if it is killed: see [`crate::servers`] and [`super::disk`].

mod accounting;
mod node;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::services::{self, Services, aggregator};
use super::{output, summaries, zipkin_pages};
use crate::interrupt;
use crate::servers::Zipkin;
use crate::workspace::Workspace;

use super::output::{ProcessLine, print_line};
use accounting::ClusterStats;
use node::Node;
pub(crate) use node::with_machine_id;

/// Duration of the load before the kill, and at least after it: the consumer group reassigns a dead
/// member's partitions after 6 s.
const LOAD_BEFORE_KILL: Duration = Duration::from_secs(4);
const LOAD_AFTER_KILL: Duration = Duration::from_secs(8);
/// Zipkin has probably received all spans after it has received none for this time. The accounting
/// verifies it.
const IDLE_TIME: Duration = Duration::from_secs(2);
/// Maximum number of checks of the accounting before the demo fails.
const ATTEMPTS_MAX: u32 = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of spans that fit on a page.
const SPANS_MAX: usize = 30;

/// Runs the demo. `blkkin` is the path of the program.
pub(super) fn run(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    services::in_folder(workspace, "cluster", |folder| run_demo(workspace, blkkin, folder))
}

fn run_demo(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<()> {
    let cluster = Cluster::start(workspace, blkkin, folder)?;
    let (zipkin, stats) = cluster.run_workload(blkkin, folder)?;
    stats.print();
    print_line("");
    let trace = zipkin_pages::find_durable_write(&zipkin, SPANS_MAX)?;
    output::heading("look");
    print_line("  a write of sqlite3 that waited for its journal's commit, layer by layer");
    print_line(&format!("    {}", zipkin_pages::trace_page(&zipkin, &trace)));
    print_line("  dependencies between services, from the programs down to the disks");
    print_line(&format!("    {}", zipkin_pages::dependency_page(&zipkin)));
    if !stats.is_consistent() {
        bail!("the accounting does not agree: the logs are in {}", folder.display());
    }
    output::wait_for_interrupt();
    Ok(())
}

/// Running components. Fields are dropped in this order.
struct Cluster {
    nodes: Vec<Node>,
    services: Services,
}

impl Cluster {
    fn start(workspace: &Workspace, blkkin: &Path, folder: &Path) -> Result<Self> {
        output::heading("what runs");
        let services = Services::start(workspace, blkkin, folder, &["aggregator-1", "aggregator-2"])?;
        let mut nodes = Vec::new();
        for kind in node::KINDS {
            let node = Node::start(kind, blkkin, folder, services.kafka.brokers())?;
            ProcessLine { name: kind.name, what: &node.description(), pid: node.agent_pid() }.print();
            nodes.push(node);
        }
        print_line("  A node: an agent with its own machine id and its own disk. All three run");
        print_line("  on this machine and share its kernel.");
        print_line("");
        Ok(Self { nodes, services })
    }

    /// Runs load, kills an aggregator in the middle, and ends all components except Zipkin.
    fn run_workload(mut self, blkkin: &Path, folder: &Path) -> Result<(Zipkin, ClusterStats)> {
        output::heading("what happens");
        for node in &mut self.nodes {
            node.start_workload()?;
        }
        let started = Instant::now();
        self.report_progress(started, LOAD_BEFORE_KILL)?;
        let mut first = self.services.aggregators.remove(0);
        let pid = first.pid();
        first.kill()?;
        print_event(started, &format!("kill -9 {pid}: aggregator-1 dies with work in flight"));
        print_event(started, "after 6 s Kafka moves its partitions to aggregator-2");
        self.report_progress(started, LOAD_BEFORE_KILL + LOAD_AFTER_KILL)?;
        for node in &mut self.nodes {
            node.stop_workload()?;
        }
        print_event(started, "SIGTERM to programs, agents, aggregator-2 and exporter");
        let mut agents = Vec::new();
        for node in &mut self.nodes {
            agents.push(node.finish()?);
        }
        let mut second = self.services.aggregators.remove(0);
        let mut attempts = 0;
        let joined = loop {
            self.services.wait_until_idle(IDLE_TIME)?;
            second.finish()?;
            let joined = accounting::AggregatorStats::read(&second.log())?;
            attempts += 1;
            if joined.accounts_for(&agents) || attempts == ATTEMPTS_MAX {
                break joined;
            }
            // It was stopped too early; the restart continues from its snapshot.
            second = aggregator(blkkin, folder, self.services.kafka.brokers(), "aggregator-2")?;
        };
        let Services { mut exporter, zipkin, .. } = self.services;
        exporter.wait_until("Zipkin has every span", || {
            zipkin.spans().is_ok_and(|spans| spans >= joined.written)
        })?;
        exporter.finish()?;
        let exported = summaries::exported(&exporter.log())?;
        print_event(started, "all have ended and printed their summaries");
        print_line("");
        let stats = ClusterStats { agents, joined, exported, zipkin: zipkin.spans()? };
        Ok((zipkin, stats))
    }

    /// Prints progress until this time after the start.
    fn report_progress(&self, started: Instant, until: Duration) -> Result<()> {
        let mut printed_at = started.elapsed();
        while started.elapsed() < until {
            interrupt::check()?;
            std::thread::sleep(POLL_INTERVAL);
            if started.elapsed().saturating_sub(printed_at) < PROGRESS_INTERVAL {
                continue;
            }
            printed_at += PROGRESS_INTERVAL;
            let records: u64 = self.nodes.iter().map(|node| node.count().map_or(0, |count| count.read)).sum();
            let spans = output::thousands(self.services.zipkin.spans()?);
            let records = output::thousands(records);
            print_event(
                started,
                &format!("{records:>9} records read by agents   {spans:>9} spans in Zipkin"),
            );
        }
        Ok(())
    }
}

/// Prints an event with its time.
fn print_event(started: Instant, description: &str) {
    print_line(&format!("  {:>3} s  {description}", started.elapsed().as_secs()));
}
