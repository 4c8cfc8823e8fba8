//! Privileges of a process while it traces or serves: capabilities of every thread, the filter of
//! system calls, and what a command of `blkkin run` keeps.
//!
//! *Input*: processes started by root, with all capabilities. *Output*: what `/proc/PID/task/TID/status`
//! shows of each thread, once the process works.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::common;
use crate::support::disk::Disk;
use crate::support::live::{LiveTrace, eventually};
use crate::support::metrics::{address, get, value};
use crate::support::service::{Service, kernel_log};
use crate::support::{needs, or_skip};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Bits of include/uapi/linux/capability.h.
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const KILL: u64 = 1 << 5;
const SYS_PTRACE: u64 = 1 << 19;
/// Of scanning other processes for contexts.
const CONTEXTS: u64 = SYS_PTRACE | DAC_READ_SEARCH;

/// A thread's name and the values of its status.
type Threads = Vec<(String, BTreeMap<String, String>)>;

fn threads(pid: u32) -> Threads {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let status = |path: &Path| fs::read_to_string(path.join("status")).ok();
    let parse = |status: String| {
        let pairs = status.lines().filter_map(|line| line.split_once(":\t"));
        let values: BTreeMap<_, _> = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        (values["Name"].clone(), values)
    };
    tasks.filter_map(|task| status(&task.path())).map(parse).collect()
}

fn mask(values: &BTreeMap<String, String>, set: &str) -> u64 {
    u64::from_str_radix(&values[set], 16).unwrap()
}

/// Asserts that each thread has at most the capabilities that its name allows.
#[track_caller]
fn assert_confined(pid: u32, allowed: impl Fn(&str) -> u64) {
    let threads = threads(pid);
    assert!(threads.len() > 1, "{threads:?}");
    for (name, values) in threads {
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"] {
            let excess = mask(&values, set) & !allowed(&name);
            assert_eq!(excess, 0, "{name}: {set} has {excess:#x} too much");
        }
        assert_eq!((&*values["NoNewPrivs"], &*values["Seccomp"]), ("1", "2"), "{name}");
    }
}

/// Asserts that the kernel has denied no call of this process. Its log has an audit record of each.
#[track_caller]
fn assert_no_call_was_denied(pid: u32) {
    let log = kernel_log();
    let of_process = format!(" pid={pid} ");
    let denied: Vec<_> =
        log.lines().filter(|line| line.contains("type=1326") && line.contains(&of_process)).collect();
    assert!(denied.is_empty(), "{denied:?}");
}

/// Reads 64 times and waits until the agent has the requests.
fn assert_traces(disk: &Disk, agent: &Service) {
    let output = agent.output();
    let requests = || {
        let metrics = get(address(&output), "/metrics");
        value(&metrics, "blkkin_records_read_total{kind=\"request\"}")
    };
    let before = requests();
    disk.make_64_reads();
    assert!(eventually(|| requests() >= before + 64.0), "{}", agent.output());
}

#[test]
fn an_agent_keeps_only_what_finding_contexts_needs() {
    needs!("losetup", "dd");
    let disk = or_skip!(Disk::raw(16 << 20));
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    for (contexts, kept) in [("all", CONTEXTS), ("off", 0)] {
        let args = ["agent", "--brokers", "127.0.0.1:1", "--metrics", "127.0.0.1:0", "--contexts", contexts];
        let more = ["--device", disk.name(), "--spool", spool.to_str().unwrap()];
        let agent = Service::start(folder.path(), contexts, &[&args[..], &more].concat());
        agent.wait_for_output("tracing; events go to", TIMEOUT);
        assert_confined(agent.id(), |thread| match thread {
            "drain" | "contexts" => kept,
            "machines" => kept & SYS_PTRACE,
            _ => 0,
        });
        assert_traces(&disk, &agent);
        assert_confined(agent.id(), |thread| match thread {
            "drain" | "contexts" => kept,
            "machines" => kept & SYS_PTRACE,
            _ => 0,
        });
        // Kernel objects and files that outlive a killed agent are still removed at the end.
        let pid = agent.id();
        let (_, log) = agent.finish();
        assert_no_call_was_denied(pid);
        assert!(!log.contains("Permission denied") && !log.contains("not permitted"), "{log}");
    }
}

#[test]
fn services_without_tracing_keep_nothing() {
    let broker = or_skip!(Broker::start());
    let folder = tempfile::tempdir().unwrap();
    let brokers = broker.settings().brokers;
    let to = format!("zipkin={}", folder.path().join("spans.json").display());
    let start = |name: &str, more: &[&str]| {
        Service::start(
            folder.path(),
            name,
            &[&[name, "--brokers", &brokers, "--metrics", "127.0.0.1:0"], more].concat(),
        )
    };
    let services = [start("aggregator", &[]), start("exporter", &["--to", &to])];
    for (service, ready) in services.into_iter().zip(["aggregating; events from", "exporting"]) {
        service.wait_for_output(ready, TIMEOUT);
        assert_confined(service.id(), |_| 0);
        let pid = service.id();
        service.finish_without_error();
        assert_no_call_was_denied(pid);
    }
}

#[test]
fn a_trace_keeps_what_its_files_need() {
    needs!("losetup", "dd");
    let disk = or_skip!(Disk::raw(16 << 20));
    let folder = tempfile::tempdir().unwrap();
    // Root may write here by CAP_DAC_OVERRIDE alone, as into a user's folder under sudo.
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
    let spans = folder.path().join("spans.json");
    let to = format!("zipkin={}", spans.display());
    let args = ["--device", disk.name(), "--to", &to];
    let trace = LiveTrace::trace(&args, folder.path().join("report.json"));
    let dropped =
        || threads(trace.pid()).iter().any(|(name, v)| name == "blkkin" && mask(v, "CapEff") < CONTEXTS);
    assert!(eventually(dropped));
    assert_confined(trace.pid(), |thread| match thread {
        "drain" | "contexts" => CONTEXTS,
        "signals" => 0,
        "machines" => SYS_PTRACE,
        _ => DAC_OVERRIDE,
    });
    disk.make_64_reads();
    let pid = trace.pid();
    let report = trace.finish();
    assert_no_call_was_denied(pid);
    assert!(report["totals"]["requests"].as_u64().unwrap() > 0, "{report}");
    assert!(fs::read_to_string(spans).unwrap().starts_with('['));
}

/// CMD has the rights that blkkin was started with, and receives forwarded signals also as another
/// user.
#[test]
fn a_command_keeps_its_rights() {
    needs!("setpriv");
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let rights = |status: &str| {
        let lines =
            status.lines().filter(|l| ["Cap", "NoNewPrivs", "Seccomp:"].iter().any(|p| l.starts_with(p)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // A second after its start, when blkkin has long dropped its own.
    let run = common::run(&["run", "--no-report", "--", "sh", "-c", "sleep 1; cat /proc/$$/status"]);
    assert_eq!((run.code, rights(&run.stdout)), (Some(0), rights(&own)), "{run:?}");

    let folder = tempfile::tempdir().unwrap();
    let script = "exec setpriv --reuid=65534 --regid=65534 --clear-groups -- \
         sh -c 'trap \"exit 7\" TERM; echo up; for i in $(seq 1500); do sleep 0.02; done'";
    let output = fs::File::create(folder.path().join("output")).unwrap();
    let mut command = common::blkkin(&["run", "--no-report", "--", "sh", "-c", script]);
    let mut blkkin = KillOnDrop(command.stdout(output).spawn().unwrap());
    let up = || fs::read_to_string(folder.path().join("output")).unwrap().contains("up");
    assert!(eventually(up));
    // CMD starts first. The filter of system calls is the last that blkkin sets.
    let status = format!("/proc/{}/status", blkkin.0.id());
    assert!(eventually(|| fs::read_to_string(&status).unwrap().contains("\nSeccomp:\t2")));
    assert_confined(blkkin.0.id(), |thread| match thread {
        "drain" | "contexts" => CONTEXTS,
        "signals" => 0,
        "machines" => SYS_PTRACE,
        _ => DAC_OVERRIDE | KILL,
    });
    // SAFETY: numbers only; the process has not been waited for.
    unsafe { libc::kill(blkkin.0.id() as libc::pid_t, libc::SIGTERM) };
    assert_eq!(blkkin.0.wait().unwrap().code(), Some(7));
}
