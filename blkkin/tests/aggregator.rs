//! `blkkin aggregator` and a real Kafka broker: whoever is killed meanwhile, the same traces come out, each once.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
#[path = "support/nodes.rs"]
mod nodes;
#[path = "support/service.rs"]
mod service;
#[path = "support/traces.rs"]
mod traces;

use std::path::Path;
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::{Outlet, Record as Read};
use blkkin_bus::kafka::{DEAD, EVENTS, EventProducer, Record, STATE, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::{Incarnation, TraceFragment};
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Headers;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use broker::Broker;
use service::Service;
use traces::{Pieces, TraceReader, difference, total};

const NODES: u128 = 3;
/// 1.9 events each: more than 100,000 events of three nodes.
const CALLS: u64 = 18_000;
const PARTITIONS: u32 = 12;
/// So many times an aggregator is killed, and each third time the broker.
const KILLS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(180);

macro_rules! broker {
    () => {
        match Broker::start() {
            Ok(broker) => broker,
            Err(why) => return println!("skipped: {why}"),
        }
    };
}

fn start(settings: &Settings, folder: &Path, name: &str, more: &[&str]) -> Service {
    let words = ["aggregator", "--brokers", &settings.brokers, "--save-every", "1s"];
    Service::start(folder, name, &[&words, more].concat())
}

/// What the state machine alone makes of it.
#[derive(Default)]
struct Expected(Pieces);

impl Outlet for Expected {
    fn piece(&mut self, _: u32, _: u64, piece: TraceFragment) {
        traces::count(&mut self.0, &piece);
    }
    fn aside(&mut self, _: u32, _: u64, piece: TraceFragment) {
        panic!("{piece:?}");
    }
    fn dead(&mut self, why: String) {
        panic!("{why}");
    }
}

fn expected(all: &[Vec<EventBatch>]) -> Pieces {
    let mut expected = Expected::default();
    for batches in all {
        let mut stage = JoinStage::begin(Incarnation(1), JoinStageConfig::new(PARTITIONS));
        for batch in batches {
            stage.apply(Read { at: None, bytes: &v1::encode(batch) }, &mut expected);
        }
        assert_eq!(stage.pending(), 0);
    }
    expected.0
}

/// Sends `parts` of every node's batches, one after another, over so long a time.
fn feed(
    settings: &Settings,
    all: &[Vec<EventBatch>],
    parts: std::ops::Range<usize>,
    of: usize,
    over: Duration,
) {
    let producers: Vec<_> =
        (0..all.len()).map(|n| EventProducer::new(settings, NodeId(n as u128 + 1)).unwrap()).collect();
    let longest = all.iter().map(Vec::len).max().unwrap();
    let range = longest * parts.start / of..longest * parts.end / of;
    let pause = over / range.len() as u32;
    for n in range {
        for (batches, producer) in all.iter().zip(&producers) {
            let Some(batch) = batches.get(n) else { continue };
            let record = Record { bytes: v1::encode(batch), events: batch.events.len() as u64 };
            producer.send(record, || false).unwrap();
        }
        std::thread::sleep(pause);
    }
    for producer in producers {
        assert_eq!(producer.finish(PATIENCE).waiting(), 0);
    }
}

fn worlds() -> Vec<Vec<EventBatch>> {
    let all: Vec<_> = (1..=NODES).map(|node| nodes::batches(node, CALLS)).collect();
    let events = all.iter().map(|batches| nodes::events(batches)).sum::<usize>();
    assert!(events >= 100_000, "{events}");
    println!("{events} events");
    all
}

fn assert_same(expected: &Pieces, reader: &TraceReader, said: &str) {
    let found = &reader.pieces;
    println!("{} pieces, {} of them repeated", total(found), reader.repeated);
    let difference = difference(expected, found);
    assert!(
        difference.is_empty(),
        "{} pieces, not {}: {difference:#?}\n{said}",
        total(found),
        total(expected)
    );
}

#[test]
fn quietly_every_trace_comes_out_once_and_the_books_balance() {
    let broker = broker!();
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let all = worlds();
    let expected = expected(&all);
    let two = ["one", "two"].map(|name| start(&settings, folder.path(), name, &[]));
    wait_for_topics(&settings);
    wait_for_members(&settings, 2);
    feed(&settings, &all, 0..1, 1, Duration::from_secs(1));
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    reader.read(total(&expected), PATIENCE);
    let ended = two.map(Service::finish);
    assert_same(&expected, &reader, &format!("{ended:?}"));
    assert_eq!(reader.repeated, 0);
    for (status, said) in &ended {
        assert_eq!(*status, Some(0), "{said}");
        assert!(said.contains("+ 0 pending"), "{said}");
    }
    assert_halves(&ended);
}

#[test]
fn whoever_is_killed_every_trace_comes_out_once() {
    let mut broker = broker!();
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let all = worlds();
    let expected = expected(&all);
    // One has a name of its own and comes back as who it was, the other comes as a stranger.
    let mut two = [("one", &["--instance", "one"][..]), ("two", &[])]
        .map(|(name, more)| start(&settings, folder.path(), name, more));
    wait_for_topics(&settings);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    let mut seed = std::process::id();
    println!("seed {seed}");
    for round in 0..KILLS {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let moment = Duration::from_millis(u64::from(seed >> 16) % 2_000);
        std::thread::scope(|scope| {
            scope.spawn(|| feed(&settings, &all, round..round + 1, KILLS + 1, Duration::from_secs(3)));
            // Something is done before each: whoever comes next has a state to go on from.
            let before = total(&reader.pieces);
            reader.read_until(PATIENCE, |pieces| total(pieces) > before);
            assert!(total(&reader.pieces) > before, "no progress in round {round}");
            std::thread::sleep(moment);
            let n = (seed >> 8) as usize % 2;
            two[n].kill();
            if round % 3 == 1 {
                broker.kill();
                broker.up();
            }
            two[n].start_again();
        });
    }
    feed(&settings, &all, KILLS..KILLS + 1, KILLS + 1, Duration::from_secs(1));
    reader.read(total(&expected), PATIENCE);
    for one in &mut two {
        if one.has_ended() {
            one.start_again();
        }
    }
    let ended = two.map(Service::finish);
    assert_same(&expected, &reader, &format!("{ended:?}"));
    for (status, said) in &ended {
        assert_eq!(*status, Some(0), "{said}");
    }
}

#[test]
fn partitions_go_to_who_joins_in_the_middle_with_all_that_they_know() {
    let broker = broker!();
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let all = worlds();
    let expected = expected(&all);
    let one = start(&settings, folder.path(), "one", &[]);
    wait_for_topics(&settings);
    feed(&settings, &all, 0..1, 2, Duration::from_secs(3));
    let two = start(&settings, folder.path(), "two", &[]);
    feed(&settings, &all, 1..2, 2, Duration::from_secs(8));
    wait_for_members(&settings, 2);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    reader.read(total(&expected), PATIENCE);
    let ended = [one, two].map(Service::finish);
    assert_same(&expected, &reader, &format!("{ended:?}"));
    for (status, said) in &ended {
        assert_eq!(*status, Some(0), "{said}");
    }
    assert_halves(&ended);
}

/// Who ended first had half of the partitions; who ended after it may have taken over the other half before that.
fn assert_halves([(_, first), (_, second)]: &[(Option<i32>, String); 2]) {
    assert!(first.contains("assemble: 6 partitions"), "{first}");
    assert!(["6", "12"].iter().any(|n| second.contains(&format!("assemble: {n} partitions"))), "{second}");
}

#[test]
fn a_node_that_fell_silent_is_finished_and_poison_is_buried() {
    let broker = broker!();
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let more = ["--idle-after", "2s", "--partitions", "3"];
    let one = start(&settings, folder.path(), "one", &more);
    wait_for_topics(&settings);
    let stranger: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", &settings.brokers).create().unwrap();
    let key = NodeId(1).0.to_be_bytes();
    stranger.send(BaseRecord::to(EVENTS).key(&key[..]).payload("no batch")).unwrap();
    stranger.flush(PATIENCE).unwrap();
    // Its first batch, and never another: some of its traces wait for a bio that does not come.
    let batch = nodes::batches(1, 100).remove(0);
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    let events = batch.events.len() as u64;
    producer.send(Record { bytes: v1::encode(&batch), events }, || false).unwrap();
    assert_eq!(producer.finish(PATIENCE).delivered, events);
    let mut reader = TraceReader::new(&settings, 3);
    // 100 calls, and 12 commits that are shown with them.
    reader.read(100, PATIENCE);
    let (status, said) = one.finish();
    assert_eq!((status, total(&reader.pieces)), (Some(0), 100), "{said}");
    assert!(
        said.contains("1 sources became inactive") && said.contains("1 records could not be decoded"),
        "{said}"
    );
    assert_buried(&settings);
}

#[test]
fn an_offset_to_which_no_state_belongs_is_refused_unless_told_to_forget() {
    let broker = broker!();
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    settings.create_topic(EVENTS, 1, Some(1)).unwrap();
    // As `kafka-consumer-groups.sh --reset-offsets` would.
    let tool: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &settings.brokers)
        .set("group.id", "blkkin-join")
        .create()
        .unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(EVENTS, 0, Offset::Offset(0)).unwrap();
    let begun = Instant::now();
    // The first to ask has the cluster make its topic of offsets.
    while let Err(error) = tool.commit(&offsets, CommitMode::Sync) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let more = ["--partitions", "1"];
    let mut one = start(&settings, folder.path(), "one", &more);
    let (status, said) = one.wait();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no state belongs to it") && said.contains("--forget"), "{said}");
    let two = start(&settings, folder.path(), "two", &[&more[..], &["--forget"]].concat());
    let all = [nodes::batches(1, 100)];
    feed(&settings, &all, 0..1, 1, Duration::ZERO);
    let mut reader = TraceReader::new(&settings, 1);
    let expected = expected(&all);
    reader.read(total(&expected), PATIENCE);
    let (status, said) = two.finish();
    assert_eq!(status, Some(0), "{said}");
    assert_same(&expected, &reader, &said);
}

fn assert_buried(settings: &Settings) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &settings.brokers)
        .set("group.id", "test-dead")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    consumer.subscribe(&[DEAD]).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
        assert_eq!(message.payload(), Some(&b"no batch"[..]));
        let headers = message.headers().unwrap();
        let header = |key: &str| {
            headers
                .iter()
                .find(|header| header.key.strip_prefix("blkkin.") == Some(key))
                .and_then(|header| header.value)
        };
        assert_eq!((header("topic"), header("offset")), (Some(EVENTS.as_bytes()), Some(&b"0"[..])));
        assert!(!header("reason").unwrap().is_empty());
        return;
    }
    panic!("no dead letter");
}

#[test]
fn words_that_make_no_rule_are_refused() {
    let refused = |words: &[&str]| {
        let run = common::run(&[&["aggregator", "--brokers", "h:1"], words].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        run.stderr
    };
    assert!(refused(&["--sample", "0.5"]).contains("bad share"));
    assert!(refused(&["--errors"]).contains("--sample 1/100"));
    assert!(refused(&["--idle-after", "5"]).contains("--idle-after"));
    assert!(refused(&["--stage", "first"]).contains("join"));
}

/// Until both groups have so many members and every one has its partitions.
fn wait_for_members(settings: &Settings, members: usize) {
    let tool: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", &settings.brokers).create().unwrap();
    let has_all = |group: &str| {
        // The first to ask has the cluster make its topic of offsets, and it says meanwhile that it does.
        let Ok(groups) = tool.fetch_group_list(Some(group), Duration::from_secs(5)) else { return false };
        groups.groups().iter().any(|group| group.state() == "Stable" && group.members().len() == members)
    };
    let begun = Instant::now();
    while !(has_all("blkkin-join") && has_all("blkkin-assemble")) {
        assert!(begun.elapsed() < PATIENCE, "not {members} members");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The last of them is made last.
fn wait_for_topics(settings: &Settings) {
    let begun = Instant::now();
    while settings.partitions(STATE).is_err() {
        assert!(begun.elapsed() < PATIENCE, "no topics");
        std::thread::sleep(Duration::from_millis(100));
    }
}
