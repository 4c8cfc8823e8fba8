//! One node: a machine id, a disk, a program that writes to it, and an agent that follows what it does there.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::disk::Disk;
use super::books::{self, Count, Sent};
use crate::http;
use crate::interrupt;
use crate::servers::{Process, free_port};

/// What a node is called and what its program does, as a shell's loop: `$1` is its folder on the disk.
pub(super) struct Kind {
    pub(super) name: &'static str,
    what: &'static str,
    work: &'static str,
}

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "node ash",
        what: "sqlite3 inserts, durably",
        work: "sqlite3 \"$1/orders.db\" 'CREATE TABLE IF NOT EXISTS o (item, note); PRAGMA synchronous = FULL; \
               INSERT INTO o VALUES (1, zeroblob(2000)); INSERT INTO o VALUES (2, zeroblob(9000));' >/dev/null",
    },
    Kind {
        name: "node birch",
        what: "dd appends to a log, each block synced",
        work: "dd if=/dev/zero of=\"$1/log\" bs=4k count=4 oflag=append,dsync conv=notrunc status=none",
    },
    Kind {
        name: "node cedar",
        what: "cp and sync save a file of 1 MiB",
        work: "cp \"$1/data\" \"$1/copy\" && sync \"$1/copy\"",
    },
];

/// Between two turns of a program: the demo shows who does what, not how much goes through.
const PAUSE: &str = "0.1";
/// Without a record for so long nothing is on its way any more: rings are drained 50 times a second.
const QUIET: Duration = Duration::from_millis(500);
const QUIET_WITHIN: Duration = Duration::from_secs(30);

pub(super) struct Node {
    kind: &'static Kind,
    // In the order in which they end.
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
        let mut command = as_machine(word, &own)?;
        command.arg(blkkin).args(["agent", "--brokers", brokers, "--device", disk.device()]);
        command.args(["--metrics", &metrics.to_string()]);
        let mut agent = Process::start(&format!("agent-{word}"), &command, folder)?;
        agent.wait_for_words("tracing; ")?;
        Ok(Self { kind, program: None, agent, disk: Some(disk), metrics, folder: own })
    }

    pub(super) fn what(&self) -> String {
        let device = self.disk.as_ref().map_or("no disk", |disk| disk.device());
        format!("{device}: {}", self.kind.what)
    }

    pub(super) fn agent_pid(&self) -> u32 {
        self.agent.pid()
    }

    /// Its program begins, again and again until [`Node::rest`].
    pub(super) fn work(&mut self) -> Result<()> {
        let disk = self.disk.as_ref().context("the node has no disk any more")?;
        let mut command = Command::new("sh");
        // The turn that is under way when it is asked to end is gone through.
        let script =
            format!("trap 'exit 0' TERM; while :; do {} || exit 1; sleep {PAUSE}; done", self.kind.work);
        command.args(["-c", &script, "sh"]).arg(disk.mount_point());
        self.program = Some(Process::start("program", &command, &self.folder)?);
        Ok(())
    }

    /// Its program ends, and all that it wrote is on the disk.
    pub(super) fn rest(&mut self) -> Result<()> {
        let Some(mut program) = self.program.take() else { return Ok(()) };
        let status = program.finish()?;
        if !status.success() {
            bail!("the program of {} failed ({status}): {}", self.kind.name, program.said());
        }
        // From here on nobody writes to it.
        self.disk.as_ref().context("the node has no disk any more")?.unmount()
    }

    /// What the agent has counted so far.
    pub(super) fn count(&self) -> Result<Count> {
        let text = http::get(self.metrics, "/metrics")?;
        Ok(books::count(&String::from_utf8_lossy(&text)))
    }

    /// The agent ends once nothing comes any more.
    pub(super) fn finish(&mut self) -> Result<Sent> {
        let (mut count, mut since, begun) = (self.count()?, Instant::now(), Instant::now());
        while since.elapsed() < QUIET {
            interrupt::check()?;
            if begun.elapsed() > QUIET_WITHIN {
                bail!("the disk of {} does not come to rest", self.kind.name);
            }
            std::thread::sleep(super::TICK);
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
        Ok(Sent { node: self.kind.name, count, lost: books::lost(&self.agent.said())? })
    }
}

/// What is added to it runs as on another machine: /etc/machine-id says another number.
pub(crate) fn as_machine(word: &str, folder: &Path) -> Result<Command> {
    if !Path::new("/etc/machine-id").exists() {
        bail!(
            "this machine has no /etc/machine-id for others to be put over; systemd-machine-id-setup makes one"
        );
    }
    let machine_id = folder.join("machine-id");
    fs::write(&machine_id, format!("{:032x}\n", id_of(word)))
        .with_context(|| format!("cannot write {}", machine_id.display()))?;
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /etc/machine-id && exec \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(&machine_id);
    Ok(command)
}

/// The same for ever, and another for each node: its name's letters.
fn id_of(word: &str) -> u128 {
    let letters = word.bytes().fold(0, |id, letter| id << 8 | u128::from(letter));
    0x626c_6b6b_696e << 80 | letters
}
