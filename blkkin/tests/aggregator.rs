//! `blkkin aggregator` and a real Kafka broker: every trace is emitted once, also when aggregators
//! and the broker are killed.
//!
//! *Input*: more than 100,000 synthetic events of three nodes through 12 partitions and two
//! aggregators. *Independent count*: the fragments that the join stage alone, without Kafka, makes
//! of the same batches.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blkkin_bus::kafka::{DEAD, EVENTS, EventProducer, LINKS, Record, SPANS, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Headers;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Message, Offset, TopicPartitionList};

use crate::broker::Broker;
use crate::broker::client::{client, subscribe};
use crate::common;
use crate::support::or_skip;
use crate::support::service::Service;
use crate::support::stage_summary::summary_counts;
use crate::support::synthetic_batches;
use crate::support::traces;
use crate::support::traces::{TraceReader, total};

const NODES: u128 = 3;
/// Calls of each node, 1.9 events each: more than 100,000 events of three nodes.
const CALLS: u64 = 18_000;
const PARTITIONS: u32 = 12;
/// Number of times that an aggregator is killed; in every third round the broker is killed too.
const KILLS: usize = 6;
const TIME_LIMIT: Duration = Duration::from_secs(180);

fn start(settings: &Settings, folder: &Path, name: &str, more_args: &[&str]) -> Service {
    let args = ["aggregator", "--brokers", &settings.brokers, "--save-every", "1s"];
    Service::start(folder, name, &[&args, more_args].concat())
}

/// Sends `parts` of `of` parts of every node's batches in order, spread over the time `over`.
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
        assert_eq!(producer.finish(TIME_LIMIT).waiting(), 0);
    }
}

fn node_batches() -> Vec<Vec<EventBatch>> {
    let all: Vec<_> = (1..=NODES).map(|node| synthetic_batches::batches(node, CALLS)).collect();
    let events = all.iter().map(|batches| synthetic_batches::event_count(batches)).sum::<usize>();
    assert!(events >= 100_000, "{events}");
    println!("{events} events");
    all
}

#[test]
fn without_failures_every_trace_is_emitted_once_and_the_counts_balance() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let all = node_batches();
    let expected = traces::joined_alone(&all, PARTITIONS);
    let aggregators = ["one", "two"].map(|name| start(&settings, folder.path(), name, &[]));
    traces::wait_for_topics(&settings, TIME_LIMIT);
    wait_for_members(&settings, 2);
    feed(&settings, &all, 0..1, 1, Duration::from_secs(1));
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    reader.read(total(&expected), TIME_LIMIT);
    let ended = aggregators.map(Service::finish);
    traces::assert_same(&expected, &reader, &format!("{ended:?}"));
    assert_eq!(reader.repeated, 0);
    for (status, output) in &ended {
        assert_eq!(*status, Some(0), "{output}");
        assert!(output.contains("+ 0 pending"), "{output}");
    }
    assert_halves(&ended);
    assert_sums(&ended, &all);
}

#[test]
fn every_trace_is_emitted_once_whichever_process_is_killed() {
    let mut broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let all = node_batches();
    let expected = traces::joined_alone(&all, PARTITIONS);
    // One has a static instance name and rejoins under it, the other rejoins as a new member. On a busy machine a
    // round of a killed broker takes more than the 30 s after which a node without records counts as inactive.
    const IDLE: [&str; 2] = ["--idle-after", "1h"];
    let mut aggregators = [("one", &[&IDLE[..], &["--instance", "one"]].concat()[..]), ("two", &IDLE)]
        .map(|(name, more_args)| start(&settings, folder.path(), name, more_args));
    traces::wait_for_topics(&settings, TIME_LIMIT);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    let mut seed = std::process::id();
    println!("seed {seed}");
    for round in 0..KILLS {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let delay = Duration::from_millis(u64::from(seed >> 16) % 2_000);
        std::thread::scope(|scope| {
            scope.spawn(|| feed(&settings, &all, round..round + 1, KILLS + 1, Duration::from_secs(3)));
            // Waits for progress before each kill, so that the successor has a state to continue
            // from.
            let before = total(&reader.fragments);
            reader.read_until(TIME_LIMIT, |fragments| total(fragments) > before);
            assert!(total(&reader.fragments) > before, "no progress in round {round}");
            std::thread::sleep(delay);
            let n = (seed >> 8) as usize % 2;
            aggregators[n].kill();
            if round % 3 == 1 {
                broker.kill();
                broker.up();
            }
            aggregators[n].restart();
        });
    }
    feed(&settings, &all, KILLS..KILLS + 1, KILLS + 1, Duration::from_secs(1));
    reader.read(total(&expected), TIME_LIMIT);
    for aggregator in &mut aggregators {
        if aggregator.has_ended() {
            aggregator.restart();
        }
    }
    let ended = aggregators.map(Service::finish);
    traces::assert_same(&expected, &reader, &format!("{ended:?}"));
    for (status, output) in &ended {
        assert_eq!(*status, Some(0), "{output}");
    }
    assert_sums(&ended, &all);
}

#[test]
fn partitions_move_to_a_new_member_with_their_state() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let all = node_batches();
    let expected = traces::joined_alone(&all, PARTITIONS);
    let first = start(&settings, folder.path(), "one", &[]);
    traces::wait_for_topics(&settings, TIME_LIMIT);
    feed(&settings, &all, 0..1, 2, Duration::from_secs(3));
    let second = start(&settings, folder.path(), "two", &[]);
    feed(&settings, &all, 1..2, 2, Duration::from_secs(8));
    wait_for_members(&settings, 2);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    reader.read(total(&expected), TIME_LIMIT);
    let ended = [first, second].map(Service::finish);
    traces::assert_same(&expected, &reader, &format!("{ended:?}"));
    for (status, output) in &ended {
        assert_eq!(*status, Some(0), "{output}");
    }
    assert_halves(&ended);
}

/// Asserts that the aggregators' counts of events are those that were sent, as docs/operating.md adds
/// them up.
fn assert_sums(ended: &[(Option<i32>, String); 2], all: &[Vec<EventBatch>]) {
    let output = ended.each_ref().map(|(_, output)| &**output).concat();
    let [_, events, joined, late, orphaned, pending, names, ..] =
        summary_counts(&output, "join", u64::from(PARTITIONS))[..]
    else {
        panic!("{output}")
    };
    assert_eq!(events, joined + late + orphaned + pending, "{output}");
    assert_eq!(events + names, synthetic_batches::joined_event_count(all), "{output}");
}

/// The member that ended first had half of the partitions. The other may have taken over the rest
/// before it ended.
fn assert_halves([(_, first), (_, second)]: &[(Option<i32>, String); 2]) {
    assert!(first.contains("assemble: 6 partitions"), "{first}");
    assert!(["6", "12"].iter().any(|n| second.contains(&format!("assemble: {n} partitions"))), "{second}");
}

#[test]
fn an_inactive_node_is_finished_and_an_unreadable_record_goes_to_the_dead_letter_topic() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let more_args = ["--idle-after", "2s", "--partitions", "3"];
    let first = start(&settings, folder.path(), "one", &more_args);
    traces::wait_for_topics(&settings, TIME_LIMIT);
    let foreign_producer: BaseProducer = client(&settings, "foreign").create().unwrap();
    let key = NodeId(1).0.to_be_bytes();
    foreign_producer.send(BaseRecord::to(EVENTS).key(&key[..]).payload("no batch")).unwrap();
    foreign_producer.flush(TIME_LIMIT).unwrap();
    // Only its first batch: some of its traces wait for a bio that never arrives.
    let batch = synthetic_batches::batches(1, 100).remove(0);
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    let events = batch.events.len() as u64;
    producer.send(Record { bytes: v1::encode(&batch), events }, || false).unwrap();
    assert_eq!(producer.finish(TIME_LIMIT).delivered, events);
    let mut reader = TraceReader::new(&settings, 3);
    // 100 calls; the 12 commits are part of their traces.
    reader.read(100, TIME_LIMIT);
    let (status, output) = first.finish();
    assert_eq!((status, total(&reader.fragments)), (Some(0), 100), "{output}");
    assert!(
        output.contains("1 sources became inactive") && output.contains("1 records could not be decoded"),
        "{output}"
    );
    assert_dead_letter(&settings);
    for topic in [EVENTS, SPANS, LINKS] {
        assert_timed_by_broker(&settings, topic);
    }
}

/// Asserts that a record an hour ahead gets the broker's time: stages decide timeouts by it.
fn assert_timed_by_broker(settings: &Settings, topic: &str) {
    let client = client(settings, "times");
    let producer: BaseProducer = client.create().unwrap();
    let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let ahead = now_ms() + 3_600_000;
    producer.send(BaseRecord::to(topic).key("").payload("ahead").partition(0).timestamp(ahead)).unwrap();
    producer.flush(TIME_LIMIT).unwrap();
    let consumer: BaseConsumer = client.create().unwrap();
    let mut last = TopicPartitionList::new();
    last.add_partition_offset(topic, 0, Offset::OffsetTail(1)).unwrap();
    consumer.assign(&last).unwrap();
    let message = consumer.poll(TIME_LIMIT).expect("the record").unwrap();
    let at = message.timestamp().to_millis().unwrap();
    assert!(message.payload() == Some(b"ahead") && at <= now_ms(), "{topic}: {}", ahead - at);
}

#[test]
fn an_offset_without_a_state_is_refused_unless_forget_is_given() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    settings.create_topic(EVENTS, 1, Some(1)).unwrap();
    // Sets an offset, as `kafka-consumer-groups.sh --reset-offsets` does.
    let tool: BaseConsumer = client(&settings, "blkkin-join").create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(EVENTS, 0, Offset::Offset(0)).unwrap();
    let started = Instant::now();
    // The first commit makes the cluster create its topic of offsets.
    while let Err(error) = tool.commit(&offsets, CommitMode::Sync) {
        assert!(started.elapsed() < TIME_LIMIT, "{error}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let more_args = ["--partitions", "1"];
    let mut first = start(&settings, folder.path(), "one", &more_args);
    let (status, output) = first.wait();
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("no state belongs to it") && output.contains("--forget"), "{output}");
    let second = start(&settings, folder.path(), "two", &[&more_args[..], &["--forget"]].concat());
    let all = [synthetic_batches::batches(1, 100)];
    feed(&settings, &all, 0..1, 1, Duration::ZERO);
    let mut reader = TraceReader::new(&settings, 1);
    let expected = traces::joined_alone(&all, PARTITIONS);
    reader.read(total(&expected), TIME_LIMIT);
    let output = second.finish_without_error();
    traces::assert_same(&expected, &reader, &output);
}

fn assert_dead_letter(settings: &Settings) {
    let consumer = subscribe(settings, "test-dead", DEAD);
    let started = Instant::now();
    while started.elapsed() < TIME_LIMIT {
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
fn arguments_that_make_no_rule_are_refused() {
    let refused = |args: &[&str]| {
        common::run(&[&["aggregator", "--brokers", "h:1"], args].concat()).expect_code(2).stderr
    };
    assert!(refused(&["--sample", "0.5"]).contains("bad share"));
    assert!(refused(&["--errors"]).contains("--sample 1/100"));
    assert!(refused(&["--idle-after", "5"]).contains("--idle-after"));
    assert!(refused(&["--stage", "first"]).contains("join"));
}

/// Waits until both groups have this number of members and are stable.
fn wait_for_members(settings: &Settings, members: usize) {
    let tool: BaseConsumer = client(settings, "members").create().unwrap();
    let has_all = |group: &str| {
        // The first request makes the cluster create its topic of offsets; until then it returns an
        // error.
        let Ok(groups) = tool.fetch_group_list(Some(group), Duration::from_secs(5)) else { return false };
        groups.groups().iter().any(|group| group.state() == "Stable" && group.members().len() == members)
    };
    let started = Instant::now();
    while !(has_all("blkkin-join") && has_all("blkkin-assemble")) {
        assert!(started.elapsed() < TIME_LIMIT, "not {members} members");
        std::thread::sleep(Duration::from_millis(100));
    }
}
