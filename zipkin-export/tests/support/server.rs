//! A real Zipkin server for the duration of a test.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::child::{KillOnDrop, end_with_test};

const VERSION: &str = "3.6.1";
/// Ten times the start time on two slow cores.
const START_MAX: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);

/// Installation that can start a server.
pub(crate) struct Zipkin {
    jar: PathBuf,
    port: u16,
}

impl Zipkin {
    /// Finds or downloads the server; the error states what is missing.
    pub(crate) fn find() -> Result<Zipkin, String> {
        static JAR: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let jar = JAR.get_or_init(jar).clone()?;
        let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        Ok(Zipkin { jar, port: free.map_err(|e| format!("no free port: {e}"))?.port() })
    }

    /// Returns the address of the server, also before its start.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Starts the server and waits until it is ready.
    pub(crate) fn start(&self) -> RunningZipkin {
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar"]).arg(&self.jar);
        java.args(["--armeria.ports[0].ip=127.0.0.1", "--armeria.ports[0].protocols[0]=http"]);
        java.arg(format!("--armeria.ports[0].port={}", self.port));
        java.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = KillOnDrop(end_with_test(&mut java).spawn().unwrap());
        let server = RunningZipkin { _process: process, url: self.url() };
        server.until("it is up", |s| s.get("/health").filter(|h| h["status"] == "UP"));
        server
    }
}

/// Server that ends with the test, however the test ends.
pub(crate) struct RunningZipkin {
    _process: KillOnDrop,
    url: String,
}

impl RunningZipkin {
    /// Returns the JSON at `path`; none if the server refuses or does not respond.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let mut response = agent().get(format!("{}{path}", self.url)).call().ok()?;
        let words = response.body_mut().read_to_string().ok()?;
        serde_json::from_str(&words).ok()
    }

    /// Posts a list unchanged; returns status and body of the response.
    pub(crate) fn post(&self, list: &[u8]) -> (u16, String) {
        let request = agent().post(format!("{}/api/v2/spans", self.url)).content_type("application/json");
        let mut response = request.send(list).unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// Returns all `count` spans of a trace, by id. The server shows accepted spans after a delay.
    pub(crate) fn trace(&self, id: &str, count: usize) -> Vec<Value> {
        let mut spans = self.until(&format!("trace {id} has {count} spans"), |s| {
            let Some(Value::Array(spans)) = s.get(&format!("/api/v2/trace/{id}")) else { return None };
            (spans.len() >= count).then_some(spans)
        });
        spans.sort_by_key(|span| span["id"].to_string());
        assert_eq!(spans.len(), count);
        spans
    }

    /// Polls until there is a result.
    pub(crate) fn until<T>(&self, what: &str, ask: impl Fn(&RunningZipkin) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            assert!(begun.elapsed() < START_MAX, "waited {START_MAX:?} until {what}");
            thread::sleep(POLL);
        }
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().into()
}

fn jar() -> Result<PathBuf, String> {
    runs("java", "-version")?;
    // cargo xtask test provides the path of its jar, so 135 MB are not downloaded twice.
    if let Some(output) = std::env::var_os("BLKKIN_ZIPKIN_JAR").map(PathBuf::from).filter(|jar| jar.is_file())
    {
        return Ok(output);
    }
    let home = std::env::var_os("HOME").ok_or("HOME is not set, so there is no Maven repository")?;
    let folder = format!(".m2/repository/io/zipkin/zipkin-server/{VERSION}/zipkin-server-{VERSION}-exec.jar");
    let jar = PathBuf::from(home).join(folder);
    if jar.is_file() {
        return Ok(jar);
    }
    runs("mvn", "-version")?;
    let mut fetch = Command::new("mvn");
    fetch.args(["-B", "-ntp", "-q", "dependency:get", "-Dtransitive=false"]);
    fetch.arg(format!("-Dartifact=io.zipkin:zipkin-server:{VERSION}:jar:exec"));
    let fetched = fetch.output().is_ok_and(|o| o.status.success()) && jar.is_file();
    fetched
        .then_some(jar)
        .ok_or_else(|| format!("Maven could not fetch io.zipkin:zipkin-server:{VERSION}:jar:exec"))
}

fn runs(program: &str, argument: &str) -> Result<(), String> {
    let run = Command::new(program).arg(argument).output();
    run.is_ok_and(|o| o.status.success()).then_some(()).ok_or_else(|| format!("{program} is not installed"))
}
