//! A real Zipkin server for as long as a test needs it, and as much HTTP as it takes to ask it.
//!
//! The server's jar is where `cargo xtask test` says, or where `cargo xtask setup --tests` puts it, or in the user's
//! Maven repository. Nothing is fetched here.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

const JAR: &str = "zipkin-server-3.6.1-exec.jar";
const IN_MAVEN_REPOSITORY: &str = ".m2/repository/io/zipkin/zipkin-server/3.6.1";
/// What it holds at the most, unless more is asked for; above it, it forgets the oldest and does not say so.
const SPANS_MAX: u32 = 100_000;
/// Ten times what a start takes on two slow cores; every other answer comes within milliseconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// So long before now it is asked for: longer ago than anything here happened.
pub(crate) const LOOKBACK_MS: u64 = 1_000_000_000_000;

/// The server; it ends with the test, however the test ends.
pub(crate) struct Zipkin {
    child: Child,
    jar: PathBuf,
    address: SocketAddr,
    kafka: Option<String>,
    spans_max: u32,
    collector: Collector,
}

/// Who collects its garbage.
#[derive(Clone, Copy)]
enum Collector {
    /// The least for who lives for seconds.
    Serial,
    /// As operators run it, if they say nothing; of one that is filled Serial would stop all for seconds.
    Usual,
    /// Without pauses of its own, which are 30 to 50 ms each second of one that is being filled.
    Concurrent,
}

impl Zipkin {
    /// Starts it with no traces and waits until it is up; or why there is none.
    pub(crate) fn start() -> Result<Zipkin, String> {
        Zipkin::start_with(None)
    }

    /// The same, with room for so many spans.
    pub(crate) fn holding(spans: u32) -> Result<Zipkin, String> {
        let collector = if spans > SPANS_MAX { Collector::Usual } else { Collector::Serial };
        Zipkin::start_as(None, spans, collector)
    }

    /// The same, where the time is measured that something takes.
    pub(crate) fn without_pauses(spans: u32) -> Result<Zipkin, String> {
        Zipkin::start_as(None, spans, Collector::Concurrent)
    }

    /// The same, reading the topic `zipkin` of these brokers besides.
    pub(crate) fn start_with(kafka: Option<&str>) -> Result<Zipkin, String> {
        Zipkin::start_as(kafka, SPANS_MAX, Collector::Serial)
    }

    fn start_as(kafka: Option<&str>, spans_max: u32, collector: Collector) -> Result<Zipkin, String> {
        let jar = jar()?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| format!("no free port: {error}"))?;
        let kafka = kafka.map(str::to_owned);
        let child = spawn(&jar, address, kafka.as_deref(), spans_max, collector)?;
        let server = Zipkin { child, jar, address, kafka, spans_max, collector };
        server.wait_up();
        Ok(server)
    }

    /// SIGKILL: what it had is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, at the same address, with no traces.
    pub(crate) fn up(&mut self) {
        let kafka = self.kafka.as_deref();
        self.child = spawn(&self.jar, self.address, kafka, self.spans_max, self.collector).unwrap();
        self.wait_up();
    }

    fn wait_up(&self) {
        self.until("it is up", || self.get("/health").filter(|health| health["status"] == "UP"));
    }

    /// As a destination of blkkin's names it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it has at `path`; none while it says no, or nothing.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.ask("GET", path, b"").ok()?;
        (status == 200).then(|| serde_json::from_slice(&body).ok())?
    }

    /// Posts a list of spans as it is: the status of the answer.
    pub(crate) fn post(&self, list: &[u8]) -> u16 {
        self.ask("POST", "/api/v2/spans", list).unwrap().0
    }

    /// All spans of a trace: what the server took it shows a moment later.
    pub(crate) fn trace(&self, id: &str, count: usize) -> Vec<Value> {
        self.until(&format!("trace {id} has {count} spans"), || {
            let Some(Value::Array(spans)) = self.get(&format!("/api/v2/trace/{id}")) else { return None };
            (spans.len() >= count).then_some(spans)
        })
    }

    /// How often who asked whom, as the page of dependencies draws it.
    pub(crate) fn links(&self) -> BTreeMap<(String, String), u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let links = self.get(&format!("/api/v2/dependencies?endTs={now}&lookback={LOOKBACK_MS}")).unwrap();
        let word = |link: &Value, key: &str| link[key].as_str().unwrap().to_owned();
        let link =
            |link: &Value| ((word(link, "parent"), word(link, "child")), link["callCount"].as_u64().unwrap());
        links.as_array().unwrap().iter().map(link).collect()
    }

    /// Asks until there is an answer.
    pub(crate) fn until<T>(&self, what: &str, ask: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} until {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// One question, one connection.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect(self.address)?;
        let (length, host) = (body.len(), self.address);
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )?;
        stream.write_all(body)?;
        // Until the answer is whole: the server takes its time to close a connection.
        let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let length = stream.read(&mut piece)?;
            answer.extend(&piece[..length]);
            match parse(&answer) {
                Some(parsed) => return Ok(parsed),
                None if length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => {}
            }
        }
    }
}

impl Drop for Zipkin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(
    jar: &Path,
    address: SocketAddr,
    kafka: Option<&str>,
    spans_max: u32,
    collector: Collector,
) -> Result<Child, String> {
    let mut java = Command::new("java");
    // A span takes 1.6 KB of it. One that has no room left would answer nothing for ever.
    let mut heap = 128 + spans_max / 500;
    match collector {
        Collector::Serial => {
            java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        }
        Collector::Usual => {}
        // Pointers of twice the size, and room for what is made while it collects.
        Collector::Concurrent => {
            java.arg("-XX:+UseZGC");
            heap *= 3;
        }
    }
    java.arg(format!("-Xmx{heap}m")).arg("-XX:+ExitOnOutOfMemoryError");
    java.arg("-jar").arg(jar);
    java.env("MEM_MAX_SPANS", spans_max.to_string());
    java.args(["--armeria.ports[0].ip=127.0.0.1", "--armeria.ports[0].protocols[0]=http"]);
    java.arg(format!("--armeria.ports[0].port={}", address.port()));
    if let Some(brokers) = kafka {
        java.env("KAFKA_BOOTSTRAP_SERVERS", brokers);
    }
    java.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: prctl is async-signal-safe and touches no memory of ours.
    unsafe {
        java.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    java.spawn().map_err(|error| format!("java: {error}"))
}

/// Status and body of an answer; none until it has come as a whole.
fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?.to_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &answer[end + 4..];
    let header = |name| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    match header("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => Some((status, body.get(..length)?.to_vec())),
        None if header("transfer-encoding") == Some("chunked") => Some((status, unchunked(body)?)),
        None => Some((status, Vec::new())),
    }
}

fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?, 16).ok()?;
        if length == 0 {
            return Some(whole);
        }
        let start = end + 2;
        whole.extend(body.get(start..start + length)?);
        body = body.get(start + length + 2..)?;
    }
}

fn jar() -> Result<PathBuf, String> {
    let java = Command::new("java").arg("-version").output();
    if !java.is_ok_and(|output| output.status.success()) {
        return Err("java is not installed".to_owned());
    }
    let said = std::env::var_os("BLKKIN_ZIPKIN_JAR").map(PathBuf::from);
    let set_up = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain").join(JAR);
    let maven = std::env::var_os("HOME").map(|home| Path::new(&home).join(IN_MAVEN_REPOSITORY).join(JAR));
    let mut places = said.into_iter().chain([set_up]).chain(maven);
    places.find(|jar| jar.is_file()).ok_or_else(|| format!("no {JAR}: cargo xtask setup --tests fetches it"))
}
