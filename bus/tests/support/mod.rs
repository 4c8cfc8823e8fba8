//! Kafka broker of one test, which can be killed and restarted.
//!
//! `secure.rs` adds listeners with TLS and passwords.
//!
//! The broker's jars are in the folder that `cargo xtask test` passes in `BLKKIN_KAFKA_JARS`, or in
//! the one that `cargo xtask setup --tests` fills. Nothing is fetched here.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod child;
pub(crate) mod client;
mod crash;
pub(crate) mod secure;
mod single_broker;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use blkkin_bus::kafka::Settings;

use child::{KillOnDrop, end_with_test};
use secure::Guard;

const JARS: &str = "kafka-4.4.0";
/// Timeout of a start: ten times its duration on two slow cores.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Returns what the test needs, or prints why it is skipped.
pub(crate) fn or_skip<T>(needed: Result<T, String>) -> Option<T> {
    needed.inspect_err(|reason| println!("skipped: {reason}")).ok()
}

/// Broker process. It is killed when the test ends, also by a panic.
pub(crate) struct Broker {
    // First field: the process ends before its folder is removed.
    process: Option<KillOnDrop>,
    folder: tempfile::TempDir,
    jars: PathBuf,
    port: u16,
    guard: Option<Guard>,
}

impl Broker {
    /// Starts a broker without topics. Returns the reason if no broker is installed.
    pub(crate) fn start() -> Result<Broker, String> {
        Broker::start_with("")
    }

    /// Starts a broker with additional lines in its configuration. `{port}` and `{controller}` in
    /// them stand for its ports.
    pub(crate) fn start_with(more: &str) -> Result<Broker, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let data = folder.path().join("data");
        Broker::start_in(folder, &data, None, more)
    }

    /// Starts a broker with additional listeners for TLS and SASL, and with an authorizer that
    /// denies every action without a rule. `more` is added to its configuration.
    pub(crate) fn start_guarded(more: &str) -> Result<Broker, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let guard = Guard::new(folder.path(), free_ports()?)?;
        let data = folder.path().join("data");
        Broker::start_in(folder, &data, Some(guard), more)
    }

    /// Starts a broker with its data in `data`.
    pub(crate) fn start_in(
        folder: tempfile::TempDir,
        data: &Path,
        guard: Option<Guard>,
        more: &str,
    ) -> Result<Broker, String> {
        crash::end_without_exit_handlers();
        let jars = jars()?;
        let [port, controller] = free_ports()?;
        let broker = Broker { process: None, folder, jars, port, guard };
        let more = more.replace("{port}", &port.to_string()).replace("{controller}", &controller.to_string());
        let text = properties(port, controller, data, broker.guard.as_ref()) + &more;
        fs::write(broker.properties(), text).map_err(|error| error.to_string())?;
        broker.format()?;
        let mut broker = broker;
        broker.up();
        Ok(broker)
    }

    /// Returns the secured listeners.
    pub(crate) fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("a guarded broker")
    }

    /// Returns the port of the listener without TLS and SASL.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the process runs.
    pub(crate) fn is_up(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.0.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    /// Returns its output since the last start.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the connection settings.
    pub(crate) fn settings(&self) -> Settings {
        Settings::new(format!("127.0.0.1:{}", self.port))
    }

    /// Kills the process by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the process with its existing data, and waits until it replies.
    pub(crate) fn up(&mut self) {
        let mut java = self.java("kafka.Kafka");
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        java.arg(self.properties()).stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        self.process = Some(KillOnDrop(end_with_test(&mut java).spawn().unwrap()));
        let deadline = Instant::now() + START_TIMEOUT;
        // An error about the topic is a reply too.
        while let Err(error) = self.settings().partitions("__none")
            && !error.what.contains("topic")
        {
            assert!(Instant::now() < deadline, "no broker after {START_TIMEOUT:?}: {error}\n{}", self.log());
        }
    }

    fn java(&self, class: &str) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        // `cargo xtask test` makes this archive of classes. Java ignores it where it is absent.
        java.arg(format!("-XX:SharedArchiveFile={}.jsa", self.jars.display())).arg("-cp");
        java.arg(format!("{}/*", self.jars.display())).arg(class);
        java
    }

    fn properties(&self) -> PathBuf {
        self.folder.path().join("server.properties")
    }

    fn format(&self) -> Result<(), String> {
        let mut format = self.java("kafka.tools.StorageTool");
        format.args(["format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA", "--config"]).arg(self.properties());
        format.args(self.guard.iter().flat_map(Guard::format_arguments));
        let output = format.output().map_err(|error| format!("java: {error}"))?;
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    }
}

fn properties(port: u16, controller: u16, data: &Path, guard: Option<&Guard>) -> String {
    let listeners = guard.map(Guard::listeners).unwrap_or_default();
    let guarded = match guard {
        Some(guard) => guard.properties(port),
        None => format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"),
    };
    let common = single_broker::properties(port, controller, data, &listeners);
    format!("{common}{guarded}broker.session.timeout.ms=1500\nbroker.heartbeat.interval.ms=300\n")
}

fn free_ports<const N: usize>() -> Result<[u16; N], String> {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        let address = listener.and_then(|listener| listener.local_addr());
        *port = address.map_err(|error| format!("no free port: {error}"))?.port();
    }
    Ok(ports)
}

pub(crate) fn jars() -> Result<PathBuf, String> {
    let configured = std::env::var_os("BLKKIN_KAFKA_JARS").map(PathBuf::from);
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain").join(JARS);
    let found = configured.into_iter().chain([default]).find(|folder| folder.is_dir());
    found.ok_or_else(|| "no Kafka broker: cargo xtask setup --tests fetches it".to_owned())
}
