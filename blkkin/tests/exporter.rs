//! `blkkin exporter`, a real broker and a real Zipkin: what lies in the topic is shown, each span once.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod exporting;
mod support;
#[path = "support/zipkin.rs"]
mod zipkin;

use std::collections::BTreeMap;
use std::time::Duration;

use blkkin_bus::kafka::{Codec, DEAD, Group, Numbers, Received, Settings, TRACES, TopicConsumer};
use blkkin_wire::fragment::TraceFragment;
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::v1::{self, Malformed};
use serde_json::Value;

use broker::Broker;
use exporting::{SPANS, Writer, expected_spans, found_spans, fragment};
use support::live::eventually;
use support::metrics::{self, get};
use support::or_skip;
use support::service::Service;
use zipkin::Zipkin;

/// For a service to say something.
const PATIENCE: Duration = Duration::from_secs(60);
/// Traces of [`SPANS`] spans: 20,000 in all.
const TRACES_MANY: u64 = 500;

/// A broker with the topic.
fn cluster() -> Result<Broker, String> {
    let broker = Broker::start()?;
    broker.settings().create_topic(TRACES, 4, Some(1)).unwrap();
    Ok(broker)
}

/// All spans that Zipkin has of these traces.
fn in_zipkin(zipkin: &Zipkin, traces: &[TraceId]) -> BTreeMap<String, usize> {
    let mut spans = Vec::new();
    for some in traces.chunks(50) {
        let ids: Vec<_> = some.iter().map(TraceId::to_string).collect();
        // It is asked for one trace in another way than for many.
        let found = match ids.as_slice() {
            [one] => zipkin.get(&format!("/api/v2/trace/{one}")).map(|trace| Value::Array(vec![trace])),
            many => zipkin.get(&format!("/api/v2/traceMany?traceIds={}", many.join(","))),
        };
        let traces: Vec<Vec<Value>> =
            found.and_then(|found| serde_json::from_value(found).ok()).unwrap_or_default();
        spans.extend(traces.into_iter().flatten());
    }
    found_spans(spans)
}

/// Waits until Zipkin has as many spans as are meant; they are these, each once.
fn assert_all_in_zipkin(zipkin: &Zipkin, pieces: impl Fn() -> Vec<TraceFragment>, exporter: &Service) {
    let traces: Vec<_> = pieces().iter().map(|piece| piece.trace).collect();
    let meant = expected_spans(pieces());
    let mut found = BTreeMap::new();
    let all = eventually(|| {
        // The answer is long: not asked for as often as can be.
        std::thread::sleep(Duration::from_millis(200));
        found = in_zipkin(zipkin, &traces);
        found.len() >= meant.len()
    });
    assert!(all, "{} of {} spans; the exporter says:\n{}", found.len(), meant.len(), exporter.output());
    // A difference of 20,000 would be no help: the first is.
    for (span, times) in &found {
        assert_eq!(meant.get(span), Some(times), "{span}");
    }
    assert_eq!(found.len(), meant.len());
}

fn many() -> Vec<TraceFragment> {
    (0..TRACES_MANY).map(fragment).collect()
}

/// All of them, by four writers, two traces a record; each fifth record a second time, and cut elsewhere. After so many
/// records `then` is called.
fn write_many(settings: &Settings, mut then: impl FnMut(u64)) {
    let mut writers: Vec<_> = (0..4).map(|partition| Writer::new(settings, partition)).collect();
    for n in (0..TRACES_MANY).step_by(2) {
        let writer = &mut writers[(n / 2 % 4) as usize];
        writer.write(vec![fragment(n), fragment(n + 1)]);
        if n.is_multiple_of(5) {
            writer.write_numbered(writer.next - 1, vec![fragment(n + 1)]);
        }
        then(n / 2);
    }
}

#[test]
fn what_lies_in_the_topic_is_in_zipkin_each_span_once() {
    let broker = or_skip!(cluster());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let to = format!("zipkin={}", zipkin.url());
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    write_many(&settings, |_| {});
    assert_all_in_zipkin(&zipkin, many, &exporter);
    let (status, said) = exporter.finish();
    assert_eq!(status, Some(0), "{said}");
    let spans = TRACES_MANY * SPANS;
    assert!(said.contains(&format!("{spans} spans delivered to zipkin=")), "{said}");
    assert!(said.contains("; 0 records left"), "{said}");
    assert!(said.contains("50 duplicate records were skipped"), "{said}");
    assert!(said.contains("4 partitions of blkkin.traces are read from their first record on"), "{said}");
}

#[test]
fn nothing_is_lost_or_doubled_although_exporters_and_the_broker_are_killed() {
    let mut broker = or_skip!(cluster());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let to = format!("zipkin={}", zipkin.url());
    let start = || exporting::start(&settings, folder.path(), &["--to", &to, "--instance", "one"]);
    let mut exporter = Some(start());
    write_many(&settings, |record| {
        match record % 30 {
            // It works: what was just written has arrived.
            20 => drop(zipkin.trace(&fragment(record * 2).trace.to_string(), SPANS as usize)),
            // Now it has some records more in hand: how far it is with them differs from time to time.
            25 => {
                std::thread::sleep(Duration::from_millis(record * 7 % 90));
                exporter.take().unwrap().kill();
                exporter = Some(start());
            }
            _ => {}
        }
        if record == 150 {
            broker.kill();
            broker.up();
        }
    });
    let exporter = exporter.unwrap();
    assert_all_in_zipkin(&zipkin, many, &exporter);
    let (status, said) = exporter.finish();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("; 0 records left") && !said.contains("missing"), "{said}");
}

#[test]
fn a_zipkin_that_lost_its_memory_has_all_again_after_a_replay() {
    let broker = or_skip!(cluster());
    let mut zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let to = format!("zipkin={}?format=json", zipkin.url());
    let few = || (0..50).map(fragment).collect::<Vec<_>>();
    Writer::new(&settings, 0).write(few());
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    assert_all_in_zipkin(&zipkin, few, &exporter);
    zipkin.kill();
    // What comes meanwhile stays in the topic.
    let later = || (50..60).map(fragment).collect::<Vec<_>>();
    Writer::new(&settings, 1).write(later());
    exporter.wait_for_output("cannot reach", PATIENCE);
    zipkin.restart();
    assert_all_in_zipkin(&zipkin, later, &exporter);
    assert!(in_zipkin(&zipkin, &[fragment(0).trace]).is_empty(), "it has forgotten");
    let replay =
        || common::run(&["exporter", "replay", "--from", "-1h", "--brokers", &settings.brokers, "--to", &to]);
    let refused = replay();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("it has members"), "{}", refused.stderr);
    let (status, said) = exporter.finish();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("answers again after"), "{said}");
    let done = replay();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("2 records of 4 partitions will be delivered again"), "{}", done.stderr);
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    assert_all_in_zipkin(&zipkin, || (0..60).map(fragment).collect(), &exporter);
}

/// The topic of letters, as bytes.
struct Letters;

impl Codec for Letters {
    type Record = Vec<u8>;
    const TOPIC: &'static str = DEAD;

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
        Ok(bytes.to_vec())
    }

    fn numbers(_: &Vec<u8>) -> Numbers {
        Numbers { origin: 0, first: 0, count: 0 }
    }

    fn skip(_: &mut Vec<u8>, _: u64) {}
}

fn letters(settings: &Settings, count: usize) -> Vec<Vec<u8>> {
    let group = Group { name: "letters".to_owned(), member: None };
    let mut consumer = TopicConsumer::<Letters>::join(settings, &group).unwrap();
    let mut letters = Vec::new();
    eventually(|| {
        if let Received::Batch(letter, _) = consumer.next(Duration::from_millis(100)).unwrap() {
            letters.push(*letter);
        }
        letters.len() >= count
    });
    letters
}

#[test]
fn what_cannot_be_read_or_is_refused_is_kept_and_the_rest_arrives() {
    let broker = or_skip!(cluster());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let mut writer = Writer::new(&settings, 0);
    writer.write((0..10).map(fragment).collect());
    writer.write_bytes(b"no pieces");
    let mut bad = fragment(10);
    bad.spans[7].id = SpanId(0);
    writer.write(vec![bad.clone()]);
    // A piece that is nowhere.
    writer.next += 1;
    writer.write((11..20).map(fragment).collect());
    let to = format!("zipkin={}", zipkin.url());
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to, "--metrics", "127.0.0.1:0"]);
    let good = || {
        let mut pieces: Vec<_> = (0..20).map(fragment).collect();
        pieces[10].spans.remove(7);
        pieces
    };
    assert_all_in_zipkin(&zipkin, good, &exporter);
    let letters = letters(&settings, 2);
    assert_eq!(letters.len(), 2, "{}", exporter.output());
    assert!(letters.contains(&b"no pieces".to_vec()));
    let refused = letters.iter().find_map(|letter| v1::decode_fragments(letter).ok()).unwrap();
    assert_eq!(refused.first, 10);
    assert_eq!(refused.fragments[0].spans, [bad.spans[7].clone()]);
    assert_shown(&exporter, &format!("{to}/api/v2/spans"));
    let (status, said) = exporter.finish();
    assert_eq!(status, Some(0), "{said}");
    for words in [
        "1 spans were refused: they are in blkkin.dead",
        "1 records could not be decoded: they are in blkkin.dead",
        "1 trace fragments are missing",
        "(partition ",
    ] {
        assert!(said.contains(words), "no `{words}` in:\n{said}");
    }
}

/// A figure of a destination.
fn shown_as(exporter: &Service, name: &str, destination: &str, more: &str) -> f64 {
    let said = exporter.output();
    let metrics = get(metrics::address(&said), "/metrics");
    metrics::value(&metrics, &format!("blkkin_exporter_{name}{{destination=\"{destination}\"{more}}}"))
}

/// 20 pieces of 40 spans, one of them refused; a piece that never came, a record that could not be read.
fn assert_shown(exporter: &Service, destination: &str) {
    let count = |name: &str| shown_as(exporter, &format!("{name}_total"), destination, "");
    assert!(eventually(|| count("spans_acknowledged") >= 799.0), "{}", exporter.output());
    let fates = ["acknowledged", "refused", "dead_lettered", "not_taken"];
    assert_eq!(fates.map(|fate| count(&format!("spans_{fate}"))), [799.0, 1.0, 1.0, 0.0]);
    assert_eq!(count("spans_sent") - count("spans_resent"), 800.0, "each is new once");
    let records = ["fragments_received", "fragments_missing", "records_unreadable", "records_duplicate"];
    assert_eq!(records.map(count), [20.0, 1.0, 1.0, 0.0]);
    let answer =
        |answer: &str| shown_as(exporter, "requests_total", destination, &format!(",answer=\"{answer}\""));
    assert!(answer("accepted") >= 1.0 && answer("refused") >= 1.0 && answer("none") == 0.0);
    assert!(shown_as(exporter, "delivery_seconds_count", destination, "") >= 1.0);
    let since = shown_as(exporter, "last_acknowledgement_timestamp_seconds", destination, "");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 600.0..=now).contains(&since), "{since} of {now}");
}

#[test]
fn zipkins_own_topic_and_a_file_have_all_although_another_destination_is_away() {
    let broker = or_skip!(cluster());
    let settings = broker.settings();
    settings.create_topic("zipkin", 1, Some(1)).unwrap();
    let zipkin = or_skip!(Zipkin::start_with_kafka(Some(&settings.brokers)));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spans.json");
    let words = [
        // Port 1 of this machine: nobody listens.
        "zipkin=http://127.0.0.1:1".to_owned(),
        format!("zipkin-kafka={}", settings.brokers),
        format!("zipkin={}", file.display()),
    ];
    let words: Vec<_> = words.iter().flat_map(|word| ["--to", word.as_str()]).collect();
    let metrics = [&words[..], &["--metrics", "127.0.0.1:0"]].concat();
    let exporter = exporting::start(&settings, folder.path(), &metrics);
    let pieces = |from: u64| move || (from..from + 50).map(fragment).collect::<Vec<_>>();
    let mut writer = Writer::new(&settings, 0);
    writer.write(pieces(0)());
    assert_all_in_zipkin(&zipkin, pieces(0), &exporter);
    exporter.wait_for_output("cannot reach http://127.0.0.1:1", PATIENCE);
    let away = "zipkin=http://127.0.0.1:1/api/v2/spans";
    let there = format!("zipkin={}", file.display());
    let health = get(metrics::address(&exporter.output()), "/health");
    assert!(
        health.contains(" 200 OK") && health.contains(&format!("healthy\n{away} is unreachable since 20")),
        "{health}"
    );
    let up = |destination: &str| shown_as(&exporter, "destination_up", destination, "");
    assert_eq!((up(away), up(&there)), (0.0, 1.0));
    let unreached = || shown_as(&exporter, "retries_total", away, ",reason=\"not reached\"");
    assert!(eventually(|| unreached() >= 2.0));
    // What it does not have stays behind, although nothing is fetched for it any more.
    writer.write(pieces(50)());
    let behind = |destination: &str| {
        let all = metrics::series(&get(metrics::address(&exporter.output()), "/metrics"));
        let is = |(name, value): (&str, &str), labels: &BTreeMap<String, String>| {
            labels.get(name).is_some_and(|l| l == value)
        };
        let lag = all.iter().find(|(labels, _)| {
            is(("__name__", "blkkin_exporter_lag_records"), labels)
                && is(("destination", destination), labels)
        });
        lag.map(|(_, records)| *records)
    };
    assert!(eventually(|| (behind(away), behind(&there)) == (Some(2.0), Some(0.0))), "{:?}", behind(away));
    let (status, said) = exporter.finish();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("2000 spans were not acknowledged"), "{said}");
    // A second one goes on with the file.
    let exporter = exporting::start(&settings, folder.path(), &words[2..]);
    writer.write(pieces(100)());
    assert_all_in_zipkin(&zipkin, pieces(100), &exporter);
    let (status, said) = exporter.finish();
    assert_eq!(status, Some(0), "{said}");
    let list: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(found_spans(list), expected_spans((0..150).map(fragment)));
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let refused = |words: &[&str]| {
        let run = common::run(&[&["exporter", "--brokers", "127.0.0.1:1"], words].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        run.stderr
    };
    assert!(refused(&["--to", "mysql=x"]).contains("unknown kind of destination"));
    assert!(refused(&["--to", "zipkin=localhost:9411"]).contains("write http://localhost:9411"));
    assert!(
        refused(&["--to", "zipkin=http://h", "--to", "zipkin=http://h?format=json"]).contains("named twice")
    );
    assert!(refused(&["--to", "zipkin=x", "--from", "-1m"]).contains("--from needs replay"));
    assert!(refused(&["replay", "--to", "zipkin=x", "--from", "yesterday"]).contains("--from -10m"));
    assert!(refused(&["replay", "--to", "zipkin=x"]).contains("--from"));
    let setting = refused_setting();
    assert!(setting.contains("sasl.pasword"), "{setting}");
    let folder =
        common::run(&["exporter", "--brokers", "127.0.0.1:1", "--to", "zipkin=/no/such/folder/x.json"]);
    assert!(folder.code == Some(1) && folder.stderr.contains("/no/such/folder"), "{folder:?}");
}

#[test]
fn of_two_exporters_with_one_name_the_elder_ends_and_says_why() {
    let broker = or_skip!(cluster());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    // Port 1 of this machine: nobody listens.
    let words = ["--to", "zipkin=http://127.0.0.1:1", "--instance", "one"];
    let [elder, younger] = ["elder", "younger"].map(|name| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    });
    let mut elder = exporting::start(&settings, &elder, &words);
    elder.wait_for_output("4 partitions of blkkin.traces are read from their first record on", PATIENCE);
    let younger = exporting::start(&settings, &younger, &words);
    let (status, said) = elder.wait();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("fenced by another exporter of the same name"), "{said}");
    let (status, said) = younger.finish();
    assert_eq!(status, Some(0), "{said}");
}

fn refused_setting() -> String {
    let words = ["exporter", "--brokers", "127.0.0.1:1", "--to", "otlp=http://h", "--set", "sasl.pasword=x"];
    let run = common::run(&words);
    assert_eq!(run.code, Some(2), "{run:?}");
    run.stderr
}

#[test]
fn a_cluster_that_is_away_and_a_topic_that_is_missing_are_said_and_waited_for() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let file = format!("zipkin={}", folder.path().join("x.json").display());
    let wrong = exporting::start(&Settings::new("127.0.0.1:1"), folder.path(), &["--to", &file]);
    wrong.wait_for_output("cannot reach the Kafka cluster at 127.0.0.1:1", PATIENCE);
    wrong.wait_for_output("check the address", PATIENCE);
    assert_eq!(wrong.finish().0, Some(0));
    let early = exporting::start(&settings, folder.path(), &["--to", &file]);
    early.wait_for_output("the topic blkkin.traces cannot be used", PATIENCE);
    early.wait_for_output("--create --topic blkkin.traces", PATIENCE);
    settings.create_topic(TRACES, 1, Some(1)).unwrap();
    early.wait_for_output("blkkin.traces can be read after", PATIENCE);
    assert_eq!(early.finish().0, Some(0));
}
