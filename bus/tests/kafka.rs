//! Events through a real broker: each is received once and in order, also if the broker is killed
//! meanwhile.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{
    BatcherConfig, DEAD, EVENTS, EventBatcher, EventConsumer, EventProducer, Group, Lag, LagReader, Progress,
    Received, Record, Sent, Settings,
};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, LayerEvent, PairEvent, TaskRef};
use blkkin_wire::ids::{BootId, DeviceId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId};
use support::client::{client, subscribe};
use support::{Broker, or_skip};

const PATIENCE: Duration = Duration::from_secs(60);

fn source(node: u128) -> Source {
    Source { node: NodeId(node), boot: BootId(7), epoch: StartEpoch(node as u64 + 1) }
}

/// Returns the events `from` to `to` of a node. An event's sector is its number.
fn batch(node: u128, from: u64, to: u64) -> EventBatch {
    let event = |n: u64| {
        let (task, device) =
            (TaskRef { id: TaskId(1), version: 0 }, DeviceId { major: 7, minor: node as u32 });
        let times = [n * 1_000, n * 1_000 + 500].map(MonotonicNs);
        LayerEvent::Bio(BioEvent {
            sector: Sector(n),
            ..PairEvent::bare([SpanId(n); 3], task, device, times).bio
        })
    };
    let (source, events, watermark) =
        (source(node), (from..to).map(event).collect(), MonotonicNs(to * 1_000));
    EventBatch { source, events, watermark, ..EventBatch::tick() }
}

fn records(node: u128, events: u64) -> Vec<Record> {
    let mut batcher = EventBatcher::new(BatcherConfig { events_max: 500, ..BatcherConfig::default() }, 0);
    let now = Instant::now();
    let batches = (0..events).step_by(100).map(|from| batch(node, from, (from + 100).min(events)));
    let mut records: Vec<_> = batches.flat_map(|batch| batcher.add(batch, now).records).collect();
    records.extend(batcher.take().records);
    records
}

fn send(producer: &EventProducer, record: &Record) {
    assert_eq!(producer.send(record.clone(), || false), Ok(Sent::Queued));
}

/// Receives until `wanted` events have arrived or the timeout has passed. Returns the sectors by
/// node, in order of arrival, and adds the number of duplicates to `duplicates`.
fn receive(consumer: &mut EventConsumer, wanted: usize, duplicates: &mut u64) -> HashMap<u128, Vec<u64>> {
    let (mut sectors, deadline) = (HashMap::<u128, Vec<u64>>::new(), Instant::now() + PATIENCE);
    let count = |sectors: &HashMap<u128, Vec<u64>>| sectors.values().map(Vec::len).sum::<usize>();
    while count(&sectors) < wanted && Instant::now() < deadline {
        match consumer.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(batch, missing) => {
                assert_eq!(missing, 0);
                let of = sectors.entry(batch.source.node.0).or_default();
                of.extend(batch.events.iter().map(|event| match event {
                    LayerEvent::Bio(bio) => bio.sector.0,
                    other => panic!("{other:?}"),
                }));
            }
            Received::Duplicate => *duplicates += 1,
            Received::Invalid(error, ..) => panic!("{error}"),
            Received::Timeout | Received::Rebalanced { .. } => {}
        }
    }
    sectors
}

fn group(name: &str) -> Group {
    Group { name: name.to_owned(), member: None }
}

fn assert_each_once(sectors: &HashMap<u128, Vec<u64>>, nodes: u128, events: u64) {
    assert_eq!(sectors.len() as u128, nodes);
    for (node, sectors) in sectors {
        assert!(sectors.iter().copied().eq(0..events), "node {node}: {} events", sectors.len());
    }
}

#[test]
fn events_of_three_nodes_are_received_once_and_in_order_although_the_broker_is_killed() {
    const NODES: u128 = 3;
    const EVENTS_EACH: u64 = 30_000;
    let Some(mut broker) = or_skip(Broker::start()) else { return };
    broker.settings().create_topic(EVENTS, 12, Some(1)).unwrap();
    let settings = broker.settings();
    assert_eq!(settings.partitions(EVENTS), Ok(12));
    let producers: Vec<_> =
        (0..NODES).map(|node| EventProducer::new(&settings, NodeId(node)).unwrap()).collect();
    let records: Vec<_> = (0..NODES).map(|node| records(node, EVENTS_EACH)).collect();
    let half = records[0].len() / 2;
    for (at, _) in records[0].iter().enumerate() {
        if at == half {
            broker.kill();
        }
        producers.iter().zip(&records).for_each(|(producer, records)| send(producer, &records[at]));
    }
    broker.up();
    for producer in producers {
        let deliveries = producer.finish(PATIENCE);
        let counts = (deliveries.accepted, deliveries.delivered, deliveries.failed, deliveries.waiting());
        assert_eq!(counts, (EVENTS_EACH, EVENTS_EACH, 0, 0));
    }
    let mut duplicates = 0;
    let mut consumer = EventConsumer::join(&settings, &group("once")).unwrap();
    let sectors = receive(&mut consumer, (NODES as u64 * EVENTS_EACH) as usize, &mut duplicates);
    assert_each_once(&sectors, NODES, EVENTS_EACH);
    assert_eq!(duplicates, 0, "an idempotent producer adds no record twice");
}

#[test]
fn duplicates_are_received_once_and_uncommitted_records_are_received_again() {
    const EVENTS_EACH: u64 = 5_000;
    let Some(broker) = or_skip(Broker::start()) else { return };
    broker.settings().create_topic(EVENTS, 3, Some(1)).unwrap();
    let settings = broker.settings();
    let records = records(1, EVENTS_EACH);
    // A restarted agent sends unacknowledged records again.
    for _ in 0..2 {
        let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
        records.iter().for_each(|record| send(&producer, record));
        assert_eq!(producer.finish(PATIENCE).waiting(), 0);
    }
    let mut duplicates = 0;
    let mut consumer = EventConsumer::join(&settings, &group("again")).unwrap();
    let (ends, progress) = (LagReader::new(&settings).unwrap(), Progress::default());
    let lag = || ends.lag(EVENTS, &progress).unwrap();
    consumer.publish_progress(&progress);
    assert_eq!(lag(), Lag { records: 0, partitions: 0 }, "no partition is assigned yet");
    let sectors = receive(&mut consumer, EVENTS_EACH as usize, &mut duplicates);
    assert_each_once(&sectors, 1, EVENTS_EACH);
    let all = 2 * records.len() as u64;
    assert_eq!(lag(), Lag { records: all, partitions: 3 }, "nothing is committed");
    receive(&mut consumer, 0, &mut duplicates);
    while duplicates < records.len() as u64 {
        let received = consumer.next(PATIENCE).unwrap();
        assert_eq!(received, Received::Duplicate);
        duplicates += 1;
    }
    // Nothing was committed: the next member receives all records.
    drop(consumer);
    let mut next = EventConsumer::join(&settings, &group("again")).unwrap();
    next.publish_progress(&progress);
    let sectors = receive(&mut next, EVENTS_EACH as usize, &mut duplicates);
    assert_each_once(&sectors, 1, EVENTS_EACH);
    assert!(next.commit_within(std::time::Duration::from_secs(30)).unwrap());
    assert_eq!(lag(), Lag { records: all / 2, partitions: 3 }, "the received records are committed");
    // A paused member fetches nothing. Records that arrive meanwhile count as lag.
    assert_eq!(next.poll_paused(Duration::from_millis(100)), Ok(Vec::new()));
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    records[..3].iter().for_each(|record| send(&producer, record));
    assert_eq!(producer.finish(PATIENCE).waiting(), 0);
    assert_eq!(lag(), Lag { records: all / 2 + 3, partitions: 3 });
    drop(next);
    let mut last = EventConsumer::join(&settings, &group("again")).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        match last.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(..) => panic!("a committed record"),
            // Records that were sent twice: the commit metadata identifies them.
            Received::Duplicate | Received::Timeout | Received::Rebalanced { .. } => {}
            Received::Invalid(error, ..) => panic!("{error}"),
        }
    }
}

#[test]
fn a_record_that_does_not_decode_is_invalid_and_the_next_one_is_read() {
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    let Some(broker) = or_skip(Broker::start()) else { return };
    broker.settings().create_topic(EVENTS, 1, Some(1)).unwrap();
    let settings = broker.settings();
    let other_producer: BaseProducer = client(&settings, "other").create().unwrap();
    other_producer.send(BaseRecord::<(), _>::to(EVENTS).payload("no batch")).unwrap();
    other_producer.flush(PATIENCE).unwrap();
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    records(1, 100).iter().for_each(|record| send(&producer, record));
    assert_eq!(producer.finish(PATIENCE).delivered, 100);
    let mut consumer = EventConsumer::join(&settings, &group("poison")).unwrap();
    let mut refused = Vec::new();
    let sectors = loop {
        match consumer.next(PATIENCE).unwrap() {
            Received::Invalid(_, bytes, _) => refused.push(bytes),
            Received::Batch(batch, _) => break batch.events.len(),
            Received::Rebalanced { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((refused, sectors), (vec![b"no batch".to_vec()], 100));
}

#[test]
fn a_missing_topic_and_a_wrong_address_have_errors_with_a_remedy() {
    let Some(broker) = or_skip(Broker::start()) else { return };
    let missing = broker.settings().partitions(EVENTS).unwrap_err();
    assert!(missing.what.contains(EVENTS) && missing.remedy.contains("--create"), "{missing:?}");
    let many = broker.settings().create_topic(EVENTS, 1, Some(3)).unwrap_err();
    assert!(many.why.contains("replication"), "one broker cannot have three replicas: {many:?}");
    // No process listens on port 1.
    let wrong = Settings::new("127.0.0.1:1").partitions(EVENTS).unwrap_err();
    assert!(wrong.what.contains("127.0.0.1:1") && wrong.remedy.contains("address"), "{wrong:?}");
    let mut unknown = broker.settings();
    unknown.extra.insert("sasl.pasword".to_owned(), "x".to_owned());
    let unknown = EventProducer::new(&unknown, NodeId(1)).err().unwrap();
    assert!(unknown.remedy.contains("sasl.pasword"), "{unknown:?}");
}

#[test]
fn records_above_the_topics_limit_are_rejected_with_a_remedy_and_shorter_ones_arrive() {
    // A limit of the cluster's administrator. Topics that blkkin creates accept its records.
    let Some(broker) = or_skip(Broker::start_with("message.max.bytes=5000\n")) else { return };
    let mut settings = broker.settings();
    settings.ensure_topic(EVENTS, 1, &[("max.message.bytes", "5000")]).unwrap();
    settings.ensure_topic(DEAD, 1, &[]).unwrap();
    // Without compression, the record's size is the size that the broker checks.
    settings.extra.insert("compression.type".to_owned(), "none".to_owned());
    let long = |settings: &Settings| {
        let config = BatcherConfig { bytes_max: settings.record_bytes(), ..BatcherConfig::default() };
        let mut batcher = EventBatcher::new(config, 0);
        let mut records = batcher.add(batch(1, 0, 2_000), Instant::now()).records;
        records.extend(batcher.take().records);
        records
    };
    assert!(long(&settings).iter().any(|record| record.bytes.len() > 5_000));
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    long(&settings).iter().for_each(|record| send(&producer, record));
    let deliveries = producer.flush(PATIENCE);
    assert_eq!((deliveries.failed, deliveries.waiting()), (2_000, 0));
    let refused = producer.last_rejection().unwrap();
    assert!(refused.why.contains("MessageSizeTooLarge"), "{refused:?}");
    assert!(refused.remedy.contains("--set message.max.bytes=N"), "{refused:?}");

    settings.extra.insert("message.max.bytes".to_owned(), "5000".to_owned());
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    long(&settings).iter().for_each(|record| send(&producer, record));
    assert_eq!(producer.finish(PATIENCE).delivered, 2_000);
    let mut consumer = EventConsumer::join(&broker.settings(), &group("short")).unwrap();
    assert_each_once(&receive(&mut consumer, 2_000, &mut 0), 1, 2_000);
}

#[test]
fn a_dead_letter_has_its_reason_in_the_headers() {
    use blkkin_bus::kafka::{DeadLetter, DeadLetters};
    use rdkafka::Message as _;

    use rdkafka::message::Headers as _;
    let Some(broker) = or_skip(Broker::start()) else { return };
    let settings = broker.settings();
    settings.create_topic(DEAD, 1, Some(1)).unwrap();
    let dead_letters = DeadLetters::new(&settings, "me").unwrap();
    let letter = |bytes| DeadLetter {
        headers: vec![("blkkin.reason", "no batch".to_owned())],
        payload: vec![7; bytes],
    };
    dead_letters.send(&letter(100)).unwrap();
    // Above the broker's limit.
    dead_letters.send(&letter(2_000_000)).unwrap();
    let reader = subscribe(&settings, "post", DEAD);
    let mut read = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while read.len() < 2 && Instant::now() < deadline {
        let Some(message) = reader.poll(Duration::from_millis(100)) else { continue };
        let message = message.unwrap().detach();
        let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap_or_default().to_vec()).unwrap();
        let headers = message.headers().unwrap().iter();
        let headers: Vec<_> =
            headers.map(|header| format!("{}={}", header.key, text(header.value))).collect();
        read.push((headers.join(" "), message.payload().unwrap_or_default().len()));
    }
    let common = "blkkin.by=me blkkin.reason=no batch";
    let expected = [(common.to_owned(), 100), (format!("{common} blkkin.bytes_left_out=2000000"), 0)];
    assert_eq!(read, expected);
}

/// While a topic is being created its partition has no leader, and the cluster refuses a producer's
/// first record. If the next record is accepted meanwhile, the cluster has no state of this
/// producer and does not miss the first one; librdkafka then treats both as delivered. With a real
/// broker this window is a few ms long. Here librdkafka's mock cluster refuses the first record.
#[test]
fn a_refused_first_record_is_not_lost_when_the_next_is_accepted() {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(EVENTS, 1, 1).unwrap();
    let settings = Settings::new(cluster.bootstrap_servers());
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    // The mock cluster has no producer state, so any record can be the first. This one establishes
    // the connection.
    let send_one = |n| send(&producer, &Record { bytes: vec![n; 100], events: 1 });
    send_one(0);
    assert_eq!(producer.flush(PATIENCE).delivered, 1);
    // With this round trip the next record is sent before the first reply, if the settings allow
    // it.
    cluster.broker_round_trip_time(1, Duration::from_millis(100)).unwrap();
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refusal]);
    (1..5).for_each(|n| {
        send_one(n);
        std::thread::sleep(Duration::from_millis(20));
    });
    assert_eq!(producer.finish(PATIENCE).delivered, 5);
    let reader: BaseConsumer = client(&settings, "other").create().unwrap();
    let (_, arrived) = reader.fetch_watermarks(EVENTS, 0, PATIENCE).unwrap();
    assert_eq!(arrived, 5, "every record that counts as delivered");
}
