//! `blkkin agent` and a real Kafka broker: what the kernel counts of a disk comes out of the topic, request by request.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod support;

use std::time::{Duration, Instant};

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_bus::kafka::{EVENTS, EventConsumer, Group, Received, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::{LayerEvent, RequestEvent};
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};

use broker::Broker;
use support::disk::{Disk, Statistics};
use support::fio::Fio;
use support::service::Service;
use support::{needs, or_skip};

const REQUESTS: u32 = 2_000;
const BYTES: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that follows the disk.
fn agent(settings: &Settings, disk: &Disk) -> Service {
    agent_with(&["--brokers", &settings.brokers], disk)
}

fn agent_with(more: &[&str], disk: &Disk) -> Service {
    let words = [&["agent", "--device", disk.name()], more].concat();
    let agent = Service::start(disk.beside("agent").parent().unwrap(), "agent", &words);
    agent.says("tracing; events go", PATIENCE);
    agent
}

fn broker() -> Result<Broker, String> {
    Broker::start()
}

/// What fio does to the disk while an agent is there, as the kernel counts it.
fn load(disk: &Disk) -> Statistics {
    let account = disk.beside("fio.json");
    let fio = Fio {
        target: disk.node(),
        pattern: "randwrite",
        jobs: 2,
        requests: REQUESTS / 2,
        bytes: BYTES,
        account: &account,
    };
    let before = disk.statistics();
    let words = fio.words();
    let status = std::process::Command::new(&words[0]).args(&words[1..]).status().unwrap();
    assert!(status.success());
    disk.statistics().since(before)
}

/// All batches that the topic has.
fn consume(settings: &Settings) -> Vec<EventBatch> {
    let group = Group { name: "test".to_owned(), member: None };
    let mut consumer = EventConsumer::join(settings, &group).unwrap();
    let (mut batches, begun, mut idle) = (Vec::new(), Instant::now(), 0);
    // Once something came, two seconds of nothing are the end.
    while begun.elapsed() < PATIENCE && (batches.is_empty() || idle < 20) {
        match consumer.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(batch, missing) => {
                assert_eq!(missing, 0);
                batches.push(*batch);
                idle = 0;
            }
            Received::Timeout => idle += 1,
            Received::Rebalanced { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    batches
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

fn assert_all_is_there(batches: &[EventBatch], disk: &Disk, counted: Statistics) {
    let last = &batches.last().unwrap().stats;
    assert_eq!(last.lost() - last.ends_missed, 0, "{last:?}");
    let sectors = requests(batches, disk).map(|request| u64::from(request.bytes) / 512).sum::<u64>();
    let seen = requests(batches, disk).count() as u64;
    // An end that no program could see is in the books: the request's, and its bio's, which ends with it.
    let missed = last.requests_started - last.requests.fired;
    assert_eq!(seen + missed, counted.requests, "{last:?}");
    assert_eq!(last.ends_missed, missed + last.bios_queued - last.bios.fired, "{last:?}");
    if missed == 0 {
        assert_eq!(sectors, counted.sectors);
    }
    let (mut joiner, mut traces) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    batches.iter().for_each(|batch| joiner.apply(batch.clone(), &mut traces));
    joiner.finish(&mut traces);
    let whole = traces.iter().filter(|trace| {
        trace.call().is_some_and(|call| call.call.name() == "pwrite64") && !trace.requests.is_empty()
    });
    assert_eq!(whole.count() as u64 + missed, u64::from(REQUESTS));
}

#[test]
fn what_the_kernel_counts_of_a_disk_comes_out_of_the_topic() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(broker());
    let settings = broker.settings();
    let agent = agent(&settings, &disk);
    let counted = load(&disk);
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("events delivered to blkkin.events"), "{said}");
    assert_eq!(settings.partitions(EVENTS), Ok(12), "the agent has made it");
    assert_all_is_there(&consume(&settings), &disk, counted);
}

#[test]
fn a_guest_s_events_lie_under_its_host_s_key() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(broker());
    let settings = broker.settings();
    let host = "00112233445566778899aabbccddeeff";
    let agent = agent_with(&["--brokers", &settings.brokers, "--domain", host], &disk);
    load(&disk);
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    let sent = consume(&settings).len();
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", &settings.brokers).set("group.id", "keys");
    let consumer: BaseConsumer = config.set("auto.offset.reset", "earliest").create().unwrap();
    consumer.subscribe(&[EVENTS]).unwrap();
    let (mut seen, begun) = (0, Instant::now());
    while seen < sent {
        assert!(begun.elapsed() < PATIENCE, "{seen} of {sent}");
        // A poll that has dealt with something else, as with a new assignment, has no message.
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let key = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
        assert_eq!(message.unwrap().key(), Some(&key[..]));
        seen += 1;
    }
    assert!(sent > 1, "{sent}");
    let refused = common::run(&["agent", "--brokers", &settings.brokers, "--domain", "host"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("bad machine id `host`"), "{refused:?}");
}

#[test]
fn what_was_recorded_and_is_sent_later_is_the_same() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let broker = or_skip!(broker());
    let settings = broker.settings();
    let folder = disk.beside("recording");
    let folder = folder.to_str().unwrap();
    let agent = agent_with(&["--record", folder], &disk);
    let counted = load(&disk);
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    let replay = common::run(&["agent", "--brokers", &settings.brokers, "--replay", folder]);
    assert!(replay.code == Some(0) && replay.stderr.contains("the whole recording is sent"), "{replay:?}");
    assert_all_is_there(&consume(&settings), &disk, counted);
}

#[test]
fn an_agent_is_there_before_the_broker_and_what_it_saw_then_is_delivered() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let mut broker = or_skip!(broker());
    let settings = broker.settings();
    broker.kill();
    let agent = agent(&settings, &disk);
    let counted = load(&disk);
    agent.says("cannot reach", PATIENCE);
    broker.up();
    agent.says("the cluster answers after", PATIENCE);
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    assert_all_is_there(&consume(&settings), &disk, counted);
}

#[test]
fn without_a_cluster_the_end_says_how_many_events_are_lost() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    // Port 1 of this machine: nobody listens.
    let agent = agent(&Settings::new("127.0.0.1:1"), &disk);
    load(&disk);
    let (status, said) = agent.finish();
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("events were not delivered") && said.contains("not acknowledged in 10 s"),
        "{said}"
    );
}

#[test]
fn words_that_mean_nothing_to_an_agent_are_refused() {
    needs!();
    let refused = |words: &[&str]| {
        let run = common::run(&[&["agent", "--brokers", "h:1"], words].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        run.stderr
    };
    assert!(refused(&["--path", "/srv"]).contains("--path does not work with blkkin agent"));
    assert!(refused(&["--set", "ssl"]).contains("NAME=VALUE"));
}
