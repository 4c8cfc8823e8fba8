//! Services as such: what their manager and their monitoring hear of them, and how little an agent may do.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod support;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use broker::Broker;
use support::disk::Disk;
use support::live::{LiveTrace, eventually};
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

/// A service; killed with the test, however that ends.
struct Service(Child);

impl Service {
    /// With this manager, who wants to hear of it every so many µs.
    fn start(manager: &Manager, words: &[&str], watchdog_us: u64) -> Service {
        let said = fs::File::create(manager.folder.path().join("said")).unwrap();
        let mut command = common::blkkin(words);
        command.env("NOTIFY_SOCKET", manager.folder.path().join("notify"));
        command.env("WATCHDOG_USEC", watchdog_us.to_string());
        Service(command.stdout(Stdio::null()).stderr(said).spawn().unwrap())
    }

    /// Asks it to end, as its manager would.
    fn ask_to_end(&self) {
        // SAFETY: numbers only; the process has not been waited for.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
    }
}

impl Drop for Service {
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
    let mut agent = Service::start(&manager, &["agent", "-c", config.to_str().unwrap()], 900_000);
    let heard = manager.hears("READY=1");
    assert!(heard.last().unwrap().contains("STATUS=tracing; events go to blkkin.events"), "{heard:?}");
    (0..3).for_each(|_| drop(manager.hears("WATCHDOG=1")));

    let words = fs::read_to_string(&said).unwrap();
    let address = address(&words);
    assert!(get(address, "/health").contains(" 200 OK"));
    // Of a cluster that never was there what hinders the search is told.
    let waits = || get(address, "/health").contains("\r\n\r\nhealthy\nwaiting since 20");
    assert!(eventually(waits), "{}", get(address, "/health"));
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

    agent.ask_to_end();
    let heard = manager.hears("STOPPING=1");
    assert!(heard.last().unwrap().contains("EXTEND_TIMEOUT_USEC=20000000"), "{heard:?}");
    assert_eq!(agent.0.wait().unwrap().code(), Some(1), "what was not delivered is no success");
}

#[test]
fn who_waits_for_a_cluster_is_alive_and_not_ready_and_who_has_it_is_ready() {
    let mut broker = or_skip!(Broker::start());
    broker.kill();
    let brokers = broker.settings().brokers;
    let start = |name: &str, more: &[&str]| {
        let manager = Manager::new();
        let words = [&[name, "--brokers", &brokers, "--metrics", "127.0.0.1:0"], more].concat();
        let service = Service::start(&manager, &words, 60_000_000);
        (manager, service)
    };
    let file = tempfile::tempdir().unwrap();
    let to = format!("zipkin={}", file.path().join("spans.json").display());
    let two = [start("aggregator", &[]), start("exporter", &["--to", &to])];
    for (manager, _) in &two {
        let mut heard = manager.hears("STATUS=cannot reach the Kafka cluster at ");
        heard.extend(manager.hears("EXTEND_TIMEOUT_USEC=30000000"));
        heard.extend(manager.hears("WATCHDOG=1"));
        assert!(!heard.concat().contains("READY=1"), "{heard:?}");
        let said = fs::read_to_string(manager.folder.path().join("said")).unwrap();
        assert_eq!(said.matches("cannot reach").count(), 1, "{said}");
        let health = get(address(&said), "/health");
        assert!(health.contains(" 200 OK") && health.contains("healthy\nwaiting since 20"), "{health}");
    }
    // Told to end it ends, whatever it waits for.
    let (manager, mut waiting) = start("exporter", &["--to", "zipkin=http://127.0.0.1:1"]);
    manager.hears("WATCHDOG=1");
    waiting.ask_to_end();
    assert_eq!(waiting.0.wait().unwrap().code(), Some(0));

    broker.up();
    for ((manager, mut service), begun) in two.into_iter().zip(["aggregating", "exporting"]) {
        let heard = manager.hears("READY=1");
        assert!(heard.last().unwrap().contains(&format!("STATUS={begun}")), "{heard:?}");
        let said = fs::read_to_string(manager.folder.path().join("said")).unwrap();
        assert!(!get(address(&said), "/health").contains("waiting"), "{said}");
        service.ask_to_end();
        manager.hears("STOPPING=1");
        assert_eq!(service.0.wait().unwrap().code(), Some(0), "{said}");
    }
}

/// It goes on and is well, and says who is away: the cluster that was there and is stopped, until it is there again.
#[test]
fn an_agent_says_since_when_its_cluster_is_away() {
    needs!("losetup", "dd");
    let disk = or_skip!(Disk::raw(16 << 20));
    let mut broker = or_skip!(Broker::start());
    let brokers = broker.settings().brokers;
    for spool in ["off", &disk.file("spool").display().to_string()] {
        let manager = Manager::new();
        let words = ["agent", "--brokers", &brokers, "--device", disk.name(), "--spool", spool];
        let words = [&words[..], &["--metrics", "127.0.0.1:0"]].concat();
        let mut agent = Service::start(&manager, &words, 60_000_000);
        manager.hears("READY=1");
        let said = || fs::read_to_string(manager.folder.path().join("said")).unwrap();
        let ask = |path: &str| get(address(&said()), path);
        let health = |words: &[&str]| {
            let found = eventually(|| {
                let health = ask("/health");
                assert!(health.contains(" 200 OK") && health.contains("\r\n\r\nhealthy\n"), "{health}");
                words.iter().all(|word| health.contains(word))
            });
            assert!(found, "no {words:?} in {}", ask("/health"));
        };
        let delivered = || value(&ask("/metrics"), "blkkin_agent_events_delivered_total");
        read(&disk);
        assert!(eventually(|| delivered() > 0.0), "{}", said());
        assert!(ask("/health").ends_with("\r\n\r\nhealthy\n"), "{}", ask("/health"));
        broker.kill();
        read(&disk);
        health(&[
            "\nblkkin.events is unreachable since 20",
            "cannot reach the Kafka cluster at ",
            "Connection refused",
        ]);
        let before = delivered();
        broker.up();
        assert!(eventually(|| delivered() > before), "{}", said());
        assert!(eventually(|| ask("/health").ends_with("\r\n\r\nhealthy\n")), "{}", ask("/health"));
        agent.ask_to_end();
        assert_eq!(agent.0.wait().unwrap().code(), Some(0), "{}", said());
        let told = ["blkkin.events is unreachable: cannot reach", "blkkin.events is reachable again after "];
        assert_eq!(told.map(|words| said().matches(words).count()), [1, 1], "{}", said());
    }
}

/// As the unit in configs/ has it: a user that is nobody, and what is in CapabilityBoundingSet.
#[test]
fn two_capabilities_are_enough() {
    needs!("losetup", "dd", "setpriv");
    let disk = or_skip!(Disk::raw(16 << 20));
    let folder = tempfile::tempdir().unwrap();
    let binary = common::copy_for_unprivileged(folder.path());
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
    let live = LiveTrace::start(&mut tracer, report);
    read(&disk);
    let report = live.finish();
    // An end that no program could see is in the books.
    let missed = report["losses"]["ends_missed"].as_u64().unwrap();
    assert_eq!(report["losses"]["total"], missed, "{}", report["losses"]);
    let requests = report["totals"]["requests"].as_u64().unwrap();
    assert!(requests + missed >= 64, "{report}");
}
