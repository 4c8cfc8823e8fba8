//! A real Kafka broker for as long as a test needs it; it may be killed and started again.
//!
//! Its jars are where `cargo xtask test` says, or where `cargo xtask setup --tests` puts them. Nothing is fetched here.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use blkkin_bus::kafka::Settings;

const JARS: &str = "kafka-4.4.0";
/// Ten times what a start takes on two slow cores.
const PATIENCE: Duration = Duration::from_secs(90);

/// The broker; it ends with the test, however the test ends.
pub(crate) struct Broker {
    folder: tempfile::TempDir,
    jars: PathBuf,
    port: u16,
    process: Option<Child>,
}

impl Broker {
    /// Starts one without topics; or why there is none.
    pub(crate) fn start() -> Result<Broker, String> {
        Broker::start_with("")
    }

    /// The same with these lines in its file besides, in which `{port}` and `{controller}` stand for the ports that it has.
    pub(crate) fn start_with(more: &str) -> Result<Broker, String> {
        let jars = jars()?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let [port, controller] = free_ports()?;
        let mut broker = Broker { folder, jars, port, process: None };
        let more = more.replace("{port}", &port.to_string()).replace("{controller}", &controller.to_string());
        fs::write(broker.properties(), properties(port, controller, broker.folder.path()) + &more)
            .map_err(|error| error.to_string())?;
        broker.format()?;
        broker.up();
        Ok(broker)
    }

    /// How to reach it.
    pub(crate) fn settings(&self) -> Settings {
        Settings::new(format!("127.0.0.1:{}", self.port))
    }

    /// What it wrote on its output since it was started last.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it, with what it had, and waits until it answers.
    pub(crate) fn up(&mut self) {
        let mut java = self.java("kafka.Kafka");
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        java.arg(self.properties()).stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        // SAFETY: prctl is async-signal-safe and touches no memory of ours.
        unsafe {
            java.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        self.process = Some(java.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        // Which topics there are does not matter: an error about one is an answer.
        while let Err(error) = self.settings().partitions("__none")
            && !error.what.contains("topic")
        {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "no broker after {PATIENCE:?}: {error}\n{log}");
        }
    }

    fn java(&self, class: &str) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
        java.arg(format!("{}/*", self.jars.display())).arg(class);
        java
    }

    fn properties(&self) -> PathBuf {
        self.folder.path().join("server.properties")
    }

    fn format(&self) -> Result<(), String> {
        let mut format = self.java("kafka.tools.StorageTool");
        format.args(["format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA", "--config"]).arg(self.properties());
        let output = format.output().map_err(|error| format!("java: {error}"))?;
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn properties(port: u16, controller: u16, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n\
         log.dirs={folder}/data\nauto.create.topics.enable=false\noffsets.topic.replication.factor=1\n\
         transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
         share.coordinator.state.topic.replication.factor=1\nshare.coordinator.state.topic.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\nbroker.session.timeout.ms=1500\nbroker.heartbeat.interval.ms=300\n"
    )
}

fn free_ports() -> Result<[u16; 2], String> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners = [bind(), bind()];
    let mut ports = [0; 2];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        let address = listener.and_then(|listener| listener.local_addr());
        *port = address.map_err(|error| format!("no free port: {error}"))?.port();
    }
    Ok(ports)
}

fn jars() -> Result<PathBuf, String> {
    let said = std::env::var_os("BLKKIN_KAFKA_JARS").map(PathBuf::from);
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain").join(JARS);
    let found = said.into_iter().chain([made]).find(|folder| folder.is_dir());
    found.ok_or_else(|| "no Kafka broker: cargo xtask setup --tests fetches it".to_owned())
}
