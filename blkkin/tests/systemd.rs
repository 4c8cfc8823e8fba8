//! The units in configs/ under a real systemd as the first process: what it makes of them, in numbers of the kernel; and what it does
//! to a service that is killed, stops answering, or is told to stop. Nothing of the units is changed but where the binary lies, how
//! long the watchdog waits, and where words go.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod support;
#[path = "support/systemd.rs"]
mod systemd;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use broker::Broker;
use support::disk::Disk;
use support::live::eventually;
use support::metrics::{address, get, value};
use support::{needs, or_skip};
use systemd::Systemd;

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs");
const AGENT: &str = "blkkin-agent";
/// What the watchdog of a test waits for; the units say 60 and 180.
const WATCHDOG_S: u64 = 4;
const READS: u64 = 64;
/// CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_SYSLOG, CAP_PERFMON and CAP_BPF (include/uapi/linux/capability.h).
const OF_AGENT: u64 = 1 << 19 | 1 << 23 | 1 << 34 | 1 << 38 | 1 << 39;

/// A unit's files: itself, what the test says besides, and its options.
fn files(service: &str, options: &str) -> [(String, String); 3] {
    let name = format!("blkkin-{service}.service");
    let unit = fs::read_to_string(Path::new(CONFIGS).join(&name)).unwrap();
    let unit = unit.replace("/usr/local/bin/blkkin", "/opt/blkkin");
    let besides =
        format!("[Service]\nWatchdogSec={WATCHDOG_S}\nStandardError=append:/run/blkkin-{service}.said\n");
    [
        (format!("systemd/system/{name}"), unit),
        (format!("systemd/system/{name}.d/test.conf"), besides),
        (format!("blkkin/{service}.toml"), format!("{options}metrics = \"127.0.0.1:0\"\n")),
    ]
}

/// What it and those before it have said.
fn said(systemd: &Systemd, unit: &str) -> String {
    systemd.read(&format!("/run/{unit}.said"))
}

/// Of the process that runs now.
fn figures(systemd: &Systemd, unit: &str) -> String {
    let said = said(systemd, unit);
    let latest = said.rfind("metrics at http://").map(|at| &said[at..]).unwrap_or_default();
    get(address(latest), "/metrics")
}

fn main_pid(systemd: &Systemd, unit: &str) -> String {
    systemd.property(unit, "MainPID")
}

/// A set of capabilities of its process, as the kernel has it.
fn capabilities(systemd: &Systemd, unit: &str, set: &str) -> u64 {
    let status = systemd.read(&format!("/proc/{}/status", main_pid(systemd, unit)));
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{set}:")));
    u64::from_str_radix(line.unwrap_or_else(|| panic!("{status}")).trim(), 16).unwrap()
}

/// Runs, and is another process than before.
fn runs_again(systemd: &Systemd, before: &str) -> bool {
    let pid = main_pid(systemd, AGENT);
    pid != "0" && pid != before && systemd.property(AGENT, "ActiveState") == "active"
}

fn read(disk: &Disk) {
    let (from, count) = (format!("if={}", disk.node().display()), format!("count={READS}"));
    let words = [&from, "of=/dev/null", "bs=4k", &count, "iflag=direct"];
    assert!(Command::new("dd").args(words).stderr(Stdio::null()).status().unwrap().success());
}

#[test]
fn the_units_do_under_systemd_what_they_say() {
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

    // `start` returns when the service has said that it is ready.
    for (unit, rights) in [(AGENT, OF_AGENT), ("blkkin-aggregator", 0), ("blkkin-exporter", 0)] {
        let started = systemd.systemctl(&["start", unit]);
        let status = || systemd.property(unit, "ExecMainStatus");
        assert!(started.is_ok(), "{started:?}, {}\n{}", status(), said(&systemd, unit));
        assert_eq!(systemd.property(unit, "ActiveState"), "active");
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            let found = capabilities(&systemd, unit, set);
            assert_eq!(found, rights, "{unit}: {set} {found:#x}");
        }
        let status = systemd.read(&format!("/proc/{}/status", main_pid(&systemd, unit)));
        assert!(status.contains("NoNewPrivs:\t1") && !status.contains("Uid:\t0"), "{status}");
        println!("{unit}: active, {} capabilities", rights.count_ones());
    }

    // Each at work, by what it may do.
    read(&disk);
    let wanted = (3 * READS) as f64;
    let acknowledged = || {
        let figures = figures(&systemd, "blkkin-exporter");
        let lines =
            figures.lines().filter(|line| line.starts_with("blkkin_exporter_spans_acknowledged_total"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    // An end that no program could see is in the agent's books.
    assert!(eventually(|| acknowledged() >= wanted - 9.0), "{}", figures(&systemd, "blkkin-exporter"));

    // Killed: systemd starts it again, and has kept the counters, so it is known what was lost.
    let stored = || systemd.property(AGENT, "NFileDescriptorStore");
    assert_eq!(stored(), "2", "the counters and the ledger");
    let killed = main_pid(&systemd, AGENT);
    systemd.run(&["kill", "-KILL", &killed]).unwrap();
    assert!(eventually(|| runs_again(&systemd, &killed)), "{}", said(&systemd, AGENT));
    let starts = |losses: &str| {
        value(&figures(&systemd, AGENT), &format!("blkkin_crashed_runs_total{{losses=\"{losses}\"}}"))
    };
    assert_eq!((starts("known"), starts("unknown")), (1.0, 0.0), "{}", said(&systemd, AGENT));
    assert!(said(&systemd, AGENT).contains(" was killed: "), "{}", said(&systemd, AGENT));
    // Those of the dead are let go once their losses are told.
    assert!(eventually(|| stored() == "2"), "{}", stored());

    // It stops answering: systemd misses its words, ends it, and starts it again.
    let stopped = main_pid(&systemd, AGENT);
    systemd.run(&["kill", "-STOP", &stopped]).unwrap();
    assert!(eventually(|| systemd.property(AGENT, "Result") == "watchdog"), "{}", said(&systemd, AGENT));
    assert!(eventually(|| runs_again(&systemd, &stopped)), "{}", said(&systemd, AGENT));
    assert_eq!(systemd.property(AGENT, "NRestarts"), "2");

    // Told to stop, each sends what it has, says so, and ends well.
    read(&disk);
    for unit in [AGENT, "blkkin-exporter", "blkkin-aggregator"] {
        systemd.systemctl(&["stop", unit]).unwrap();
        let how = ["ActiveState", "Result", "ExecMainStatus"].map(|name| systemd.property(unit, name));
        assert_eq!(how, ["inactive", "success", "0"], "{unit}: {}", said(&systemd, unit));
    }
    assert_eq!(stored(), "0", "who ends well leaves nothing");
    let words = said(&systemd, AGENT);
    let last = words.lines().rev().find(|line| line.contains("events delivered to")).unwrap_or(&words);
    let delivered = last.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap();
    assert!(delivered + 3 >= 3 * READS && !words.contains("stay in the spool"), "{words}");
    assert!(systemd.read(spans).contains("\"traceId\""), "{}", said(&systemd, "blkkin-exporter"));
}
