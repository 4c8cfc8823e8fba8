//! `blkkin ctl`: what an agent records changes while it runs.
//!
//! *Input*: direct reads of a loop device, in phases; each phase reads blocks of its own, so the offset of a
//! recorded call names its phase. *Independent count*: the test's own number of reads.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::{LayerEvent, SyscallEvent};
use blkkin_wire::head_sampling::KeptFor;
use serde_json::Value;

use crate::common::{self, Run};
use crate::support::disk::Disk;
use crate::support::service::Service;
use crate::support::{agent_recording, direct, metrics};
use crate::support::{needs, or_skip};

const LIMIT: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4096;
/// Blocks of a phase.
const BLOCKS: u64 = 16;
pub(crate) const READS: u64 = 1_000;

/// An agent with a control socket that records into a folder, and its disk.
pub(crate) struct Controlled {
    folder: tempfile::TempDir,
    pub(crate) agent: Service,
    disk: Disk,
    device: File,
}

impl Controlled {
    fn start(disk: Disk, options: &[&str]) -> Controlled {
        let folder = tempfile::tempdir().unwrap();
        let recording = path(folder.path(), "recording");
        Controlled::start_in(folder, disk, &[&["--record", &recording], options].concat())
    }

    /// Starts an agent with a target of its own.
    pub(crate) fn start_in(folder: tempfile::TempDir, disk: Disk, options: &[&str]) -> Controlled {
        let socket = path(folder.path(), "ctl.sock");
        let args = ["agent", "--ctl", &socket, "--metrics", "127.0.0.1:0"];
        let agent = Service::start(folder.path(), "agent", &[&args[..], options].concat());
        agent.wait_for_output("tracing; events go", LIMIT);
        let device = direct::open(disk.node());
        Controlled { folder, agent, disk, device }
    }

    fn ctl(&self, args: &[&str]) -> Run {
        let socket = path(self.folder.path(), "ctl.sock");
        common::run(&[&["ctl", "--socket", &socket], args].concat())
    }

    /// Changes the settings, and returns the printed state.
    pub(crate) fn change(&self, args: &[&str]) -> String {
        self.ctl(args).expect_code(0).stdout
    }

    /// Makes the reads of a phase.
    pub(crate) fn read(&self, phase: u64) {
        self.read_some(phase, READS);
    }

    fn read_some(&self, phase: u64, reads: u64) {
        for n in 0..reads {
            direct::read_at(&self.device, (phase * BLOCKS + n % BLOCKS) * BLOCK).unwrap();
        }
    }

    /// Waits until the printed state begins with this text, and returns it.
    pub(crate) fn wait_for_state(&self, begin: &str) -> String {
        let begun = Instant::now();
        loop {
            let state = self.change(&[]);
            if state.starts_with(begin) {
                return state;
            }
            assert!(begun.elapsed() < LIMIT, "{begin}: {state}\n{}", self.agent.output());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the agent; returns its output and its disk.
    pub(crate) fn stop(self) -> (String, Disk) {
        (self.agent.finish_without_error(), self.disk)
    }

    /// Ends the agent; returns its output and what it recorded.
    fn finish(self) -> (String, Vec<EventBatch>) {
        let output = self.agent.finish_without_error();
        (output, agent_recording::batches(&self.folder.path().join("recording")))
    }
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// Returns the recorded reads of a phase.
pub(crate) fn reads_of(batches: &[EventBatch], phase: u64) -> Vec<&SyscallEvent> {
    calls(batches)
        .filter(|call| call.args[3].is_multiple_of(BLOCK) && call.args[3] / BLOCK / BLOCKS == phase)
        .collect()
}

/// Returns the recorded reads of this thread.
fn calls(batches: &[EventBatch]) -> impl Iterator<Item = &SyscallEvent> {
    let (tid, events) = (tid(), || batches.iter().flat_map(|batch| &batch.events));
    let own: HashSet<_> = events()
        .filter_map(|event| match event {
            LayerEvent::Task(task) if task.tid.0 == tid => Some(task.task.id),
            _ => None,
        })
        .collect();
    events().filter_map(move |event| match event {
        LayerEvent::Syscall(call) if own.contains(&call.task.id) && call.call.name() == "pread64" => {
            Some(call)
        }
        _ => None,
    })
}

fn tid() -> u32 {
    // SAFETY: returns a number and cannot fail.
    unsafe { libc::gettid() as u32 }
}

#[test]
fn what_is_recorded_follows_each_change_at_once() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let agent = Controlled::start(disk, &[]);
    assert_eq!(agent.change(&[]), "now       each operation\n");
    agent.read(0);
    let state = agent.change(&["--sample", "1/16"]);
    assert!(state.starts_with("now       one operation in 16\nat start  each operation\n"), "{state}");
    agent.read(1);
    agent.change(&["--sample", "1/1024", "--keep", "failed"]);
    let mut failed = 0;
    for _ in 0..READS {
        // Not at a multiple of a sector.
        failed += u64::from(direct::read_at(&agent.device, 3).is_err());
    }
    assert_eq!(failed, READS);
    agent.change(&["--sample", "1/1", "--keep", "none"]);
    agent.read(2);
    assert!(agent.change(&["off"]).starts_with("now       no operation is recorded\n"));
    agent.read(3);
    // For a time, and then as before: nothing.
    let begun = Instant::now();
    let state = agent.change(&["on", "--for", "10s"]);
    assert!(
        state.starts_with("now       each operation\nthen      in 10s: no operation is recorded\n"),
        "{state}"
    );
    agent.read(4);
    assert!(begun.elapsed() < Duration::from_secs(10), "the machine is too slow for this test");
    agent.wait_for_state("now       no operation");
    assert!(begun.elapsed() >= Duration::from_secs(10));
    agent.read(5);
    agent.change(&["reset"]);
    agent.read(6);
    let json: Value = serde_json::from_str(&agent.change(&["--json"])).unwrap();
    assert_eq!((&json["now"], &json["now"]["sample"]), (&json["start"], &"1/1".into()), "{json:#}");
    // Six changes of this test, and the end of one.
    assert_eq!(json["changes"].as_array().unwrap().len(), 7, "{json:#}");
    assert_eq!(json["changes"][0]["what"], "reset");
    assert_eq!(json["changes"][6]["what"], "--sample 1/16");
    assert_eq!(json["changes"][6]["uid"], 0);

    let (output, batches) = agent.finish();
    let recorded: Vec<usize> = (0..7).map(|phase| reads_of(&batches, phase).len()).collect();
    println!("{recorded:?} of {READS} reads in each phase\n{output}");
    let all = READS as usize;
    assert_eq!((recorded[0], recorded[2], recorded[4], recorded[6]), (all, all, all, all), "{recorded:?}");
    assert_eq!((recorded[3], recorded[5]), (0, 0), "{recorded:?}");
    // One in 16 of 1,000: 62.5, and six standard deviations are 46.
    assert!((17..=108).contains(&recorded[1]), "{recorded:?}");
    assert!(reads_of(&batches, 1).iter().all(|call| call.sampling.one_in() == 16));
    let kept: Vec<_> = calls(&batches).filter(|call| call.args[3] == 3).collect();
    assert_eq!(kept.len(), all, "each failed read is kept");
    let is_weighed = |call: &&SyscallEvent| {
        call.sampling.one_in() == 1 && call.sampling.kept_for() == Some(KeptFor::Failed)
    };
    assert!(kept.iter().all(is_weighed), "a kept operation stands for itself alone");
    let stats = &batches.last().unwrap().stats;
    assert_eq!(stats.calls.dropped, 0, "{stats:#?}");
    assert!(stats.calls_unsampled >= 2 * READS, "{stats:#?}");
    for what in
        ["blkkin ctl --sample 1/16, by user 0 (pid ", "the time of a change has ended", "blkkin ctl off"]
    {
        assert!(output.contains(what), "no `{what}` in {output}");
    }
}

#[test]
fn the_time_of_a_percentile_is_shown() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let agent = Controlled::start(disk, &["--sample", "1/1024"]);
    let address = metrics::address(&agent.agent.output()).to_owned();
    let family =
        |text: &str| metrics::families(text).into_iter().any(|name| metrics::is_percentile_family(&name));
    assert!(!family(&metrics::get(&address, "/metrics")));
    let state = agent.change(&["--keep", "failed,pread64>p50"]);
    assert!(state.contains("pread64>p50 keeps nothing now\n"), "{state}");
    let begun = Instant::now();
    let shown = loop {
        agent.read(0);
        let state = agent.change(&[]);
        let line = state.lines().find(|line| line.contains("pread64>p50 keeps what takes "));
        if let Some(line) = line {
            break line.to_owned();
        }
        assert!(begun.elapsed() < LIMIT, "{state}");
    };
    let text = metrics::get(&address, "/metrics");
    let seconds = metrics::value(&text, "blkkin_keep_percentile_seconds{rule=\"pread64>p50\"}");
    println!("{shown}; {seconds} s");
    assert!(family(&text) && (1e-6..1.0).contains(&seconds), "{seconds}");
    agent.change(&["--keep", "none"]);
    assert!(!family(&metrics::get(&address, "/metrics")));
    agent.finish();
}

/// A configuration is of many machines, and a disk may be removed.
#[test]
fn a_rule_about_a_disk_that_is_not_here_has_no_effect() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let rule = format!("pread64@{}>1ns", disk.name());
    let agent = Controlled::start(disk, &["--sample", "1/1048576", "--keep", "pread64@nosuchdisk>1ns"]);
    agent.read(0);
    let state = agent.change(&["--sample", "1/524288"]);
    assert!(state.contains("pread64@nosuchdisk>1ns has no effect: there is no such disk\n"), "{state}");
    agent.change(&["--keep", &rule]);
    agent.read(1);
    agent.change(&["reset"]);
    agent.read(2);
    let (output, batches) = agent.finish();
    assert!(output.contains("the rule pread64@nosuchdisk>1ns of --keep has no effect"), "{output}");
    let kept = [0, 1, 2].map(|phase| {
        let of_phase = reads_of(&batches, phase);
        of_phase.into_iter().filter(|call| call.sampling.kept_for().is_some()).count() as u64
    });
    // The kernel does not show the end of a few requests in 100,000.
    assert!(matches!(kept, [0, 995..=READS, 0]), "{kept:?}");
}

#[test]
fn a_budget_changes_and_keeps_the_share_of_the_settings_as_its_greatest() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let agent = Controlled::start(disk, &["--budget", "50%", "--sample", "1/2"]);
    let address = metrics::address(&agent.agent.output()).to_owned();
    let value = |name: &str| metrics::value(&metrics::get(&address, "/metrics"), name);
    assert_eq!((value("blkkin_budget_ratio"), value("blkkin_budget_recorded_one_in")), (0.5, 2.0));
    // A ten-thousandth is less than the probes take.
    let state = agent.change(&["--budget", "0.01%", "--sample", "1/8"]);
    assert!(state.contains("one operation in 8, within 0.01% of the CPUs"), "{state}");
    assert_eq!(value("blkkin_budget_ratio"), 0.0001);
    let begun = Instant::now();
    while value("blkkin_budget_recorded_one_in") < 64.0 {
        assert!(begun.elapsed() < LIMIT, "{}", agent.agent.output());
        agent.read_some(0, 5_000);
    }
    // The share grows again, up to that of the settings.
    agent.change(&["--budget", "50%"]);
    let begun = Instant::now();
    while value("blkkin_budget_recorded_one_in") != 8.0 {
        assert!(begun.elapsed() < LIMIT, "{}", agent.agent.output());
        thread::sleep(Duration::from_millis(100));
    }
    let state = agent.change(&[]);
    assert!(state.contains("the budget allows one operation in 8\n"), "{state}");
    let text = metrics::get(&address, "/metrics");
    let [found, documented] = [metrics::families(&text), metrics::documented_families()]
        .map(|names| names.into_iter().filter(|name| metrics::is_ctl_family(name)).collect::<Vec<_>>());
    assert_eq!(found, documented, "the table in docs/operating.md");
    assert_eq!(metrics::value(&text, "blkkin_ctl_changes_total"), 2.0);
    let (_, batches) = agent.finish();
    assert!(calls(&batches).map(|call| call.sampling.one_in()).min() >= Some(2));
}

#[test]
fn bad_requests_change_nothing() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let agent = Controlled::start(disk, &["--sample", "1/4"]);
    let before = agent.change(&["--json"]);
    agent.ctl(&["--sample", "1/3"]).assert_refused(1, "invalid value `1/3` for --sample", "--sample 1/2 or");
    agent.ctl(&["--keep", "fsnyc>1ms"]).assert_refused(1, "unknown operation `fsnyc`", "--keep 'fsync>1ms'");
    agent.ctl(&["--keep", "read@nosuchdisk>1ms"]).assert_refused(1, "unknown device `nosuchdisk`", "one of ");
    agent.ctl(&["--budget", "1%"]).assert_refused(1, "--budget cannot be added", "blkkin agent --budget");
    // Whole or not at all.
    agent.ctl(&["off", "--sample", "1/0"]).assert_refused(1, "invalid value `1/0`", "--sample 1/64");
    agent.ctl(&["--for", "1m"]).assert_refused(2, "--for without a change", "blkkin ctl --sample");
    agent.ctl(&["reset", "--sample", "1/2"]).assert_refused(2, "reset has no options", "blkkin ctl reset");
    let socket = agent.folder.path().join("ctl.sock");
    let exchange = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // The agent may have refused before it has read all.
        let _ = stream.write_all(bytes);
        let mut answer = String::new();
        let _ = BufReader::new(stream).read_line(&mut answer);
        answer
    };
    for bad in [&b"\n"[..], b"{\"change\":{\"filter\":1}}\n", b"\xff\xfe\n", b"[[[[[[[[\n"] {
        let answer = exchange(bad);
        assert!(answer.contains("refused"), "{answer} to {bad:?}");
    }
    // A client that sends without end, and a silent one: the next one waits for 2 s.
    exchange(&vec![b'x'; 200 << 10]);
    let begun = Instant::now();
    let _silent = UnixStream::connect(&socket).unwrap();
    assert_eq!(agent.change(&["--json"]), before);
    assert!((1..8).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    // Another user has no access.
    std::fs::set_permissions(agent.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket_path = socket;
    let socket = socket_path.display().to_string();
    let refused = common::run_unprivileged(&["ctl", "--socket", &socket, "off"]);
    refused.assert_refused(1, "no answer of an agent at", "root, or a user of the agent's --ctl-group");
    assert_eq!(agent.change(&["--json"]), before);
    assert!(socket_path.exists());
    let (output, _) = agent.finish();
    assert!(!output.contains("blkkin ctl off"), "{output}");
    assert!(!socket_path.exists());
    let none = common::run(&["ctl", "--socket", "/nonexistent/ctl.sock"]);
    none.assert_refused(1, "no answer of an agent at /nonexistent/ctl.sock", "blkkin agent --ctl PATH");
}
