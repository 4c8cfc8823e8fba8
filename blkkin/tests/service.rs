//! Services as their service manager and their monitoring see them: readiness, watchdog, status and
//! health, and the minimum capabilities of an agent.
//!
//! *Input*: a Unix socket in place of systemd's notify socket, a real broker that is stopped and
//! started, and 64 reads of a loop device. The number of requests is compared with the number of
//! reads.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::common;
use crate::support::disk::Disk;
use crate::support::live::{LiveTrace, eventually};
use crate::support::metrics::{address, get, value};
use crate::support::{needs, or_skip};
use tempfile::TempDir;

/// Address without a listener: an agent must trace without a cluster too.
const NO_CLUSTER: &str = "127.0.0.1:1";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Stand-in for systemd, which receives the notifications of a service.
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

    /// Receives notifications until one contains `wanted`, and returns all.
    fn receive_until(&self, wanted: &str) -> Vec<String> {
        let (start, mut received, mut buffer) = (Instant::now(), Vec::<String>::new(), [0; 4096]);
        while start.elapsed() < TIMEOUT {
            let Ok(len) = self.socket.recv(&mut buffer) else { continue };
            received.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
            if received.last().unwrap().contains(wanted) {
                return received;
            }
        }
        panic!("no {wanted} in {received:?}");
    }
}

/// A service that is killed on drop.
struct Service(KillOnDrop);

impl Service {
    /// Starts a service with this manager and this watchdog interval in µs.
    fn start(manager: &Manager, args: &[&str], watchdog_us: u64) -> Service {
        let log_file = fs::File::create(manager.folder.path().join("log")).unwrap();
        let mut command = common::blkkin(args);
        command.env("NOTIFY_SOCKET", manager.folder.path().join("notify"));
        command.env("WATCHDOG_USEC", watchdog_us.to_string());
        Service(KillOnDrop(command.stdout(Stdio::null()).stderr(log_file).spawn().unwrap()))
    }

    /// Sends SIGTERM, as systemd does.
    fn terminate(&self) {
        // SAFETY: numbers only; the process has not been waited for.
        unsafe { libc::kill(self.0.0.id() as libc::pid_t, libc::SIGTERM) };
    }
}

#[test]
fn manager_and_monitoring_receive_the_agents_state() {
    needs!("losetup", "dd");
    let disk = or_skip!(Disk::raw(16 << 20));
    let manager = Manager::new();
    let log_file = manager.folder.path().join("log");
    let config = manager.folder.path().join("agent.toml");
    let lines = format!("brokers = '{NO_CLUSTER}'\ndevice = ['{}']\nmetrics = '127.0.0.1:0'\n", disk.name());
    fs::write(&config, lines).unwrap();
    let mut agent = Service::start(&manager, &["agent", "-c", config.to_str().unwrap()], 900_000);
    let received = manager.receive_until("READY=1");
    assert!(received.last().unwrap().contains("STATUS=tracing; events go to blkkin.events"), "{received:?}");
    (0..3).for_each(|_| drop(manager.receive_until("WATCHDOG=1")));

    let log = fs::read_to_string(&log_file).unwrap();
    let address = address(&log);
    // While the first connection fails, the health page shows the reason.
    let is_waiting = || get(address, "/health").starts_with("healthy\nwaiting since 20");
    assert!(eventually(is_waiting), "{}", get(address, "/health"));
    disk.make_64_reads();
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

    agent.terminate();
    let received = manager.receive_until("STOPPING=1");
    assert!(received.last().unwrap().contains("EXTEND_TIMEOUT_USEC=20000000"), "{received:?}");
    assert_eq!(agent.0.0.wait().unwrap().code(), Some(1), "undelivered events are a failure");
}

#[test]
fn a_service_that_waits_for_its_cluster_is_healthy_but_not_ready() {
    let mut broker = or_skip!(Broker::start());
    broker.kill();
    let brokers = broker.settings().brokers;
    let start = |name: &str, more: &[&str]| {
        let manager = Manager::new();
        let args = [&[name, "--brokers", &brokers, "--metrics", "127.0.0.1:0"], more].concat();
        let service = Service::start(&manager, &args, 60_000_000);
        (manager, service)
    };
    let file = tempfile::tempdir().unwrap();
    let to = format!("zipkin={}", file.path().join("spans.json").display());
    let two = [start("aggregator", &[]), start("exporter", &["--to", &to])];
    for (manager, _) in &two {
        let mut received = manager.receive_until("STATUS=cannot reach the Kafka cluster at ");
        received.extend(manager.receive_until("EXTEND_TIMEOUT_USEC=30000000"));
        received.extend(manager.receive_until("WATCHDOG=1"));
        assert!(!received.concat().contains("READY=1"), "{received:?}");
        let log_file = fs::read_to_string(manager.folder.path().join("log")).unwrap();
        assert_eq!(log_file.matches("cannot reach").count(), 1, "{log_file}");
        let health = get(address(&log_file), "/health");
        assert!(health.starts_with("healthy\nwaiting since 20"), "{health}");
    }
    // A waiting service also exits on SIGTERM.
    let (manager, mut waiting) = start("exporter", &["--to", "zipkin=http://127.0.0.1:1"]);
    manager.receive_until("WATCHDOG=1");
    waiting.terminate();
    assert_eq!(waiting.0.0.wait().unwrap().code(), Some(0));

    broker.up();
    for ((manager, mut service), start) in two.into_iter().zip(["aggregating", "exporting"]) {
        let received = manager.receive_until("READY=1");
        assert!(received.last().unwrap().contains(&format!("STATUS={start}")), "{received:?}");
        let log_file = fs::read_to_string(manager.folder.path().join("log")).unwrap();
        assert!(!get(address(&log_file), "/health").contains("waiting"), "{log_file}");
        service.terminate();
        manager.receive_until("STOPPING=1");
        assert_eq!(service.0.0.wait().unwrap().code(), Some(0), "{log_file}");
    }
}

/// The agent continues and is healthy while its cluster is stopped, and reports it as unreachable
/// until it is back.
#[test]
fn an_agent_reports_since_when_its_cluster_is_unreachable() {
    needs!("losetup", "dd");
    let disk = or_skip!(Disk::raw(16 << 20));
    let mut broker = or_skip!(Broker::start());
    let brokers = broker.settings().brokers;
    for spool in ["off", &disk.file("spool").display().to_string()] {
        let manager = Manager::new();
        let args = ["agent", "--brokers", &brokers, "--device", disk.name(), "--spool", spool];
        let args = [&args[..], &["--metrics", "127.0.0.1:0"]].concat();
        let mut agent = Service::start(&manager, &args, 60_000_000);
        manager.receive_until("READY=1");
        let log = || fs::read_to_string(manager.folder.path().join("log")).unwrap();
        let fetch = |path: &str| get(address(&log()), path);
        // Each disk has a line as well.
        let notes = || -> Vec<String> {
            let health = fetch("/health");
            let lines = health.lines().filter(|line| !line.contains(" explained: "));
            lines.map(str::to_owned).collect()
        };
        let health = |texts: &[&str]| {
            let found = eventually(|| {
                let health = fetch("/health");
                assert!(health.starts_with("healthy\n"), "{health}");
                texts.iter().all(|text| health.contains(text))
            });
            assert!(found, "no {texts:?} in {}", fetch("/health"));
        };
        let delivered = || value(&fetch("/metrics"), "blkkin_agent_events_delivered_total");
        disk.make_64_reads();
        assert!(eventually(|| delivered() > 0.0), "{}", log());
        assert_eq!(notes(), ["healthy"]);
        broker.kill();
        disk.make_64_reads();
        health(&[
            "\nblkkin.events is unreachable since 20",
            "cannot reach the Kafka cluster at ",
            "Connection refused",
        ]);
        let before = delivered();
        broker.up();
        assert!(eventually(|| delivered() > before), "{}", log());
        assert!(eventually(|| notes() == ["healthy"]), "{}", fetch("/health"));
        agent.terminate();
        assert_eq!(agent.0.0.wait().unwrap().code(), Some(0), "{}", log());
        let transitions =
            ["blkkin.events is unreachable: cannot reach", "blkkin.events is reachable again after "];
        assert_eq!(transitions.map(|text| log().matches(text).count()), [1, 1], "{}", log());
    }
}

/// Capabilities as in the unit in configs/: an unprivileged user and the CapabilityBoundingSet.
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
    // The unprivileged user may not create files there.
    fs::write(&report, "").unwrap();
    std::os::unix::fs::chown(&report, Some(65534), None).unwrap();
    let live = LiveTrace::start(&mut tracer, report);
    disk.make_64_reads();
    let report = live.finish();
    // A missed completion is counted.
    let missed = report["losses"]["ends_missed"].as_u64().unwrap();
    assert_eq!(report["losses"]["total"], missed, "{}", report["losses"]);
    let requests = report["totals"]["requests"].as_u64().unwrap();
    assert!(requests + missed >= 64, "{report}");
}
