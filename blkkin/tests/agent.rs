//! `blkkin agent` and a real Kafka broker: the topic has every request of a disk.
//!
//! *Input*: fio on a loop device, traced by an agent that sends to the broker, records to disk, or
//! starts before the broker. *Independent count*: requests and sectors in the kernel's statistics
//! of the disk (/sys/block/NAME/stat).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_bus::kafka::{EVENTS, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::{LayerEvent, RequestEvent};
use rdkafka::Message;

use crate::broker::Broker;
use crate::broker::client::subscribe;
use crate::common;
use crate::spooling::topic::consume;
use crate::support::agent_recording;
use crate::support::disk::{Disk, Statistics};
use crate::support::fio::Fio;
use crate::support::service::Service;
use crate::support::single_process::file_of;
use crate::support::tools::identity;
use crate::support::{needs, or_skip};

const REQUESTS: u32 = 2_000;
const BYTES: u32 = 4096;
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Starts an agent that traces the disk.
fn agent(settings: &Settings, disk: &Disk) -> Service {
    agent_with(&["--brokers", &settings.brokers], disk)
}

fn agent_with(more_args: &[&str], disk: &Disk) -> Service {
    let args = [&["agent", "--device", disk.name()], more_args].concat();
    let agent = Service::start(disk.file("agent").parent().unwrap(), "agent", &args);
    agent.wait_for_output("tracing; events go", TIME_LIMIT);
    agent
}

/// Runs fio on the disk and returns the kernel's counts of it.
fn load(disk: &Disk) -> Statistics {
    let report = disk.file("fio.json");
    let fio = Fio {
        target: disk.node(),
        pattern: "randwrite",
        jobs: 2,
        requests: REQUESTS / 2,
        bytes: BYTES,
        report: &report,
    };
    let before = disk.statistics();
    let args = fio.args();
    let status = std::process::Command::new(&args[0]).args(&args[1..]).status().unwrap();
    assert!(status.success());
    disk.statistics().since(before)
}

fn requests<'a>(batches: &'a [EventBatch], disk: &'a Disk) -> impl Iterator<Item = &'a RequestEvent> {
    let events = batches.iter().flat_map(|batch| &batch.events);
    let requests = events.filter_map(|event| match event {
        LayerEvent::Request(request) => Some(request),
        LayerEvent::Pair(pair) => Some(&pair.request),
        _ => None,
    });
    requests.filter(|request| request.device == disk.device())
}

fn assert_complete(batches: &[EventBatch], disk: &Disk, kernel_counts: Statistics) {
    let last = &batches.last().unwrap().stats;
    assert_eq!(last.lost() - last.ends_missed, 0, "{last:?}");
    let sectors = requests(batches, disk).map(|request| u64::from(request.bytes) / 512).sum::<u64>();
    let found = requests(batches, disk).count() as u64;
    // An end that no program saw is the request's, and its bio's, which ends with it. It is counted
    // once the kernel uses the address again, which the last ones of a run may not live to see.
    let missed = last.requests_started - last.requests.fired;
    assert_eq!(found + missed, kernel_counts.requests, "{last:?}");
    assert!(last.ends_missed <= missed + last.bios_queued - last.bios.fired, "{last:?}");
    if missed == 0 {
        assert_eq!(sectors, kernel_counts.sectors);
    }
    let (mut joiner, mut traces) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    for batch in batches {
        joiner.apply(batch.clone(), &mut traces);
    }
    joiner.finish(&mut traces);
    let complete = traces.iter().filter(|trace| {
        trace.call().is_some_and(|call| call.call.name() == "pwrite64") && !trace.requests.is_empty()
    });
    assert_eq!(complete.count() as u64 + missed, u64::from(REQUESTS));
}

#[test]
fn the_topic_has_every_request_that_the_kernel_counts() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(Broker::start());
    let settings = broker.settings();
    let agent = agent(&settings, &disk);
    let kernel_counts = load(&disk);
    let output = agent.finish_without_error();
    assert!(output.contains("events delivered to blkkin.events"), "{output}");
    assert_eq!(settings.partitions(EVENTS), Ok(12), "the agent has created the topic");
    assert_complete(&consume(&settings), &disk, kernel_counts);
}

#[test]
fn events_of_a_guest_have_the_key_of_its_host() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(Broker::start());
    let settings = broker.settings();
    let host = "00112233445566778899aabbccddeeff";
    let agent = agent_with(&["--brokers", &settings.brokers, "--domain", host], &disk);
    load(&disk);
    agent.finish_without_error();
    let sent = consume(&settings).len();
    let consumer = subscribe(&settings, "keys", EVENTS);
    let (mut found, started) = (0, Instant::now());
    while found < sent {
        assert!(started.elapsed() < TIME_LIMIT, "{found} of {sent}");
        // A poll that handled another event, such as a new assignment, has no message.
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let key = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
        assert_eq!(message.unwrap().key(), Some(&key[..]));
        found += 1;
    }
    assert!(sent > 1, "{sent}");
    let refused = common::run(&["agent", "--brokers", &settings.brokers, "--domain", "host"]).expect_code(2);
    assert!(refused.stderr.contains("bad machine id `host`"), "{refused:?}");
}

#[test]
fn a_replayed_recording_has_the_same_events() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(Broker::start());
    let settings = broker.settings();
    let folder = disk.file("recording");
    let folder = folder.to_str().unwrap();
    let agent = agent_with(&["--record", folder], &disk);
    let kernel_counts = load(&disk);
    agent.finish_without_error();
    let replay = common::run(&["agent", "--brokers", &settings.brokers, "--replay", folder]);
    assert!(replay.code == Some(0) && replay.stderr.contains("the whole recording is sent"), "{replay:?}");
    assert_complete(&consume(&settings), &disk, kernel_counts);
}

/// The agent has dropped its capabilities when it excludes a path. Judge: the calls that this test makes.
#[test]
fn a_path_filter_leaves_out_the_syncs_of_other_files() {
    needs!("losetup", "mkfs.ext4");
    const ROUNDS: usize = 100;
    let disk = or_skip!(Disk::ext4(16 << 20));
    let folder = disk.file("recording");
    let files = ["wanted", "other"].map(|name| disk.mount_point().join(name));
    let mut open = files.each_ref().map(|path| File::create(path).unwrap());
    let [wanted, path] = [&files[0], &folder].map(|path| path.to_str().unwrap());
    let args =
        ["agent", "--record", path, "--metrics", "127.0.0.1:0", "--syscall", "write,fsync", "--path", wanted];
    let agent = Service::start(folder.parent().unwrap(), "agent", &args);
    agent.wait_for_output("tracing; events go", TIME_LIMIT);
    for _ in 0..ROUNDS {
        for file in &mut open {
            file.write_all(b"content").unwrap();
            file.sync_all().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    agent.finish_without_error();
    let batches = agent_recording::batches(&folder);
    let syncs = |file: &Path| {
        let id = identity(file);
        let calls = batches.iter().flat_map(|batch| &batch.events).filter_map(|event| match event {
            LayerEvent::Syscall(call) if call.call.name() == "fsync" => Some(call),
            _ => None,
        });
        calls.filter(|call| file_of(call) == Some(id)).count()
    };
    let (wanted, other) = (syncs(&files[0]), syncs(&files[1]));
    println!("{wanted} syncs of the file, {other} of the other one");
    assert!(wanted == ROUNDS && other < ROUNDS / 2, "{wanted} and {other}");
    assert_eq!(batches.last().unwrap().stats.lost(), 0);
}

#[test]
fn events_from_before_the_broker_started_are_delivered() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let mut broker = or_skip!(Broker::start());
    let settings = broker.settings();
    broker.kill();
    let agent = agent(&settings, &disk);
    let kernel_counts = load(&disk);
    agent.wait_for_output("cannot reach", TIME_LIMIT);
    broker.up();
    agent.wait_for_output("the cluster answers after", TIME_LIMIT);
    agent.finish_without_error();
    assert_complete(&consume(&settings), &disk, kernel_counts);
}

#[test]
fn without_a_cluster_the_agent_reports_the_lost_events_at_exit() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    // Port 1 of this machine has no listener.
    let agent = agent(&Settings::new("127.0.0.1:1"), &disk);
    load(&disk);
    let (status, output) = agent.finish();
    assert_eq!(status, Some(1), "{output}");
    assert!(
        output.contains("events were not delivered") && output.contains("not acknowledged in 10 s"),
        "{output}"
    );
}

#[test]
fn arguments_that_do_not_apply_to_an_agent_are_refused() {
    needs!();
    let refused =
        |args: &[&str]| common::run(&[&["agent", "--brokers", "h:1"], args].concat()).expect_code(2).stderr;
    assert!(refused(&["--path", "/"]).contains("--path '/' matches every file"));
    assert!(refused(&["--set", "ssl"]).contains("NAME=VALUE"));
}
