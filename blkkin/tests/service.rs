//! `blkkin agent` as a service: what its manager and its monitoring hear of it, and how little it may do.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::disk::Disk;
use support::live::{Live, eventually};
use support::metrics::{address, get, value};
use support::{needs, or_skip};
use tempfile::TempDir;

/// Nobody listens there: what an agent owes its machine it owes without a cluster too.
const NO_CLUSTER: &str = "127.0.0.1:1";
const PATIENCE: Duration = Duration::from_secs(60);

/// What started the agent, as systemd would have.
struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Manager { socket, folder }
    }

    /// Words until one of them contains `wanted`.
    fn hears(&self, wanted: &str) -> Vec<String> {
        let (begun, mut heard, mut buffer) = (Instant::now(), Vec::<String>::new(), [0; 4096]);
        while begun.elapsed() < PATIENCE {
            let Ok(len) = self.socket.recv(&mut buffer) else { continue };
            heard.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
            if heard.last().unwrap().contains(wanted) {
                return heard;
            }
        }
        panic!("no {wanted} in {heard:?}");
    }
}

/// The agent; killed with the test, however that ends.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// 64 requests.
fn read(disk: &Disk) {
    let from = format!("if={}", disk.node().display());
    let words = [&from, "of=/dev/null", "bs=4k", "count=64", "iflag=direct"];
    assert!(Command::new("dd").args(words).stderr(Stdio::null()).status().unwrap().success());
}

#[test]
fn its_manager_and_its_monitoring_hear_how_it_is() {
    needs!("losetup", "dd");
    let disk = or_skip!(Disk::raw(16 << 20));
    let manager = Manager::new();
    let said = manager.folder.path().join("said");
    let config = manager.folder.path().join("agent.toml");
    let lines = format!("brokers = '{NO_CLUSTER}'\ndevice = ['{}']\nmetrics = '127.0.0.1:0'\n", disk.name());
    fs::write(&config, lines).unwrap();
    let child = common::blkkin(&["agent", "-c", config.to_str().unwrap()])
        .env("NOTIFY_SOCKET", manager.folder.path().join("notify"))
        .env("WATCHDOG_USEC", "900000")
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let mut agent = Agent(child);
    let heard = manager.hears("READY=1");
    assert!(heard.last().unwrap().contains("STATUS=tracing; events go to blkkin.events"), "{heard:?}");
    (0..3).for_each(|_| drop(manager.hears("WATCHDOG=1")));

    let words = fs::read_to_string(&said).unwrap();
    let address = address(&words);
    assert!(get(address, "/health").starts_with("HTTP/1.1 200"));
    read(&disk);
    let requests = |what: &str| {
        let metrics = get(address, "/metrics");
        value(&metrics, &format!("blkkin_records_{what}_total{{kind=\"request\"}}"))
    };
    assert!(eventually(|| requests("read") >= 64.0), "{}", get(address, "/metrics"));
    assert_eq!(requests("dropped"), 0.0);
    let metrics = get(address, "/metrics");
    let [accepted, delivered, failed, waiting] =
        ["accepted_total", "delivered_total", "failed_total", "waiting"]
            .map(|name| value(&metrics, &format!("blkkin_agent_events_{name}")));
    assert_eq!(accepted, delivered + failed + waiting, "{metrics}");
    assert_eq!(delivered, 0.0, "there is no cluster");

    // SAFETY: numbers only; the process has not been waited for.
    unsafe { libc::kill(agent.0.id() as libc::pid_t, libc::SIGTERM) };
    let heard = manager.hears("STOPPING=1");
    assert!(heard.last().unwrap().contains("EXTEND_TIMEOUT_USEC=20000000"), "{heard:?}");
    assert_eq!(agent.0.wait().unwrap().code(), Some(1), "what was not delivered is no success");
}

/// As the unit in configs/ has it: a user that is nobody, and what is in CapabilityBoundingSet.
#[test]
fn two_capabilities_are_enough() {
    needs!("losetup", "dd", "setpriv");
    let disk = or_skip!(Disk::raw(16 << 20));
    let folder = tempfile::tempdir().unwrap();
    let binary = common::for_nobody(folder.path());
    let mut tracer = Command::new("setpriv");
    tracer.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
        tracer.arg(format!("{set}=-all,+bpf,+perfmon"));
    }
    tracer.arg("--").arg(binary).args(["trace", "--device", disk.name()]);
    let report = folder.path().join("report.json");
    // Nobody may not make files there.
    fs::write(&report, "").unwrap();
    std::os::unix::fs::chown(&report, Some(65534), None).unwrap();
    let live = Live::start(&mut tracer, report);
    read(&disk);
    let report = live.finish();
    // An end that no program could see is in the books.
    let missed = report["losses"]["ends_missed"].as_u64().unwrap();
    assert_eq!(report["losses"]["total"], missed, "{}", report["losses"]);
    let requests = report["totals"]["requests"].as_u64().unwrap();
    assert!(requests + missed >= 64, "{report}");
}
