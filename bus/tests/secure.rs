//! A real broker with TLS, passwords and rights: what may pass passes, and what may not is told with why and what to do.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{
    DEAD, DeadLetter, DeadLetters, EVENTS, EventConsumer, EventProducer, Group, KafkaError, Received, Record,
    Sent, Settings,
};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};
use blkkin_wire::v1;
use support::Broker;
use support::secure::{About, LISTENERS, Listener, PASSWORD, Right, allow};

const PATIENCE: Duration = Duration::from_secs(60);

/// One broker for all of it: to start one takes longer than any of it.
#[test]
fn who_may_passes_and_who_may_not_is_told_why() {
    let broker = match Broker::start_guarded("") {
        Ok(broker) => broker,
        Err(why) => return println!("skipped: {why}"),
    };
    who_cannot_reach_it_is_told_why(&broker);
    who_may_not_is_told_what_to_allow(&broker);
    producers_topics_groups_and_letters_pass_each_listener(&broker);
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

/// The nodes whose batches came, once so many have.
fn receive(consumer: &mut EventConsumer, count: usize) -> Vec<u128> {
    let (mut nodes, begun) = (Vec::new(), Instant::now());
    while nodes.len() < count && begun.elapsed() < PATIENCE {
        if let Received::Batch(batch, _) = consumer.next(Duration::from_millis(100)).unwrap() {
            nodes.push(batch.source.node.0);
        }
    }
    nodes
}

fn producers_topics_groups_and_letters_pass_each_listener(broker: &Broker) {
    allow(broker.port(), About::Topic, "blkkin.*", Right::All);
    for (n, listener) in LISTENERS.into_iter().enumerate() {
        let (settings, node) = (broker.guard().settings(listener), n as u128 + 2);
        settings.ensure_topic(EVENTS, 1, &[]).unwrap();
        settings.ensure_topic(DEAD, 1, &[]).unwrap();
        assert_eq!(settings.partitions(EVENTS), Ok(1), "{listener:?}");
        let deliveries = send(&settings, node).stats();
        assert_eq!((deliveries.delivered, deliveries.failed), (1, 0), "{listener:?}");
        let mut consumer = EventConsumer::join(&settings, &group(&format!("blkkin-{n}"))).unwrap();
        // And those that were there before.
        let nodes = receive(&mut consumer, n + 2);
        assert!(nodes.len() == n + 2 && nodes.contains(&node), "{listener:?}: {nodes:?}");
        consumer.commit().unwrap();
        assert_eq!(consumer.uncommitted(), Some(0));
        DeadLetters::new(&settings, "me").unwrap().send(&DeadLetter::default()).unwrap();
    }
}

/// All of it holds a name to look at, and none of it a password.
#[track_caller]
fn assert_told(error: &KafkaError, why: &str, remedy: &str) {
    println!("{error}\n  try: {}\n", error.remedy);
    assert!(error.why.contains(why), "no `{why}` in {error:?}");
    assert!(error.remedy.contains(remedy), "no `{remedy}` in {error:?}");
    assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
}

fn who_cannot_reach_it_is_told_why(broker: &Broker) {
    let guard = broker.guard();
    let [tls, scram, scram_tls] = LISTENERS.map(|listener| guard.settings(listener));
    let at =
        |brokers: &str, settings: &Settings| Settings { brokers: brokers.to_owned(), ..settings.clone() };
    let (other, plain) = (guard.another_authority(), Settings::new(format!("127.0.0.1:{}", broker.port())));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let cases = [
        // The broker answers, and says no.
        (with(&scram_tls, &[("sasl.password", "wr0ng")]), "Authentication failed", "sasl.password"),
        (with(&scram, &[("sasl.username", "nobody")]), "Authentication failed", "sasl.username"),
        (with(&scram, &[("sasl.mechanism", "PLAIN")]), "SCRAM-SHA-512", "sasl.mechanism"),
        (with(&tls, &[("ssl.ca.location", &other)]), "certificate verify failed", "ssl.ca.location"),
        // The certificate is made out for localhost.
        (
            at(&tls.brokers.replace("localhost", "127.0.0.1"), &tls),
            "certificate verify failed",
            "name in the address",
        ),
        // A listener without TLS answers with what is no handshake, or hangs up in the middle of one.
        (at(&plain.brokers, &tls), "SSL ", "is this the port of the TLS listener?"),
        // It hangs up.
        (at(&tls.brokers, &plain), "security.protocol", "security.protocol"),
        (at(&scram.brokers, &plain), "security.protocol", "security.protocol"),
        // Nobody is there.
        (Settings::new("127.0.0.1:1"), "Connection refused", "check the address"),
        (Settings::new("no-such-host.invalid:9092"), "no-such-host.invalid", "check the name"),
        (Settings::new(silent), "no answer within 10 s", "check the address"),
    ];
    // At once: one waits 10 s for an answer.
    std::thread::scope(|scope| {
        let ask = |settings: &'_ Settings| settings.partitions(EVENTS).unwrap_err();
        let asked = cases.each_ref().map(|(settings, ..)| scope.spawn(move || ask(settings)));
        for (error, (_, why, remedy)) in asked.into_iter().zip(&cases) {
            assert_told(&error.join().unwrap(), why, remedy);
        }
    });
    for (name, value) in [("sasl.pasword", PASSWORD), ("security.protocol", "TLS")] {
        let error = with(&scram, &[(name, value)]).check().unwrap_err();
        assert!(error.what.contains(name) && error.remedy.contains(name), "{error:?}");
        assert_told(&error, "", "CONFIGURATION.md");
    }
}

fn who_may_not_is_told_what_to_allow(broker: &Broker) {
    let root = broker.settings();
    let user = broker.guard().settings(Listener::Scram);
    let acls = "kafka-acls.sh";
    assert_told(&user.partitions(EVENTS).unwrap_err(), "does not let this user look at it", acls);
    let making = user.ensure_topic(EVENTS, 1, &[]).unwrap_err();
    assert!(
        making.what.contains("cannot be made") && making.remedy.contains("kafka-topics.sh"),
        "{making:?}"
    );
    assert_told(&making, "authorization failed", acls);
    root.create_topic(EVENTS, 1, Some(1)).unwrap();
    root.create_topic(DEAD, 1, Some(1)).unwrap();

    // It may look and not write: events that are refused are counted, and why is known. Who may write nowhere is not even
    // given a producer's number; who may write elsewhere is refused record by record.
    allow(broker.port(), About::Topic, EVENTS, Right::Describe);
    assert_eq!(user.ensure_topic(EVENTS, 1, &[]), Ok(()), "there already, so it need not be made");
    let dead = DeadLetters::new(&user, "me").unwrap();
    let refused = || {
        let producer = send(&user, 1);
        assert_eq!((producer.stats().failed, producer.stats().waiting()), (1, 0));
        producer.last_rejection().unwrap()
    };
    assert_told(&refused(), "Cluster authorization failed", acls);
    assert_told(&dead.send(&DeadLetter::default()).unwrap_err(), "authorization failed", acls);
    allow(broker.port(), About::Topic, DEAD, Right::Write);
    assert_told(&refused(), "Topic authorization failed", acls);
    assert_eq!(dead.send(&DeadLetter::default()), Ok(()), "the same letters, once it may");

    // It may read the topic and not be of the group; then it may be of the group and not read.
    let lasting = |name: &str| {
        let mut consumer = EventConsumer::join(&user, &group(name)).unwrap();
        let begun = Instant::now();
        loop {
            match consumer.next(Duration::from_millis(100)) {
                Err(error) => break error,
                Ok(_) => assert!(begun.elapsed() < PATIENCE, "no error"),
            }
        }
    };
    assert_told(&lasting("blkkin-one"), "Group authorization failed", "--group");
    allow(broker.port(), About::Group, "blkkin-*", Right::Read);
    assert_told(&lasting("blkkin-one"), "Topic authorization failed", "--topic");
    allow(broker.port(), About::Topic, EVENTS, Right::Read);
    allow(broker.port(), About::Topic, EVENTS, Right::Write);
    assert_eq!(send(&user, 1).stats().delivered, 1);
    assert_eq!(receive(&mut EventConsumer::join(&user, &group("blkkin-one")).unwrap(), 1), [1]);
}
