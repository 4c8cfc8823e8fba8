//! Empty Kafka broker: KRaft, one node.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Process, free_ports, single_broker};
use crate::setup;
use crate::shell;
use crate::workspace::Workspace;

pub(crate) struct Kafka {
    // First field: the process ends before its folder is removed.
    process: Process,
    brokers: String,
    data: PathBuf,
}

impl Kafka {
    /// Formats the storage in `folder` and starts the broker, without waiting for it.
    pub(crate) fn start(workspace: &Workspace, folder: &Path) -> Result<Self> {
        Self::start_with(workspace, folder, &format!("-XX:SharedArchiveFile={}", class_archive(workspace)))
    }

    fn start_with(workspace: &Workspace, folder: &Path, option: &str) -> Result<Self> {
        let data = folder.join("kafka");
        clear(&data)?;
        fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
        let [listener, controller] = free_ports::<2>()?.map(|address| address.port());
        let properties = data.join("server.properties");
        let text = single_broker::properties(listener, controller, &data.join("log"), "")
            + &format!("advertised.listeners=PLAINTEXT://127.0.0.1:{listener}\n");
        fs::write(&properties, text).with_context(|| format!("cannot write {}", properties.display()))?;
        let java = |class: &str| {
            let mut java = Command::new("java");
            java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", option, "-cp"]);
            java.arg(format!("{}/*", setup::broker_jars(workspace).display())).arg(class);
            java
        };
        let mut format = java("kafka.tools.StorageTool");
        format.args(["format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA", "--config"]).arg(&properties);
        shell::run_quietly(&mut format).context("cannot format the broker's storage")?;
        let mut kafka = java("kafka.Kafka");
        kafka.arg(&properties);
        let process = Process::start("kafka", &kafka, folder)?;
        Ok(Self { process, brokers: format!("127.0.0.1:{listener}"), data })
    }

    /// Waits until the port accepts connections. Clients must still wait until the broker responds.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let brokers = &self.brokers;
        self.process.wait_until("its port", || TcpStream::connect(brokers).is_ok())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the bootstrap servers for `--brokers`.
    pub(crate) fn brokers(&self) -> &str {
        &self.brokers
    }
}

/// Makes the archive of the broker's classes, if there is none. With it a start takes 2.0 instead of 3.7 s, and
/// 1.8 s less of CPU. Java ignores an archive that is absent or of another version.
pub(crate) fn archive_classes(workspace: &Workspace) -> Result<()> {
    let archive = class_archive(workspace);
    if Path::new(&archive).exists() {
        return Ok(());
    }
    let folder = workspace.toolchain_dir().join("class-archive");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut kafka = Kafka::start_with(workspace, &folder, &format!("-XX:ArchiveClassesAtExit={archive}"))?;
    kafka.wait()?;
    // Java writes the archive at an orderly exit.
    kafka.process.finish()?;
    drop(kafka);
    clear(&folder)
}

/// Returns the path of the archive, next to the folder of the jars. The tests form the same path.
fn class_archive(workspace: &Workspace) -> String {
    format!("{}.jsa", setup::broker_jars(workspace).display())
}

impl Drop for Kafka {
    fn drop(&mut self) {
        // Its data is deleted, so an orderly shutdown is not needed.
        let _ = self.process.kill();
        if let Err(error) = clear(&self.data) {
            eprintln!("{error:#}");
        }
    }
}

fn clear(data: &Path) -> Result<()> {
    let removed = if data.is_dir() { fs::remove_dir_all(data) } else { Ok(()) };
    removed.with_context(|| format!("cannot remove {}", data.display()))
}
