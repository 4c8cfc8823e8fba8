//! Node of the cluster demo: a machine id, a disk, a program that writes to it, and an agent that
//! traces the disk.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::{disk::Disk, summaries};
use super::accounting::{self, AgentReport, AgentStats};
use crate::http;
use crate::interrupt;
use crate::servers::{Process, free_port};

/// Name of a node, and the shell script that its program repeats. `$1` is its folder on the disk.
pub(super) struct Kind {
    pub(super) name: &'static str,
    description: &'static str,
    script: &'static str,
}

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "node ash",
        description: "sqlite3 inserts, durably",
        script: "sqlite3 \"$1/orders.db\" 'CREATE TABLE IF NOT EXISTS o (item, note); PRAGMA synchronous = FULL; \
               INSERT INTO o VALUES (1, zeroblob(2000)); INSERT INTO o VALUES (2, zeroblob(9000));' >/dev/null",
    },
    Kind {
        name: "node birch",
        description: "dd appends to a log, each block synced",
        script: "dd if=/dev/zero of=\"$1/log\" bs=4k count=4 oflag=append,dsync conv=notrunc status=none",
    },
    Kind {
        name: "node cedar",
        description: "cp and sync save a file of 1 MiB",
        script: "cp \"$1/data\" \"$1/copy\" && sync \"$1/copy\"",
    },
];

/// Pause between two runs of the script: the demo shows the flow of records, not throughput.
const PAUSE: &str = "0.1";
/// No record is in transit after this time without one: rings are polled 50 times a second.
const IDLE_TIME: Duration = Duration::from_millis(500);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Node {
    kind: &'static Kind,
    // Fields are dropped in this order.
    program: Option<Process>,
    agent: Process,
    disk: Option<Disk>,
    metrics: SocketAddr,
    folder: PathBuf,
}

impl Node {
    pub(super) fn start(kind: &'static Kind, blkkin: &Path, folder: &Path, brokers: &str) -> Result<Self> {
        let word = kind.name.trim_start_matches("node ");
        let own = folder.join(word);
        fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
        let disk = Disk::make(&own)?;
        fs::write(disk.mount_point().join("data"), vec![7; 1 << 20])
            .context("cannot write to the node's disk")?;
        let metrics = free_port()?;
        let mut command = with_machine_id(word, &own)?;
        command.arg(blkkin).args(["agent", "--brokers", brokers, "--device", disk.device()]);
        command.args(["--metrics", &metrics.to_string()]);
        let mut agent = Process::start(&format!("agent-{word}"), &command, folder)?;
        agent.wait_for_log("tracing; ")?;
        Ok(Self { kind, program: None, agent, disk: Some(disk), metrics, folder: own })
    }

    pub(super) fn description(&self) -> String {
        let device = self.disk.as_ref().map_or("no disk", |disk| disk.device());
        format!("{device}: {}", self.kind.description)
    }

    pub(super) fn agent_pid(&self) -> u32 {
        self.agent.pid()
    }

    /// Starts the program, which repeats its script until [`Node::stop_workload`].
    pub(super) fn start_workload(&mut self) -> Result<()> {
        let disk = self.disk.as_ref().context("the node has no disk any more")?;
        let mut command = Command::new("sh");
        // SIGTERM ends the program after the current run of the script.
        let script =
            format!("trap 'exit 0' TERM; while :; do {} || exit 1; sleep {PAUSE}; done", self.kind.script);
        command.args(["-c", &script, "sh"]).arg(disk.mount_point());
        self.program = Some(Process::start("program", &command, &self.folder)?);
        Ok(())
    }

    /// Stops the program and unmounts the disk, so that all data is on it.
    pub(super) fn stop_workload(&mut self) -> Result<()> {
        let Some(mut program) = self.program.take() else { return Ok(()) };
        let status = program.finish()?;
        if !status.success() {
            bail!("the program of {} failed ({status}): {}", self.kind.name, program.log());
        }
        // From here on no process writes to the disk.
        self.disk.as_ref().context("the node has no disk any more")?.unmount()
    }

    /// Reads the agent's counters.
    pub(super) fn count(&self) -> Result<AgentStats> {
        let text = http::get(self.metrics, "/metrics")?;
        Ok(accounting::count(&text))
    }

    /// Stops the agent after no more records arrive.
    pub(super) fn finish(&mut self) -> Result<AgentReport> {
        let (mut count, mut since, started) = (self.count()?, Instant::now(), Instant::now());
        while since.elapsed() < IDLE_TIME {
            interrupt::check()?;
            if started.elapsed() > IDLE_TIMEOUT {
                bail!("the disk of {} does not become idle", self.kind.name);
            }
            std::thread::sleep(super::POLL_INTERVAL);
            let now = self.count()?;
            if now != count {
                (count, since) = (now, Instant::now());
            }
        }
        self.agent.finish()?;
        if let Some(disk) = self.disk.take() {
            disk.remove()?;
        }
        fs::remove_dir_all(&self.folder)
            .with_context(|| format!("cannot remove {}", self.folder.display()))?;
        Ok(AgentReport { node: self.kind.name, count, lost: summaries::lost(&self.agent.log())? })
    }
}

/// Prepares a command that runs as on another machine, with its own /etc/machine-id. Arguments are
/// appended to it.
pub(crate) fn with_machine_id(word: &str, folder: &Path) -> Result<Command> {
    if !Path::new("/etc/machine-id").exists() {
        bail!("this machine has no /etc/machine-id to mount over: run systemd-machine-id-setup");
    }
    let machine_id = folder.join("machine-id");
    fs::write(&machine_id, format!("{:032x}\n", machine_id_of(word)))
        .with_context(|| format!("cannot write {}", machine_id.display()))?;
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /etc/machine-id && exec \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(&machine_id);
    Ok(command)
}

/// Derives a constant machine id from the node's name.
fn machine_id_of(word: &str) -> u128 {
    let letters = word.bytes().fold(0, |id, letter| id << 8 | u128::from(letter));
    0x626c_6b6b_696e << 80 | letters
}
