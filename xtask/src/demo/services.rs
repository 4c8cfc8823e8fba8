//! Services between the agents of a demo and Zipkin: Kafka, aggregators and an exporter.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::output::ProcessLine;
use crate::interrupt;
use crate::servers::{Kafka, Process, Zipkin};
use crate::workspace::Workspace;

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Running services. Fields are dropped in this order.
pub(super) struct Services {
    pub(super) exporter: Process,
    pub(super) aggregators: Vec<Process>,
    pub(super) zipkin: Zipkin,
    pub(super) kafka: Kafka,
}

impl Services {
    /// Starts them, with one aggregator for each name, and prints a line about each.
    pub(super) fn start(
        workspace: &Workspace,
        blkkin: &Path,
        folder: &Path,
        aggregators: &[&'static str],
    ) -> Result<Self> {
        let mut kafka = Kafka::start(workspace, folder)?;
        let mut zipkin = Zipkin::start(workspace, folder)?;
        kafka.wait()?;
        ProcessLine { name: "kafka", what: kafka.brokers(), pid: kafka.pid() }.print();
        zipkin.wait()?;
        ProcessLine { name: "zipkin", what: &zipkin.url(), pid: zipkin.pid() }.print();
        let mut started = Vec::new();
        for name in aggregators {
            let process = aggregator(blkkin, folder, kafka.brokers(), name)?;
            ProcessLine { name, what: "blkkin.events → spans → blkkin.traces", pid: process.pid() }.print();
            started.push(process);
        }
        let mut export = Command::new(blkkin);
        export.args(["exporter", "--brokers", kafka.brokers(), "--to"]);
        export.arg(format!("zipkin={}", zipkin.url()));
        let mut exporter = Process::start("exporter", &export, folder)?;
        exporter.wait_for_log("exporting ")?;
        ProcessLine { name: "exporter", what: "blkkin.traces → zipkin", pid: exporter.pid() }.print();
        Ok(Self { exporter, aggregators: started, zipkin, kafka })
    }

    /// Waits until Zipkin has received no span for this time.
    pub(super) fn wait_until_idle(&self, time: Duration) -> Result<()> {
        let (mut spans, mut since) = (self.zipkin.spans()?, Instant::now());
        while since.elapsed() < time {
            interrupt::check()?;
            std::thread::sleep(POLL_INTERVAL);
            let now = self.zipkin.spans()?;
            if now != spans {
                (spans, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}

/// Runs a demo with services in a folder of its own, which stays with its logs only after a failure.
pub(super) fn in_folder(
    workspace: &Workspace,
    name: &str,
    demo: impl FnOnce(&Path) -> Result<()>,
) -> Result<ExitCode> {
    let folder = workspace.demo_dir().join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let result = demo(&folder);
    if result.is_ok() || interrupt::received() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Starts an aggregator.
pub(super) fn aggregator(blkkin: &Path, folder: &Path, brokers: &str, name: &str) -> Result<Process> {
    let mut command = Command::new(blkkin);
    command.args(["aggregator", "--brokers", brokers, "--save-every", "1s", "--metrics", "off"]);
    let mut process = Process::start(name, &command, folder)?;
    process.wait_for_log("aggregating; ")?;
    Ok(process)
}
