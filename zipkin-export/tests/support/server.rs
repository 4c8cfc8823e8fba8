//! A real Zipkin server for the time of a test, and a client of its API.
//!
//! The server's jar is at the path that `cargo xtask test` passes, or where `cargo xtask setup
//! --tests` puts it, or in the user's Maven repository. Nothing is downloaded here.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::child::{KillOnDrop, end_with_test};

const JAR: &str = "zipkin-server-3.6.1-exec.jar";
const IN_MAVEN_REPOSITORY: &str = ".m2/repository/io/zipkin/zipkin-server/3.6.1";
/// Default limit of stored spans. Above its limit Zipkin drops the oldest without notice.
const SPANS_MAX: u32 = 100_000;
/// Ten times the start on two slow cores; every other response arrives within milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// Look-back of queries: longer than the age of any span here.
pub(crate) const LOOKBACK_MS: u64 = 1_000_000_000_000;

/// The server; it ends with the test process in every case.
pub(crate) struct Zipkin {
    /// Process of the server, while it runs.
    process: Option<KillOnDrop>,
    jar: PathBuf,
    address: SocketAddr,
    kafka: Option<String>,
    spans_max: u32,
    collector: Collector,
}

/// Garbage collector of the Java process.
#[derive(Clone, Copy)]
enum Collector {
    /// The smallest, for a server that runs for seconds.
    Serial,
    /// Java's default, as operators run it. On a server that fills up, Serial would stop all
    /// threads for seconds.
    Default,
    /// No pauses of its own. Others pause for 30 to 50 ms in each second while a server fills up.
    Concurrent,
}

impl Zipkin {
    /// Starts a server without traces and waits until it is up, or returns why it cannot.
    pub(crate) fn start() -> Result<Zipkin, String> {
        Zipkin::start_with_kafka(None)
    }

    /// Starts a server with room for `spans` spans.
    pub(crate) fn with_capacity(spans: u32) -> Result<Zipkin, String> {
        let collector = if spans > SPANS_MAX { Collector::Default } else { Collector::Serial };
        Zipkin::start_as(None, spans, collector)
    }

    /// Starts a server for measurements of time, with room for `spans` spans.
    pub(crate) fn without_pauses(spans: u32) -> Result<Zipkin, String> {
        Zipkin::start_as(None, spans, Collector::Concurrent)
    }

    /// Starts a server that also reads the topic `zipkin` of these brokers.
    pub(crate) fn start_with_kafka(kafka: Option<&str>) -> Result<Zipkin, String> {
        Zipkin::start_as(kafka, SPANS_MAX, Collector::Serial)
    }

    fn start_as(kafka: Option<&str>, spans_max: u32, collector: Collector) -> Result<Zipkin, String> {
        let mut server = Zipkin::prepare_as(kafka, spans_max, collector)?;
        server.up();
        Ok(server)
    }

    /// Chooses the address of a server that [`Zipkin::up`] starts.
    pub(crate) fn prepare() -> Result<Zipkin, String> {
        Zipkin::prepare_as(None, SPANS_MAX, Collector::Serial)
    }

    fn prepare_as(kafka: Option<&str>, spans_max: u32, collector: Collector) -> Result<Zipkin, String> {
        let jar = jar()?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| format!("no free port: {error}"))?;
        Ok(Zipkin { process: None, jar, address, kafka: kafka.map(str::to_owned), spans_max, collector })
    }

    /// Kills the server with SIGKILL; its traces are lost.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it at its address, without traces.
    pub(crate) fn up(&mut self) {
        self.process = Some(KillOnDrop(end_with_test(&mut self.command()).spawn().unwrap()));
        self.wait_for("the server is up", || self.get("/health").filter(|health| health["status"] == "UP"));
    }

    /// Returns its URL as a destination option takes it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the JSON at `path`, or none while the status is not 200.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let mut response = agent().get(self.url() + path).call().ok()?;
        let body = response.body_mut().with_config().limit(u64::MAX).read_to_vec().ok()?;
        (response.status() == 200).then(|| serde_json::from_slice(&body).ok())?
    }

    /// Posts a list of spans unchanged; returns status and body of the response.
    pub(crate) fn post(&self, list: &[u8]) -> (u16, String) {
        let request = agent().post(self.url() + "/api/v2/spans").content_type("application/json");
        let mut response = request.send(list).unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// Returns all spans of a trace. The server shows accepted spans a moment later.
    pub(crate) fn trace(&self, id: &str, count: usize) -> Vec<Value> {
        self.wait_for(&format!("trace {id} has {count} spans"), || {
            let Some(Value::Array(spans)) = self.get(&format!("/api/v2/trace/{id}")) else { return None };
            (spans.len() >= count).then_some(spans)
        })
    }

    /// Returns the number of calls between services, as the page of dependencies shows them.
    pub(crate) fn dependencies(&self) -> BTreeMap<(String, String), u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let dependencies =
            self.get(&format!("/api/v2/dependencies?endTs={now}&lookback={LOOKBACK_MS}")).unwrap();
        let field = |dependency: &Value, key: &str| dependency[key].as_str().unwrap().to_owned();
        let dependency = |dependency: &Value| {
            (
                (field(dependency, "parent"), field(dependency, "child")),
                dependency["callCount"].as_u64().unwrap(),
            )
        };
        dependencies.as_array().unwrap().iter().map(dependency).collect()
    }

    fn command(&self) -> Command {
        let mut java = Command::new("java");
        // A span takes 1.6 KB of heap. A server without free heap would never respond again.
        let mut heap = 128 + self.spans_max / 500;
        match self.collector {
            Collector::Serial => {
                java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
            }
            Collector::Default => {}
            // Pointers of twice the size, and room for allocations during a collection.
            Collector::Concurrent => {
                java.arg("-XX:+UseZGC");
                heap *= 3;
            }
        }
        java.arg(format!("-Xmx{heap}m")).arg("-XX:+ExitOnOutOfMemoryError");
        java.arg("-jar").arg(&self.jar);
        java.env("MEM_MAX_SPANS", self.spans_max.to_string());
        java.args(["--armeria.ports[0].ip=127.0.0.1", "--armeria.ports[0].protocols[0]=http"]);
        java.arg(format!("--armeria.ports[0].port={}", self.address.port()));
        if let Some(brokers) = &self.kafka {
            java.env("KAFKA_BOOTSTRAP_SERVERS", brokers);
        }
        java.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        java
    }

    /// Polls until there is a value.
    pub(crate) fn wait_for<T>(&self, condition: &str, poll: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            if let Some(value) = poll() {
                return value;
            }
            assert!(Instant::now() < deadline, "waited {TIME_LIMIT:?} until {condition}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns a client with connections of its own, without a proxy.
fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().proxy(None).http_status_as_error(false);
    config.timeout_global(Some(TIME_LIMIT)).build().into()
}

fn jar() -> Result<PathBuf, String> {
    let java = Command::new("java").arg("-version").output();
    if !java.is_ok_and(|output| output.status.success()) {
        return Err("java is not installed".to_owned());
    }
    let configured = std::env::var_os("BLKKIN_ZIPKIN_JAR").map(PathBuf::from);
    let set_up = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain").join(JAR);
    let maven = std::env::var_os("HOME").map(|home| Path::new(&home).join(IN_MAVEN_REPOSITORY).join(JAR));
    let mut candidates = configured.into_iter().chain([set_up]).chain(maven);
    candidates
        .find(|jar| jar.is_file())
        .ok_or_else(|| format!("no {JAR}: cargo xtask setup --tests fetches it"))
}
