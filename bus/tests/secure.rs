//! A real broker with TLS, passwords and rights: permitted clients work, and each error has a
//! reason and a remedy.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{
    CONTROL, Compacted, CompactedReader, DEAD, DeadLetter, DeadLetters, EVENTS, EventConsumer, EventProducer,
    Group, KafkaError, Received, Record, Sent, Settings, SingleProducer,
};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};
use blkkin_wire::v1;
use support::secure::{LISTENERS, Listener, Operation, PASSWORD, ResourceType, allow};
use support::{Broker, or_skip};

const PATIENCE: Duration = Duration::from_secs(60);

/// Uses one broker for all cases, since a start takes longer than any of them.
#[test]
fn permitted_clients_work_and_others_get_a_reason_and_a_remedy() {
    let Some(broker) = or_skip(Broker::start_guarded("")) else { return };
    connection_errors_have_a_reason(&broker);
    a_compacted_topic_is_read_without_a_right_to_a_group(&broker);
    authorization_errors_name_the_missing_right(&broker);
    producers_topics_groups_and_dead_letters_work_on_each_listener(&broker);
}

fn record(node: u128) -> Record {
    let source = Source { node: NodeId(node), boot: BootId(1), epoch: StartEpoch(1) };
    Record { bytes: v1::encode(&EventBatch { source, ..EventBatch::tick() }), events: 1 }
}

fn send(settings: &Settings, node: u128) -> EventProducer {
    let producer = EventProducer::new(settings, NodeId(node)).unwrap();
    assert_eq!(producer.send(record(node), || false), Ok(Sent::Queued));
    producer.flush(PATIENCE);
    producer
}

fn with(settings: &Settings, changes: &[(&str, &str)]) -> Settings {
    let mut settings = settings.clone();
    for (name, value) in changes {
        settings.extra.insert((*name).to_owned(), (*value).to_owned());
    }
    settings
}

fn group(name: &str) -> Group {
    Group { name: name.to_owned(), member: None }
}

/// Receives `count` batches, or until the timeout. Returns their nodes.
fn receive(consumer: &mut EventConsumer, count: usize) -> Vec<u128> {
    let (mut nodes, begun) = (Vec::new(), Instant::now());
    while nodes.len() < count && begun.elapsed() < PATIENCE {
        if let Received::Batch(batch, _) = consumer.next(Duration::from_millis(100)).unwrap() {
            nodes.push(batch.source.node.0);
        }
    }
    nodes
}

fn producers_topics_groups_and_dead_letters_work_on_each_listener(broker: &Broker) {
    allow(broker.port(), ResourceType::Topic, "blkkin.*", Operation::All);
    for (n, listener) in LISTENERS.into_iter().enumerate() {
        let (settings, node) = (broker.guard().settings(listener), n as u128 + 2);
        settings.ensure_topic(EVENTS, 1, &[]).unwrap();
        settings.ensure_topic(DEAD, 1, &[]).unwrap();
        assert_eq!(settings.partitions(EVENTS), Ok(1), "{listener:?}");
        let deliveries = send(&settings, node).stats();
        assert_eq!((deliveries.delivered, deliveries.failed), (1, 0), "{listener:?}");
        let mut consumer = EventConsumer::join(&settings, &group(&format!("blkkin-{n}"))).unwrap();
        // Includes the batches of the listeners before.
        let nodes = receive(&mut consumer, n + 2);
        assert!(nodes.len() == n + 2 && nodes.contains(&node), "{listener:?}: {nodes:?}");
        assert!(consumer.commit_within(std::time::Duration::from_secs(30)).unwrap());
        assert_eq!(consumer.uncommitted(), Some(0));
        DeadLetters::new(&settings, "me").unwrap().send(&DeadLetter::default()).unwrap();
    }
}

/// Asserts the reason and the remedy of an error, and that it does not contain the password.
#[track_caller]
fn assert_explains(error: &KafkaError, why: &str, remedy: &str) {
    println!("{error}\n  try: {}\n", error.remedy);
    assert!(error.why.contains(why), "no `{why}` in {error:?}");
    assert!(error.remedy.contains(remedy), "no `{remedy}` in {error:?}");
    assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
}

fn connection_errors_have_a_reason(broker: &Broker) {
    let guard = broker.guard();
    let [tls, scram, scram_tls] = LISTENERS.map(|listener| guard.settings(listener));
    let at =
        |brokers: &str, settings: &Settings| Settings { brokers: brokers.to_owned(), ..settings.clone() };
    let (other, plain) = (guard.another_authority(), Settings::new(format!("127.0.0.1:{}", broker.port())));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let cases = [
        // The broker refuses.
        (with(&scram_tls, &[("sasl.password", "wr0ng")]), "Authentication failed", "sasl.password"),
        (with(&scram, &[("sasl.username", "nobody")]), "Authentication failed", "sasl.username"),
        (with(&scram, &[("sasl.mechanism", "PLAIN")]), "SCRAM-SHA-512", "sasl.mechanism"),
        (with(&tls, &[("ssl.ca.location", &other)]), "certificate verify failed", "ssl.ca.location"),
        // The certificate is for localhost.
        (
            at(&tls.brokers.replace("localhost", "127.0.0.1"), &tls),
            "certificate verify failed",
            "name in the address",
        ),
        // A listener without TLS replies with bytes that are no handshake, or closes the connection
        // during it.
        (at(&plain.brokers, &tls), "SSL ", "is this the port of the TLS listener?"),
        // A listener with TLS or SASL closes a plain connection.
        (at(&tls.brokers, &plain), "security.protocol", "security.protocol"),
        (at(&scram.brokers, &plain), "security.protocol", "security.protocol"),
        // No process listens, or none replies.
        (Settings::new("127.0.0.1:1"), "Connection refused", "check the address"),
        (Settings::new("no-such-host.invalid:9092"), "no-such-host.invalid", "check the name"),
        (Settings::new(silent), "no answer within 10 s", "check the address"),
    ];
    // In parallel: one case waits 10 s for a reply.
    std::thread::scope(|scope| {
        let request = |settings: &'_ Settings| settings.partitions(EVENTS).unwrap_err();
        let results = cases.each_ref().map(|(settings, ..)| scope.spawn(move || request(settings)));
        for (error, (_, why, remedy)) in results.into_iter().zip(&cases) {
            assert_explains(&error.join().unwrap(), why, remedy);
        }
    });
    for (name, value) in [("sasl.pasword", PASSWORD), ("security.protocol", "TLS")] {
        let error = with(&scram, &[(name, value)]).check().unwrap_err();
        assert!(error.what.contains(name) && error.remedy.contains(name), "{error:?}");
        assert_explains(&error, "", "CONFIGURATION.md");
    }
}

fn a_compacted_topic_is_read_without_a_right_to_a_group(broker: &Broker) {
    let (root, user) = (broker.settings(), broker.guard().settings(Listener::Scram));
    root.ensure_compacted_topic(CONTROL).unwrap();
    SingleProducer::new(&root, CONTROL).unwrap().send(b"key", &[], Some(b"content")).unwrap();
    assert_explains(
        &user.check_compacted_topic(CONTROL).unwrap_err(),
        "does not allow this user",
        "kafka-acls.sh",
    );
    allow(broker.port(), ResourceType::Topic, CONTROL, Operation::Read);
    user.check_compacted_topic(CONTROL).unwrap();
    let reader = CompactedReader::open(&user, CONTROL).unwrap();
    let (mut keys, begun) = (Vec::new(), Instant::now());
    // Longer than the client takes to ask for its group.
    while begun.elapsed() < Duration::from_secs(5) {
        if let Compacted::Record { key, .. } = reader.next(Duration::from_millis(100)).unwrap() {
            keys.push(key);
        }
    }
    assert_eq!(keys, [b"key"]);
}

fn authorization_errors_name_the_missing_right(broker: &Broker) {
    let root = broker.settings();
    let user = broker.guard().settings(Listener::Scram);
    let acls = "kafka-acls.sh";
    assert_explains(&user.partitions(EVENTS).unwrap_err(), "does not allow this user to describe it", acls);
    let creation = user.ensure_topic(EVENTS, 1, &[]).unwrap_err();
    assert!(
        creation.what.contains("cannot be created") && creation.remedy.contains("kafka-topics.sh"),
        "{creation:?}"
    );
    assert_explains(&creation, "authorization failed", acls);
    root.create_topic(EVENTS, 1, Some(1)).unwrap();
    root.create_topic(DEAD, 1, Some(1)).unwrap();

    // The user may describe and not write: refused events are counted, and the reason is available.
    // A user without any right to write gets no producer id; one that may write elsewhere is
    // refused record by record.
    allow(broker.port(), ResourceType::Topic, EVENTS, Operation::Describe);
    assert_eq!(user.ensure_topic(EVENTS, 1, &[]), Ok(()), "it exists, so it is not created");
    let dead = DeadLetters::new(&user, "me").unwrap();
    let refused = || {
        let producer = send(&user, 1);
        assert_eq!((producer.stats().failed, producer.stats().waiting()), (1, 0));
        producer.last_rejection().unwrap()
    };
    assert_explains(&refused(), "Cluster authorization failed", acls);
    assert_explains(&dead.send(&DeadLetter::default()).unwrap_err(), "authorization failed", acls);
    allow(broker.port(), ResourceType::Topic, DEAD, Operation::Write);
    assert_explains(&refused(), "Topic authorization failed", acls);
    assert_eq!(dead.send(&DeadLetter::default()), Ok(()), "the same producer, after the right is granted");

    // First without the right to the group; then with it, but without the right to read the topic.
    let permanent_error = |name: &str| {
        let mut consumer = EventConsumer::join(&user, &group(name)).unwrap();
        let begun = Instant::now();
        loop {
            match consumer.next(Duration::from_millis(100)) {
                Err(error) => break error,
                Ok(_) => assert!(begun.elapsed() < PATIENCE, "no error"),
            }
        }
    };
    assert_explains(&permanent_error("blkkin-one"), "Group authorization failed", "--group");
    allow(broker.port(), ResourceType::Group, "blkkin-*", Operation::Read);
    assert_explains(&permanent_error("blkkin-one"), "Topic authorization failed", "--topic");
    allow(broker.port(), ResourceType::Topic, EVENTS, Operation::Read);
    allow(broker.port(), ResourceType::Topic, EVENTS, Operation::Write);
    assert_eq!(send(&user, 1).stats().delivered, 1);
    assert_eq!(receive(&mut EventConsumer::join(&user, &group("blkkin-one")).unwrap(), 1), [1]);
}
