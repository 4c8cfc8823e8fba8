//! The agent's flight recorder: a dump has all that happened in its window, and nothing else is sent.
//!
//! *Input*: this process, which writes a block and syncs it again and again, traced by an agent that records to a folder.
//! *Independent count*: the block numbers and times of this process's own log.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::span::{Span, TagValue};

use crate::broker::Broker;
use crate::common;
use crate::support::disk::Disk;
use crate::support::live::eventually;
use crate::support::monotonic;
use crate::support::service::Service;
use crate::support::tmpfs::Tmpfs;
use crate::support::traces::{self, TraceReader};
use crate::support::{agent_recording, metrics, needs, or_skip};

const LIMIT: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4096;
/// Window of the recorder, and the time for which a dump goes on.
const WINDOW: Duration = Duration::from_secs(8);
const TAIL: Duration = Duration::from_secs(2);
/// Longest time between an event, or the signal, and its arrival at the recorder, under load.
const DELAY: Duration = Duration::from_secs(2);

/// Time by the clock of events.
fn now() -> Duration {
    Duration::from_nanos(monotonic::now())
}

fn agent(folder: &Path, more: &[&str]) -> Service {
    let (pid, recording) = (std::process::id().to_string(), folder.join("recording"));
    let args = ["agent", "--pid", &pid, "--metrics", "127.0.0.1:0", "--record", recording.to_str().unwrap()];
    let agent = Service::start(folder, "agent", &[&args[..], more].concat());
    agent.wait_for_output("tracing; ", LIMIT);
    agent
}

fn signal(agent: &Service) {
    // SAFETY: passes numbers only; the process has not been waited for.
    assert_eq!(unsafe { libc::kill(agent.id() as libc::pid_t, libc::SIGUSR1) }, 0);
}

/// Numbers of the blocks that this process wrote, by the recorded calls.
fn written(batches: &[EventBatch]) -> Vec<u64> {
    let events = batches.iter().flat_map(|batch| &batch.events);
    let calls = events.filter_map(|event| match event {
        LayerEvent::Syscall(call) if call.call.spec().name == "pwrite64" => Some(call.args[3] / BLOCK),
        _ => None,
    });
    calls.collect()
}

#[test]
fn a_dump_has_every_write_of_its_window_and_their_traces() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let path = disk.mount_point().join("log");
    let file = File::create(&path).unwrap();
    let window = format!("{}s", WINDOW.as_secs());
    let folder = disk.file("agent").parent().unwrap().to_owned();
    let agent = agent(&folder, &["--flight-recorder", &window]);
    let stop = AtomicBool::new(false);
    let (log, asked, begun) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut log = Vec::new();
            while !stop.load(Relaxed) {
                let begin = now();
                file.write_all_at(&[7; BLOCK as usize], log.len() as u64 * BLOCK).unwrap();
                file.sync_data().unwrap();
                log.push((begin, now()));
                thread::sleep(Duration::from_millis(10));
            }
            log
        });
        thread::sleep(WINDOW + 2 * DELAY);
        let asked = now();
        signal(&agent);
        agent.wait_for_output("SIGUSR1: a dump begins", LIMIT);
        let begun = now();
        agent.wait_for_output("the dump is complete", LIMIT);
        thread::sleep(2 * DELAY);
        stop.store(true, Relaxed);
        (writer.join().unwrap(), asked, begun)
    });
    let output = agent.finish_without_error();
    let batches = agent_recording::batches(&folder.join("recording"));
    let found = written(&batches);
    // All that certainly was in the window is here, once and in order; what certainly was not, is not.
    let expected = |number: &usize| {
        let (begin, end) = log[*number];
        begin > asked - WINDOW + DELAY && end < asked + TAIL - DELAY
    };
    let certain: Vec<u64> = (0..log.len()).filter(expected).map(|number| number as u64).collect();
    println!(
        "{} writes, {} certainly in the window, {} recorded\n{output}",
        log.len(),
        certain.len(),
        found.len()
    );
    assert!(certain.len() > 10, "{} of {}", certain.len(), log.len());
    let (first, last) = (found[0], *found.last().unwrap());
    assert_eq!(found, (first..=last).collect::<Vec<_>>(), "no gap");
    assert!(first <= certain[0] && *certain.last().unwrap() <= last, "{first} to {last}, not {certain:?}");
    assert!(log[first as usize].1 > asked - WINDOW - DELAY, "{first}");
    assert!(log[last as usize].0 < begun + TAIL + DELAY, "{last}");

    // Each of these writes has its task and its path, of which the records are older than the window, and each sync
    // has its requests.
    assert!(
        batches.iter().rev().skip(1).all(|batch| !batch.events.is_empty()),
        "only dumps, and the last counters"
    );
    let stats = &batches.last().unwrap().stats;
    assert_eq!(stats.lost() - stats.ends_missed, 0, "{stats:?}");
    assert!(stats.events_overwritten >= first * 2, "{stats:?}");
    let (mut joiner, mut traces) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    for batch in &batches {
        joiner.apply(batch.clone(), &mut traces);
    }
    joiner.finish(&mut traces);
    let of = |name: &str| -> Vec<&Trace> {
        let is_named = |trace: &&Trace| trace.call().is_some_and(|call| call.call.spec().name == name);
        traces.iter().filter(is_named).collect()
    };
    let (writes, syncs) = (of("pwrite64"), of("fdatasync"));
    assert_eq!(writes.len(), found.len());
    for trace in writes.iter().chain(&syncs) {
        assert_eq!(trace.names.file.as_ref().map(|file| &*file.path), path.to_str(), "{trace:#?}");
        assert!(trace.names.task.is_some(), "{trace:#?}");
    }
    assert_reported(&folder.join("recording"), found.len(), path.to_str().unwrap());
    let without_requests =
        syncs.iter().filter(|trace| trace.requests.is_empty() && trace.waited_for.is_empty());
    // The first sync of the window may have ended before its own records' batch.
    assert!(without_requests.count() <= 1 + stats.ends_missed as usize, "{}", syncs.len());
}

/// Asserts that `blkkin report` has this number of writes to the file, and needs no privilege.
fn assert_reported(recording: &Path, writes: usize, path: &str) {
    let args = ["report", recording.to_str().unwrap(), "--json", "--path", path];
    let run = common::run_unprivileged(&args).expect_code(0);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let calls = report["calls"].as_array().unwrap();
    let of_writes = calls.iter().find(|call| call["call"] == "pwrite64").unwrap();
    assert_eq!(of_writes["count"], writes, "{calls:#?}");
    let file = report["files"]["slowest"].as_array().unwrap().iter().find(|file| file["path"] == path);
    assert_eq!(file.unwrap()["bytes_written"], writes as u64 * BLOCK, "{report:#}");
}

#[test]
fn a_slow_operation_and_a_request_make_a_dump_each_but_not_at_once() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let file = File::create(disk.mount_point().join("log")).unwrap();
    let folder = disk.file("agent").parent().unwrap().to_owned();
    let options = ["--flight-recorder", "30s", "--dump-on", "fdatasync>1ns", "--dump-every", "10m"];
    let agent = agent(&folder, &options);
    let address = metrics::address(&agent.output()).to_owned();
    for number in 0..20 {
        file.write_all_at(&[7; BLOCK as usize], number * BLOCK).unwrap();
    }
    let held = || metrics::value(&metrics::get(&address, "/metrics"), "blkkin_flight_held_events");
    assert!(eventually(|| held() >= 20.0), "{}", held());
    assert!(!agent.output().contains("a dump begins"), "{}", agent.output());
    file.sync_data().unwrap();
    agent.wait_for_output("an operation was slower than --dump-on allows: a dump begins", LIMIT);
    agent.wait_for_output("the dump is complete", LIMIT);
    // A client's dumps are counted apart from those of triggers.
    let asked = common::run(&["dump", &address]).expect_code(0);
    assert!(asked.stdout.contains("events of the last"), "{asked:?}");
    agent.wait_for_output("POST /dump: a dump begins", LIMIT);
    common::run(&["dump", &address]).assert_refused(1, "the agent at 127.0.0.1", "a later attempt");
    let refused = || metrics::value(&metrics::get(&address, "/metrics"), "blkkin_flight_dumps_refused_total");
    assert_eq!(refused(), 1.0);
    file.sync_data().unwrap();
    assert!(eventually(|| refused() == 2.0), "{}", refused());
    let counts = metrics::get(&address, "/metrics");
    let value = |series: &str| metrics::value(&counts, series);
    assert_eq!(value("blkkin_flight_dumps_total{cause=\"latency\"}"), 1.0);
    assert_eq!(value("blkkin_flight_dumps_total{cause=\"request\"}"), 1.0);
    let [found, documented] = [metrics::families(&counts), metrics::documented_families()]
        .map(|names| names.into_iter().filter(|name| metrics::is_flight_family(name)).collect::<Vec<_>>());
    assert_eq!(found, documented, "the table in docs/operating.md");
    agent.finish_without_error();
    assert_eq!(written(&agent_recording::batches(&folder.join("recording"))), (0..20).collect::<Vec<_>>());
}

/// A disk that is full when a dump is written ends neither the agent nor the next dump.
#[test]
fn a_dump_that_finds_no_room_is_counted_and_the_next_one_is_written() {
    needs!("losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let folder = disk.file("agent").parent().unwrap().to_owned();
    let small = or_skip!(Tmpfs::mount(folder.join("recording"), "64k"));
    let file = File::create(disk.mount_point().join("log")).unwrap();
    let agent = agent(&folder, &["--flight-recorder", "30s", "--dump-every", "1ms"]);
    let address = metrics::address(&agent.output()).to_owned();
    for number in 0..5_000 {
        file.write_all_at(&[7; 64], number * BLOCK).unwrap();
    }
    let held = || metrics::value(&metrics::get(&address, "/metrics"), "blkkin_flight_held_events");
    assert!(eventually(|| held() >= 5_000.0), "{}", held());
    signal(&agent);
    agent.wait_for_output("the dump is complete", LIMIT);
    let failed = || metrics::value(&metrics::get(&address, "/metrics"), "blkkin_agent_events_failed_total");
    assert!(eventually(|| failed() > 1_000.0), "{}", failed());
    assert!(agent.output().contains("cannot write a dump: "), "{}", agent.output());
    for entry in std::fs::read_dir(small.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for number in 5_000..5_020 {
        file.write_all_at(&[7; 64], number * BLOCK).unwrap();
    }
    assert!(eventually(|| held() >= 20.0), "{}", held());
    signal(&agent);
    let complete = || agent.output().matches("the dump is complete").count() == 2;
    assert!(eventually(complete), "{}", agent.output());
    let (status, output) = agent.finish();
    assert!(
        status == Some(1) && output.contains("were refused (No space left on device"),
        "{status:?} {output}"
    );
    let found = written(&agent_recording::batches(small.path()));
    assert!((5_000..5_020).all(|number| found.contains(&number)), "{found:?}");
}

/// The aggregator makes traces of two dumps, with an idle time before each that is longer than its timeout of sources.
#[test]
fn dumps_to_a_cluster_become_traces_after_each_silence() {
    needs!("losetup", "mkfs.ext4");
    let broker = or_skip!(Broker::start());
    let disk = or_skip!(Disk::ext4(64 << 20));
    let path = disk.mount_point().join("log");
    let file = File::create(&path).unwrap();
    let (folder, settings) = (disk.file("agent").parent().unwrap().to_owned(), broker.settings());
    let common = ["--brokers", &settings.brokers, "--partitions", "1", "--metrics", "off"];
    let idle = ["--idle-after", "31s"];
    let aggregator = Service::start(&folder, "aggregator", &[&["aggregator"][..], &common, &idle].concat());
    traces::wait_for_topics(&settings, LIMIT);
    let pid = std::process::id().to_string();
    let own = ["agent", "--pid", &pid, "--flight-recorder", "3s", "--dump-every", "1s"];
    let agent = Service::start(&folder, "agent", &[&own[..], &common].concat());
    agent.wait_for_output("tracing; ", LIMIT);
    let mut expected = Vec::new();
    for (round, silence) in [5, 35].into_iter().enumerate() {
        thread::sleep(Duration::from_secs(silence));
        let numbers = (round as u64 * 100)..(round as u64 * 100 + 50);
        for number in numbers.clone() {
            file.write_all_at(&[7; BLOCK as usize], number * BLOCK).unwrap();
            file.sync_data().unwrap();
        }
        thread::sleep(Duration::from_millis(500));
        signal(&agent);
        let complete = || agent.output().matches("the dump is complete").count() == round + 1;
        assert!(eventually(complete), "{}", agent.output());
        expected.extend(numbers);
    }
    agent.finish_without_error();
    let mut reader = TraceReader::new(&settings, 1);
    let writes = |reader: &TraceReader| reader.spans().iter().filter(|span| is_write(span, &path)).count();
    let is_whole = || {
        reader.read_until(Duration::from_millis(500), |_| false);
        writes(&reader) >= expected.len()
    };
    assert!(eventually(is_whole), "{}", aggregator.output());
    aggregator.finish_without_error();
    reader.read_to_end(&settings, LIMIT);
    assert_eq!(writes(&reader), expected.len());
}

fn is_write(span: &Span, path: &Path) -> bool {
    let is_path = |value: &TagValue| value.as_str() == path.to_str();
    span.name == "pwrite64" && span.tags.iter().any(|(name, value)| name == "file.path" && is_path(value))
}

#[test]
fn an_agent_without_a_flight_recorder_refuses_and_traces_on() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let folder = disk.file("agent").parent().unwrap().to_owned();
    let agent = agent(&folder, &[]);
    let address = metrics::address(&agent.output()).to_owned();
    signal(&agent);
    agent.wait_for_output("SIGUSR1 asks for a dump, and there is no flight recorder", LIMIT);
    common::run(&["dump", &address]).assert_refused(
        1,
        "the agent at 127.0.0.1",
        "blkkin agent --flight-recorder",
    );
    agent.finish_without_error();
    let refused = |more: &[&str], problem: &str, remedy: &str| {
        let args =
            [&["agent", "--record", folder.to_str().unwrap(), "--flight-recorder", "30s"], more].concat();
        common::run(&args).assert_refused(2, problem, remedy);
    };
    refused(&["--memory", "5"], "bad size `5` for --memory", "--memory 256M");
    refused(&["--dump-on", "fsink>1ms"], "bad trigger: unknown operation `fsink`", "--dump-on '>1ms'");
}
