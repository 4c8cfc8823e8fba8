//! Events through a real broker: each comes out once and in its order, also when the broker is killed meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{
    BatcherConfig, DEAD, EVENTS, EventBatcher, EventConsumer, EventProducer, Group, Lag, LagReader, Progress,
    Received, Record, Sent, Settings,
};
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, LayerEvent, Submitter, TaskRef};
use blkkin_wire::ids::{BootId, DeviceId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId};
use support::Broker;

macro_rules! broker {
    () => {
        match Broker::start() {
            Ok(broker) => broker,
            Err(why) => return println!("skipped: {why}"),
        }
    };
}

const PATIENCE: Duration = Duration::from_secs(60);

fn source(node: u128) -> Source {
    Source { node: NodeId(node), boot: BootId(7), epoch: StartEpoch(node as u64 + 1) }
}

/// Events `from` to `to` of a node: which each is stands in its sector.
fn batch(node: u128, from: u64, to: u64) -> EventBatch {
    let event = |n: u64| {
        LayerEvent::Bio(BioEvent {
            span: SpanId(n),
            submitter: Submitter::Kernel,
            root: SpanId(n),
            task: TaskRef { id: TaskId(1), version: 0 },
            request: None,
            first: false,
            split: false,
            queue: MonotonicNs(n * 1_000),
            end: MonotonicNs(n * 1_000 + 500),
            device: DeviceId { major: 7, minor: node as u32 },
            sector: Sector(n),
            bytes: 4096,
            op: BlockOp(1),
            status: BlockStatus(0),
        })
    };
    EventBatch {
        source: source(node),
        sequence: 0,
        anchor: ClockAnchor {
            monotonic: MonotonicNs(0),
            wallclock: WallclockNs(0),
            uncertainty: DurationNs(1),
            ..ClockAnchor::NONE
        },
        events: (from..to).map(event).collect(),
        watermark: MonotonicNs(to * 1_000),
        stats: SourceStats::default(),
        crashed_runs: Vec::new(),
    }
}

fn records(node: u128, events: u64) -> Vec<Record> {
    let mut gatherer = EventBatcher::new(BatcherConfig { events_max: 500, ..BatcherConfig::default() }, 0);
    let now = Instant::now();
    let batches = (0..events).step_by(100).map(|from| batch(node, from, (from + 100).min(events)));
    let mut records: Vec<_> = batches.flat_map(|batch| gatherer.add(batch, now).records).collect();
    records.extend(gatherer.take().records);
    records
}

fn send(producer: &EventProducer, record: &Record) {
    assert_eq!(producer.send(record.clone(), || false), Ok(Sent::Queued));
}

/// Sectors by node, in the order in which they came, until there are so many or nothing comes any more.
fn receive(consumer: &mut EventConsumer, wanted: usize, again: &mut u64) -> HashMap<u128, Vec<u64>> {
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
            Received::Duplicate => *again += 1,
            Received::Invalid(why, ..) => panic!("{why}"),
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
fn events_of_three_nodes_come_out_once_and_in_order_although_the_broker_is_killed() {
    const NODES: u128 = 3;
    const EVENTS_EACH: u64 = 30_000;
    let mut broker = broker!();
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
        let told = (deliveries.accepted, deliveries.delivered, deliveries.failed, deliveries.waiting());
        assert_eq!(told, (EVENTS_EACH, EVENTS_EACH, 0, 0));
    }
    let mut again = 0;
    let mut consumer = EventConsumer::join(&settings, &group("once")).unwrap();
    let sectors = receive(&mut consumer, (NODES as u64 * EVENTS_EACH) as usize, &mut again);
    assert_each_once(&sectors, NODES, EVENTS_EACH);
    assert_eq!(again, 0, "an idempotent producer sends nothing twice");
}

#[test]
fn what_is_sent_again_is_given_out_once_and_what_was_not_done_comes_again() {
    const EVENTS_EACH: u64 = 5_000;
    let broker = broker!();
    broker.settings().create_topic(EVENTS, 3, Some(1)).unwrap();
    let settings = broker.settings();
    let records = records(1, EVENTS_EACH);
    // An agent that died sends again what it does not know to be delivered.
    for _ in 0..2 {
        let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
        records.iter().for_each(|record| send(&producer, record));
        assert_eq!(producer.finish(PATIENCE).waiting(), 0);
    }
    let mut again = 0;
    let mut consumer = EventConsumer::join(&settings, &group("again")).unwrap();
    let (ends, progress) = (LagReader::new(&settings).unwrap(), Progress::default());
    let behind = || ends.lag(EVENTS, &progress).unwrap();
    consumer.publish_progress(&progress);
    assert_eq!(behind(), Lag { records: 0, partitions: 0 }, "it has no part yet");
    let sectors = receive(&mut consumer, EVENTS_EACH as usize, &mut again);
    assert_each_once(&sectors, 1, EVENTS_EACH);
    let all = 2 * records.len() as u64;
    assert_eq!(behind(), Lag { records: all, partitions: 3 }, "nothing is done");
    receive(&mut consumer, 0, &mut again);
    while again < records.len() as u64 {
        let received = consumer.next(PATIENCE).unwrap();
        assert_eq!(received, Received::Duplicate);
        again += 1;
    }
    // Nothing was committed: the next member has all of it.
    drop(consumer);
    let mut next = EventConsumer::join(&settings, &group("again")).unwrap();
    next.publish_progress(&progress);
    let sectors = receive(&mut next, EVENTS_EACH as usize, &mut again);
    assert_each_once(&sectors, 1, EVENTS_EACH);
    next.commit().unwrap();
    assert_eq!(behind(), Lag { records: all / 2, partitions: 3 }, "what came once is done");
    // It waits, and fetches nothing: what comes meanwhile is behind it all the same.
    assert_eq!(next.poll_paused(Duration::from_millis(100)), Ok(Vec::new()));
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    records[..3].iter().for_each(|record| send(&producer, record));
    assert_eq!(producer.finish(PATIENCE).waiting(), 0);
    assert_eq!(behind(), Lag { records: all / 2 + 3, partitions: 3 });
    drop(next);
    let mut last = EventConsumer::join(&settings, &group("again")).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        match last.next(Duration::from_millis(100)).unwrap() {
            Received::Batch(..) => panic!("it was done"),
            // What was sent a second time: the commit says what was given out.
            Received::Duplicate | Received::Timeout | Received::Rebalanced { .. } => {}
            Received::Invalid(why, ..) => panic!("{why}"),
        }
    }
}

#[test]
fn a_record_of_something_else_is_refused_and_the_next_one_is_read() {
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    let broker = broker!();
    broker.settings().create_topic(EVENTS, 1, Some(1)).unwrap();
    let settings = broker.settings();
    let stranger: BaseProducer =
        rdkafka::ClientConfig::new().set("bootstrap.servers", &settings.brokers).create().unwrap();
    stranger.send(BaseRecord::<(), _>::to(EVENTS).payload("no batch")).unwrap();
    stranger.flush(PATIENCE).unwrap();
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
fn a_topic_that_is_missing_and_an_address_that_is_wrong_are_clear_errors() {
    let broker = broker!();
    let missing = broker.settings().partitions(EVENTS).unwrap_err();
    assert!(missing.what.contains(EVENTS) && missing.remedy.contains("--create"), "{missing:?}");
    let many = broker.settings().create_topic(EVENTS, 1, Some(3)).unwrap_err();
    assert!(many.why.contains("replication"), "one broker holds no three copies: {many:?}");
    // Port 1 of this machine: nobody listens.
    let wrong = Settings::new("127.0.0.1:1").partitions(EVENTS).unwrap_err();
    assert!(wrong.what.contains("127.0.0.1:1") && wrong.remedy.contains("address"), "{wrong:?}");
    let mut unknown = broker.settings();
    unknown.extra.insert("sasl.pasword".to_owned(), "x".to_owned());
    let unknown = EventProducer::new(&unknown, NodeId(1)).err().unwrap();
    assert!(unknown.remedy.contains("sasl.pasword"), "{unknown:?}");
}

#[test]
fn records_that_the_topic_finds_too_long_are_refused_with_what_to_do_and_shorter_ones_arrive() {
    // As a cluster's administrator may have set it; topics that are made here take what is sent.
    let broker = match Broker::start_with("message.max.bytes=5000\n") {
        Ok(broker) => broker,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut settings = broker.settings();
    settings.ensure_topic(EVENTS, 1, &[("max.message.bytes", "5000")]).unwrap();
    settings.ensure_topic(DEAD, 1, &[]).unwrap();
    // Uncompressed, so that what counts is what is cut.
    settings.extra.insert("compression.type".to_owned(), "none".to_owned());
    let long = |settings: &Settings| {
        let config = BatcherConfig { bytes_max: settings.record_bytes(), ..BatcherConfig::default() };
        let mut gatherer = EventBatcher::new(config, 0);
        let mut records = gatherer.add(batch(1, 0, 2_000), Instant::now()).records;
        records.extend(gatherer.take().records);
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
fn a_letter_says_in_its_headers_why_it_is_there() {
    use blkkin_bus::kafka::{DeadLetter, DeadLetters};
    use rdkafka::Message as _;
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::Headers as _;
    let broker = broker!();
    let settings = broker.settings();
    settings.create_topic(DEAD, 1, Some(1)).unwrap();
    let letters = DeadLetters::new(&settings, "me").unwrap();
    let letter = |bytes| DeadLetter {
        headers: vec![("blkkin.reason", "no batch".to_owned())],
        payload: vec![7; bytes],
    };
    letters.send(&letter(100)).unwrap();
    // Longer than the broker takes.
    letters.send(&letter(2_000_000)).unwrap();
    let mut reading = rdkafka::ClientConfig::new();
    reading
        .set("bootstrap.servers", &settings.brokers)
        .set("group.id", "post")
        .set("auto.offset.reset", "earliest");
    let reader: BaseConsumer = reading.create().unwrap();
    reader.subscribe(&[DEAD]).unwrap();
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
    let said = "blkkin.by=me blkkin.reason=no batch";
    let expected = [(said.to_owned(), 100), (format!("{said} blkkin.bytes_left_out=2000000"), 0)];
    assert_eq!(read, expected);
}

/// Whoever starts while a topic is being made has its first record refused: no broker leads the partition yet. If the next is taken
/// meanwhile, a cluster that knows nothing of this producer asks for nothing before it, and librdkafka takes both for delivered. With
/// a real broker the moment is a few ms long; here the cluster is librdkafka's own imitation, which is told to refuse the first.
#[test]
fn a_first_record_that_is_refused_is_not_lost_behind_the_next() {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(EVENTS, 1, 1).unwrap();
    let settings = Settings::new(cluster.bootstrap_servers());
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    // The imitation keeps no states of producers: whichever comes is the first. Before it everybody is connected.
    let send_one = |n| send(&producer, &Record { bytes: vec![n; 100], events: 1 });
    send_one(0);
    assert_eq!(producer.flush(PATIENCE).delivered, 1);
    // So the next is on its way before the first is answered, if it may be.
    cluster.broker_round_trip_time(1, Duration::from_millis(100)).unwrap();
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refusal]);
    (1..5).for_each(|n| {
        send_one(n);
        std::thread::sleep(Duration::from_millis(20));
    });
    assert_eq!(producer.finish(PATIENCE).delivered, 5);
    let reader = rdkafka::ClientConfig::new().set("bootstrap.servers", &settings.brokers).create();
    let reader: BaseConsumer = reader.unwrap();
    let (_, arrived) = reader.fetch_watermarks(EVENTS, 0, PATIENCE).unwrap();
    assert_eq!(arrived, 5, "all that is called delivered");
}
