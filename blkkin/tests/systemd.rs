//! The units in configs/ under a real systemd as PID 1: capabilities, readiness, restart after a
//! kill, watchdog, and a clean stop.
//!
//! *Input*: the units, changed only in the path of the binary, the watchdog interval, and the
//! target of standard error. Capabilities are read from `/proc`, states from systemd, and requests
//! are compared with the reads of `dd`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::broker::Broker;
use crate::support::disk::Disk;
use crate::support::live::eventually;
use crate::support::metrics::{address, get, value};
use crate::support::systemd::Systemd;
use crate::support::{needs, or_skip};

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs");
const AGENT: &str = "blkkin-agent";
/// Watchdog interval of this test; the units specify 60 and 180.
const WATCHDOG_S: u64 = 4;
const READS: u64 = 64;
/// CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_SYSLOG, CAP_PERFMON and CAP_BPF
/// (include/uapi/linux/capability.h).
const AGENT_CAPABILITIES: u64 = 1 << 19 | 1 << 23 | 1 << 34 | 1 << 38 | 1 << 39;

/// Returns a unit's files: the unit, the test's drop-in, and the options.
fn files(service: &str, options: &str) -> [(String, String); 3] {
    let name = format!("blkkin-{service}.service");
    let unit = fs::read_to_string(Path::new(CONFIGS).join(&name)).unwrap();
    let unit = unit.replace("/usr/local/bin/blkkin", "/opt/blkkin");
    let drop_in =
        format!("[Service]\nWatchdogSec={WATCHDOG_S}\nStandardError=append:/run/blkkin-{service}.log\n");
    [
        (format!("systemd/system/{name}"), unit),
        (format!("systemd/system/{name}.d/test.conf"), drop_in),
        (format!("blkkin/{service}.toml"), format!("{options}metrics = \"127.0.0.1:0\"\n")),
    ]
}

/// Returns the log of this process and of those before it.
fn log(systemd: &Systemd, unit: &str) -> String {
    systemd.read(&format!("/run/{unit}.log"))
}

/// Reads the metrics of the process that runs now.
fn metrics(systemd: &Systemd, unit: &str) -> String {
    let log = log(systemd, unit);
    let latest = log.rfind("metrics at http://").map(|at| &log[at..]).unwrap_or_default();
    get(address(latest), "/metrics")
}

fn main_pid(systemd: &Systemd, unit: &str) -> String {
    systemd.property(unit, "MainPID")
}

/// Returns a capability set of the unit's process, from the kernel.
fn capabilities(systemd: &Systemd, unit: &str, set: &str) -> u64 {
    let status = systemd.read(&format!("/proc/{}/status", main_pid(systemd, unit)));
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{set}:")));
    u64::from_str_radix(line.unwrap_or_else(|| panic!("{status}")).trim(), 16).unwrap()
}

/// Returns whether the agent runs as another process than before.
fn runs_again(systemd: &Systemd, before: &str) -> bool {
    let pid = main_pid(systemd, AGENT);
    pid != "0" && pid != before && systemd.property(AGENT, "ActiveState") == "active"
}

fn read(disk: &Disk) {
    let (from, count) = (format!("if={}", disk.node().display()), format!("count={READS}"));
    let args = [&from, "of=/dev/null", "bs=4k", &count, "iflag=direct"];
    assert!(Command::new("dd").args(args).stderr(Stdio::null()).status().unwrap().success());
}

#[test]
fn the_units_work_under_systemd() {
    needs!("losetup", "dd", "unshare", "nsenter");
    let disk = or_skip!(Disk::raw(16 << 20));
    let broker = or_skip!(Broker::start());
    let brokers = format!("brokers = \"{}\"\npartitions = 3\n", broker.settings().brokers);
    let spans = "/var/lib/blkkin/spans.json";
    let all = [
        files("agent", &format!("{brokers}device = [\"{}\"]\n", disk.name())),
        files("aggregator", &brokers),
        files(
            "exporter",
            &format!("brokers = \"{}\"\nto = [\"zipkin={spans}\"]\n", broker.settings().brokers),
        ),
    ];
    let systemd = or_skip!(Systemd::start(&all.concat(), Path::new(env!("CARGO_BIN_EXE_blkkin"))));
    println!("{}", systemd.run(&["systemctl", "--version"]).unwrap().lines().next().unwrap());

    // `systemctl start` returns when the service has reported readiness.
    for (unit, expected) in [(AGENT, AGENT_CAPABILITIES), ("blkkin-aggregator", 0), ("blkkin-exporter", 0)] {
        let started = systemd.systemctl(&["start", unit]);
        let status = || systemd.property(unit, "ExecMainStatus");
        assert!(started.is_ok(), "{started:?}, {}\n{}", status(), log(&systemd, unit));
        assert_eq!(systemd.property(unit, "ActiveState"), "active");
        // An agent has dropped those that it needs for its start. Its bounding set is the unit's,
        // because the unit has no CAP_SETPCAP.
        for (set, expected) in [("CapEff", 0), ("CapPrm", 0), ("CapBnd", expected)] {
            let found = capabilities(&systemd, unit, set);
            assert_eq!(found, expected, "{unit}: {set} {found:#x}");
        }
        let log = log(&systemd, unit);
        let kept = if unit == AGENT { "capabilities: CAP_SYS_PTRACE; " } else { "capabilities: none; " };
        assert!(log.contains(kept) && log.contains(" system calls are denied"), "{log}");
        let status = systemd.read(&format!("/proc/{}/status", main_pid(&systemd, unit)));
        assert!(status.contains("NoNewPrivs:\t1") && !status.contains("Uid:\t0"), "{status}");
        println!("{unit}: active, {} capabilities at its start", expected.count_ones());
    }

    // Each service works with its capabilities.
    read(&disk);
    let wanted = (3 * READS) as f64;
    let acknowledged = || {
        let metrics = metrics(&systemd, "blkkin-exporter");
        let lines =
            metrics.lines().filter(|line| line.starts_with("blkkin_exporter_spans_acknowledged_total"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    // The agent counts a missed completion.
    assert!(eventually(|| acknowledged() >= wanted - 9.0), "{}", metrics(&systemd, "blkkin-exporter"));

    // After SIGKILL systemd restarts the agent, and its descriptor store has the counters, so the
    // losses are known.
    let stored = || systemd.property(AGENT, "NFileDescriptorStore");
    assert_eq!(stored(), "2", "counter map and progress map");
    let killed = main_pid(&systemd, AGENT);
    systemd.run(&["kill", "-KILL", &killed]).unwrap();
    assert!(eventually(|| runs_again(&systemd, &killed)), "{}", log(&systemd, AGENT));
    let starts = |losses: &str| {
        value(&metrics(&systemd, AGENT), &format!("blkkin_crashed_runs_total{{losses=\"{losses}\"}}"))
    };
    assert_eq!((starts("known"), starts("unknown")), (1.0, 0.0), "{}", log(&systemd, AGENT));
    assert!(log(&systemd, AGENT).contains(" was killed: "), "{}", log(&systemd, AGENT));
    // The crashed run's maps are closed once its losses are reported.
    assert!(eventually(|| stored() == "2"), "{}", stored());

    // After SIGSTOP the watchdog notifications are missing: systemd kills and restarts the agent.
    let stopped = main_pid(&systemd, AGENT);
    systemd.run(&["kill", "-STOP", &stopped]).unwrap();
    assert!(eventually(|| systemd.property(AGENT, "Result") == "watchdog"), "{}", log(&systemd, AGENT));
    assert!(eventually(|| runs_again(&systemd, &stopped)), "{}", log(&systemd, AGENT));
    assert_eq!(systemd.property(AGENT, "NRestarts"), "2");

    // On stop each service sends its pending data, reports the totals, and exits with 0.
    read(&disk);
    for unit in [AGENT, "blkkin-exporter", "blkkin-aggregator"] {
        systemd.systemctl(&["stop", unit]).unwrap();
        let state = ["ActiveState", "Result", "ExecMainStatus"].map(|name| systemd.property(unit, name));
        assert_eq!(state, ["inactive", "success", "0"], "{unit}: {}", log(&systemd, unit));
    }
    assert_eq!(stored(), "0", "a normal exit leaves nothing");
    let log_text = log(&systemd, AGENT);
    let last = log_text.lines().rev().find(|line| line.contains("events delivered to")).unwrap_or(&log_text);
    let delivered = last.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap();
    assert!(delivered + 3 >= 3 * READS && !log_text.contains("stay in the spool"), "{log_text}");
    assert!(systemd.read(spans).contains("\"traceId\""), "{}", log(&systemd, "blkkin-exporter"));
}

/// Returns the drop-in that docs/daemons.md recommends.
fn documented_drop_in() -> (String, String) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/daemons.md");
    let text = fs::read_to_string(docs).unwrap();
    let (_, rest) = text.split_once("```ini\n# /etc/").unwrap();
    let (name, rest) = rest.split_once('\n').unwrap();
    (name.to_owned(), rest.split_once("```").unwrap().0.to_owned())
}

/// Root's session daemon runs outside of the unit. The relay needs a network namespace, which the
/// unit itself does not allow.
#[test]
fn the_documented_drop_in_lets_the_agent_receive_daemon_events() {
    needs!("unshare", "nsenter", "lttng", "lttng-relayd");
    let options = "record = \"/var/lib/blkkin-agent/recording\"\nust = true\n";
    let groups = ("group".to_owned(), "root:x:0:\ntracing:x:110:\n".to_owned());
    let all = [&files("agent", options)[..], &[documented_drop_in(), groups]].concat();
    let systemd = or_skip!(Systemd::start(&all, Path::new(env!("CARGO_BIN_EXE_blkkin"))));
    systemd.run(&["ln", "-s", "/run", "/var/run"]).unwrap();
    // It keeps its output open.
    systemd.run(&["sh", "-c", "lttng-sessiond --no-kernel --background >/dev/null 2>&1"]).unwrap();
    let started = systemd.systemctl(&["start", AGENT]);
    assert!(started.is_ok(), "{started:?}\n{}", log(&systemd, AGENT));
    let sessions = systemd.run(&["lttng", "--no-sessiond", "list"]).unwrap();
    assert!(sessions.contains("blkkin-"), "{sessions}");
    assert!(metrics(&systemd, AGENT).contains("blkkin_daemon_session_restarts_total 0"));
    // The relay has neither the machine's network nor its user namespace.
    let namespace =
        |pid: &str, kind: &str| systemd.run(&["readlink", &format!("/proc/{pid}/ns/{kind}")]).unwrap();
    let (agent, relay) = (main_pid(&systemd, AGENT), systemd.run(&["pidof", "lttng-relayd"]).unwrap());
    for kind in ["net", "user"] {
        assert_ne!(namespace(relay.trim(), kind), namespace(&agent, kind), "{kind}");
    }
    systemd.systemctl(&["stop", AGENT]).unwrap();
    assert_eq!(systemd.property(AGENT, "ExecMainStatus"), "0", "{}", log(&systemd, AGENT));
}
