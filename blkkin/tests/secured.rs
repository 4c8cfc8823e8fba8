//! Services with a secured cluster: TLS and a password, consumer groups by the protocol of KIP-848,
//! and members that are killed; also their errors when the cluster rejects them.
//!
//! *Input*: batches of four nodes and a real broker with SCRAM and TLS. The fragments and spans
//! that arrive are compared with those of the join stage run alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_bus::kafka::Settings;
use blkkin_bus::recording::Recorder;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::{Incarnation, TraceFragment};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::stage::{InputRecord, Stage, StageOutput};
use blkkin_wire::v1;
use rdkafka::Message;
use serde_json::Value;

use crate::broker::Broker;
use crate::broker::client::subscribe;
use crate::broker::secure::{Listener, Operation, PASSWORD, ResourceType, allow};
use crate::common;
use crate::support::or_skip;
use crate::support::service::Service;
use crate::support::synthetic_batches;
use crate::support::traces;
use crate::support::traces::{FragmentCounts, TraceReader, difference, total};

const NODES: u128 = 4;
const CALLS: u64 = 2_000;
const PARTITIONS: u32 = 6;
const TIMEOUT: Duration = Duration::from_secs(120);
/// Timeouts of the cluster, whose defaults are 45 s and 5 s.
const QUICK: &str = "group.consumer.min.session.timeout.ms=6000\ngroup.consumer.session.timeout.ms=6000\n\
    group.consumer.min.heartbeat.interval.ms=1000\ngroup.consumer.heartbeat.interval.ms=1000\n";

/// Starts a service of blkkin with this cluster.
fn start(settings: &Settings, folder: &Path, name: &str, args: &[&str]) -> Service {
    let set: Vec<String> =
        settings.extra.iter().map(|(setting, value)| format!("{setting}={value}")).collect();
    let set = set.iter().flat_map(|word| ["--set", word.as_str()]);
    let args =
        args[..1].iter().copied().chain(["--brokers", &settings.brokers]).chain(args[1..].iter().copied());
    Service::start(folder, name, &args.chain(set).collect::<Vec<_>>())
}

/// Result of the join stage alone: fragments, and the spans in them.
#[derive(Default)]
struct Expected(FragmentCounts, BTreeSet<(TraceId, SpanId)>);

impl StageOutput for Expected {
    fn fragment(&mut self, _: u32, _: u64, piece: TraceFragment) {
        traces::count(&mut self.0, &piece);
        self.1.extend(piece.spans.iter().map(|span| (span.trace, span.id)));
    }
    fn side_output(&mut self, _: u32, _: u64, piece: TraceFragment) {
        panic!("{piece:?}");
    }
    fn dead_letter(&mut self, why: String) {
        panic!("{why}");
    }
}

fn expected(all: &[Vec<EventBatch>]) -> Expected {
    let mut expected = Expected::default();
    for batches in all {
        let mut stage = JoinStage::new(Incarnation(1), JoinStageConfig::new(PARTITIONS));
        for batch in batches {
            stage.apply(InputRecord { at: None, bytes: &v1::encode(batch) }, &mut expected);
        }
    }
    expected
}

/// Records half `part` of each node's batches as an agent does.
fn record(folder: &Path, all: &[Vec<EventBatch>], part: usize) {
    let mut recorder = Recorder::open(folder).unwrap();
    for batches in all {
        let half = batches.len() / 2;
        let part = if part == 0 { &batches[..half] } else { &batches[half..] };
        part.iter().for_each(|batch| recorder.add(&v1::encode(batch)).unwrap());
    }
}

/// Reads the distinct spans of the topic `zipkin` until there are `wanted`.
fn exported(settings: &Settings, wanted: usize) -> BTreeSet<(TraceId, SpanId)> {
    let consumer = subscribe(settings, "shown", "zipkin");
    let (mut spans, start_time) = (BTreeSet::new(), Instant::now());
    while spans.len() < wanted && start_time.elapsed() < TIMEOUT {
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
        let list: Vec<Value> = serde_json::from_slice(message.payload().unwrap()).unwrap();
        spans.extend(list.iter().map(|span| {
            let id = |key: &str| u128::from_str_radix(span[key].as_str().unwrap(), 16).unwrap();
            (TraceId(id("traceId")), SpanId(id("id") as u64))
        }));
    }
    spans
}

#[test]
fn over_tls_with_kip_848_every_span_arrives_although_members_are_killed() {
    let broker = or_skip!(Broker::start_guarded(QUICK));
    let (root, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    for resource in ["blkkin.*", "zipkin"] {
        allow(broker.port(), ResourceType::Topic, resource, Operation::All);
    }
    allow(broker.port(), ResourceType::Group, "blkkin-*", Operation::Read);
    root.create_topic("zipkin", 1, Some(1)).unwrap();
    let mut settings = broker.guard().settings(Listener::ScramTls);
    let all: Vec<_> = (1..=NODES).map(|node| synthetic_batches::batches(node, CALLS)).collect();
    println!("{} events", all.iter().map(|batches| synthetic_batches::event_count(batches)).sum::<usize>());
    let Expected(pieces, spans) = expected(&all);
    let [first, second] = [0, 1].map(|part| {
        let recording = folder.path().join(format!("recording{part}"));
        record(&recording, &all, part);
        recording.to_str().unwrap().to_owned()
    });
    let agent = |recording: &str| {
        // An agent has no consumer group.
        let mut agent = start(&settings, folder.path(), "agent", &["agent", "--replay", recording]);
        let (status, log) = agent.wait();
        assert!(status == Some(0) && log.contains("the whole recording is sent"), "{log}");
    };
    let mut grouped = settings.clone();
    grouped.extra.insert("group.protocol".to_owned(), "consumer".to_owned());
    let partitions = PARTITIONS.to_string();
    let aggregate = ["aggregator", "--metrics", "off", "--save-every", "1s", "--partitions", &partitions];
    let aggregator =
        |name: &str, more: &[&str]| start(&grouped, folder.path(), name, &[&aggregate[..], more].concat());
    let to = format!("zipkin-kafka={}/zipkin?format=json", settings.brokers);
    let exporter = |name: &str| start(&grouped, folder.path(), name, &["exporter", "--to", &to]);

    // One aggregator is a static member: the cluster keeps its partitions and name until its
    // session expires.
    let static_member = ["--instance", "one"];
    let (mut one, two) = (aggregator("one", &static_member), aggregator("two", &[]));
    [&one, &two].iter().for_each(|service| service.wait_for_output("aggregating; events from", TIMEOUT));
    let (mut left, right) = (exporter("left"), exporter("right"));
    [&left, &right].iter().for_each(|service| service.wait_for_output("exporting", TIMEOUT));
    agent(&first);
    let mut reader = TraceReader::new(&root, PARTITIONS as i32);
    reader.read_until(TIMEOUT, |found| total(found) * 4 > total(&pieces));
    one.kill();
    left.kill();
    one.restart();
    agent(&second);
    reader.read(total(&pieces), TIMEOUT);
    let found = exported(&root, spans.len());

    let ended = [one, two, right].map(Service::finish);
    let difference = difference(&pieces, &reader.fragments);
    assert!(
        difference.is_empty(),
        "{} of {}: {difference:#?}\n{ended:#?}",
        total(&reader.fragments),
        total(&pieces)
    );
    assert_eq!(found.len(), spans.len(), "{ended:#?}");
    assert!(found == spans);
    for (status, log) in &ended {
        assert_eq!(*status, Some(0), "{log}");
    }
    // No log contains the password, also not after a wrong one.
    settings.extra.insert("sasl.password".to_owned(), format!("{PASSWORD}x"));
    let rejected = start(&settings, folder.path(), "wrong", &["exporter", "--to", &to]);
    rejected.wait_for_output("invalid credentials", TIMEOUT);
    rejected.wait_for_output("sasl.password", TIMEOUT);
    assert_eq!(rejected.finish().0, Some(0));
    let rejected = start(&settings, folder.path(), "wrong-too", &aggregate);
    rejected.wait_for_output("invalid credentials", TIMEOUT);
    assert_eq!(rejected.finish().0, Some(0));
    for file in fs::read_dir(folder.path()).unwrap().flatten().filter(|file| file.path().is_file()) {
        let log = fs::read_to_string(file.path()).unwrap();
        assert!(!log.contains(PASSWORD), "{}: {log}", file.path().display());
    }
}

#[test]
fn invalid_settings_end_a_service_at_once_and_no_password_is_printed() {
    let secret = format!("sasl.pasword={PASSWORD}");
    let cases: [(&[&str], &str, &str); 5] = [
        (&[&secret], "the setting sasl.pasword cannot be used", "`sasl.password` is the nearest"),
        (&["security.protocol=TLS"], "security.protocol", "CONFIGURATION.md"),
        (&["group.protocol=consumer", "session.timeout.ms=9000"], "session.timeout.ms", "CONFIGURATION.md"),
        (&["security.protocol=SSL", "ssl.ca.location=/no/such/ca.pem"], "ssl.ca.location", "be readable"),
        (&[&secret.replace('=', ":")], "bad setting `sasl.pasword`", "--set security.protocol=SSL"),
    ];
    let services: [&[&str]; 3] =
        [&["agent", "--replay", "/no/such/folder"], &["aggregator"], &["exporter", "--to", "zipkin=x.json"]];
    for service in services {
        for (set, error, remedy) in cases {
            let set: Vec<_> = set.iter().flat_map(|word| ["--set", *word]).collect();
            let run =
                common::run(&[&service[..1], &["--brokers", "127.0.0.1:1"], &service[1..], &set].concat());
            assert_eq!(run.code, Some(2), "{service:?} {error}: {run:?}");
            assert!(run.stderr.contains(error) && run.stderr.contains(remedy), "{run:?}");
            assert!(!run.stderr.contains(PASSWORD), "{run:?}");
        }
    }
}
