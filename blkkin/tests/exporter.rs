//! `blkkin exporter` from a real broker to a real Zipkin: every span in the topic is delivered
//! once.
//!
//! *Input*: trace fragments that this test writes to `blkkin.traces`, with duplicates, gaps and
//! undecodable records. The spans that were written are compared with those that Zipkin returns,
//! and the counters with the numbers that were written. Exporter and broker are killed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use blkkin_bus::kafka::{Codec, DEAD, Group, Numbers, Received, Settings, TRACES, TopicConsumer};
use blkkin_wire::fragment::TraceFragment;
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::v1::{self, Malformed};
use serde_json::Value;

use crate::broker::Broker;
use crate::common;
use crate::exporting;
use crate::exporting::{SPANS, Writer, expected_spans, found_spans, fragment};
use crate::support::live::eventually;
use crate::support::metrics::{self, get};
use crate::support::or_skip;
use crate::support::service::Service;
use crate::support::zipkin::Zipkin;

/// Maximum wait for a log line.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Traces of [`SPANS`] spans: 20,000 in all.
const TRACES_MANY: u64 = 500;

/// Starts a broker with the topic.
fn cluster() -> Result<Broker, String> {
    let broker = Broker::start()?;
    broker.settings().create_topic(TRACES, 4, Some(1)).unwrap();
    Ok(broker)
}

/// Returns all spans that Zipkin has of these traces.
fn in_zipkin(zipkin: &Zipkin, traces: &[TraceId]) -> BTreeMap<String, usize> {
    let mut spans = Vec::new();
    for some in traces.chunks(50) {
        let ids: Vec<_> = some.iter().map(TraceId::to_string).collect();
        // Zipkin has one request for one trace and another for several.
        let found = match ids.as_slice() {
            [one] => zipkin.get(&format!("/api/v2/trace/{one}")).map(|trace| Value::Array(vec![trace])),
            several => zipkin.get(&format!("/api/v2/traceMany?traceIds={}", several.join(","))),
        };
        let traces: Vec<Vec<Value>> =
            found.and_then(|found| serde_json::from_value(found).ok()).unwrap_or_default();
        spans.extend(traces.into_iter().flatten());
    }
    found_spans(spans)
}

/// Waits until Zipkin has as many spans as expected, and asserts that each is there once.
fn assert_all_in_zipkin(zipkin: &Zipkin, pieces: impl Fn() -> Vec<TraceFragment>, exporter: &Service) {
    let traces: Vec<_> = pieces().iter().map(|piece| piece.trace).collect();
    let expected = expected_spans(pieces());
    let mut found = BTreeMap::new();
    let all = eventually(|| {
        // The reply is long, so the query is not repeated more often.
        std::thread::sleep(Duration::from_millis(200));
        found = in_zipkin(zipkin, &traces);
        found.len() >= expected.len()
    });
    assert!(all, "{} of {} spans; log of the exporter:\n{}", found.len(), expected.len(), exporter.output());
    // The first difference is printed; 20,000 spans would be unreadable.
    for (span, times) in &found {
        assert_eq!(expected.get(span), Some(times), "{span}");
    }
    assert_eq!(found.len(), expected.len());
}

fn all_fragments() -> Vec<TraceFragment> {
    (0..TRACES_MANY).map(fragment).collect()
}

/// Writes all fragments with four producers, two traces per record. Each fifth record is followed
/// by a duplicate with other bounds. Calls `then` after each record with its number.
fn write_all(settings: &Settings, mut then: impl FnMut(u64)) {
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
fn each_span_of_the_topic_is_in_zipkin_once() {
    let broker = or_skip!(cluster());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let to = format!("zipkin={}", zipkin.url());
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    write_all(&settings, |_| {});
    assert_all_in_zipkin(&zipkin, all_fragments, &exporter);
    let log = exporter.finish_without_error();
    assert!(!log.contains("the last commit was not acknowledged"), "{log}");
    let spans = TRACES_MANY * SPANS;
    assert!(log.contains(&format!("{spans} spans delivered to zipkin=")), "{log}");
    assert!(log.contains("; 0 records left"), "{log}");
    assert!(log.contains("50 duplicate records were skipped"), "{log}");
    assert!(log.contains("4 partitions of blkkin.traces are read from their first record on"), "{log}");
}

#[test]
fn no_span_is_lost_or_duplicated_when_exporters_and_the_broker_are_killed() {
    let mut broker = or_skip!(cluster());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let to = format!("zipkin={}", zipkin.url());
    let start = || exporting::start(&settings, folder.path(), &["--to", &to, "--instance", "one"]);
    let mut exporter = Some(start());
    write_all(&settings, |record| {
        match record % 30 {
            // What was just written has arrived, so the exporter is working.
            20 => drop(zipkin.trace(&fragment(record * 2).trace.to_string(), SPANS as usize)),
            // Some more records are in flight; how many are delivered varies.
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
    assert_all_in_zipkin(&zipkin, all_fragments, &exporter);
    let log = exporter.finish_without_error();
    assert!(log.contains("; 0 records left") && !log.contains("missing"), "{log}");
}

#[test]
fn a_replay_restores_the_spans_of_a_restarted_zipkin() {
    let broker = or_skip!(cluster());
    let mut zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let to = format!("zipkin={}?format=json", zipkin.url());
    let few = || (0..50).map(fragment).collect::<Vec<_>>();
    Writer::new(&settings, 0).write(few());
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    assert_all_in_zipkin(&zipkin, few, &exporter);
    zipkin.kill();
    // Records that are written meanwhile stay in the topic.
    let later = || (50..60).map(fragment).collect::<Vec<_>>();
    Writer::new(&settings, 1).write(later());
    exporter.wait_for_output("cannot reach", TIMEOUT);
    zipkin.up();
    assert_all_in_zipkin(&zipkin, later, &exporter);
    assert!(in_zipkin(&zipkin, &[fragment(0).trace]).is_empty(), "Zipkin lost its memory");
    let replay =
        || common::run(&["exporter", "replay", "--from", "-1h", "--brokers", &settings.brokers, "--to", &to]);
    let refused = replay().expect_code(1);
    assert!(refused.stderr.contains("it has members"), "{}", refused.stderr);
    let log = exporter.finish_without_error();
    assert!(log.contains("answers again after"), "{log}");
    let done = replay().expect_code(0);
    assert!(done.stderr.contains("2 records of 4 partitions will be delivered again"), "{}", done.stderr);
    let exporter = exporting::start(&settings, folder.path(), &["--to", &to]);
    assert_all_in_zipkin(&zipkin, || (0..60).map(fragment).collect(), &exporter);
}

/// Codec that returns records of the dead-letter topic as bytes.
struct DeadLetterBytes;

impl Codec for DeadLetterBytes {
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

fn dead_letters(settings: &Settings, count: usize) -> Vec<Vec<u8>> {
    let group = Group { name: "letters".to_owned(), member: None };
    let mut consumer = TopicConsumer::<DeadLetterBytes>::join(settings, &group).unwrap();
    let mut dead_letters = Vec::new();
    eventually(|| {
        if let Received::Batch(record, _) = consumer.next(Duration::from_millis(100)).unwrap() {
            dead_letters.push(*record);
        }
        dead_letters.len() >= count
    });
    dead_letters
}

#[test]
fn unreadable_records_and_refused_spans_go_to_the_dead_letter_topic() {
    let broker = or_skip!(cluster());
    let zipkin = or_skip!(Zipkin::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let mut writer = Writer::new(&settings, 0);
    writer.write((0..10).map(fragment).collect());
    writer.write_bytes(b"no pieces");
    let mut bad = fragment(10);
    bad.spans[7].id = SpanId(0);
    writer.write(vec![bad.clone()]);
    // A gap of one fragment number.
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
    let dead_letters = dead_letters(&settings, 2);
    assert_eq!(dead_letters.len(), 2, "{}", exporter.output());
    assert!(dead_letters.contains(&b"no pieces".to_vec()));
    let refused = dead_letters.iter().find_map(|record| v1::decode_fragments(record).ok()).unwrap();
    assert_eq!(refused.first, 10);
    assert_eq!(refused.fragments[0].spans, [bad.spans[7].clone()]);
    assert_metrics(&exporter, &format!("{to}/api/v2/spans"));
    let log = exporter.finish_without_error();
    for text in [
        "1 spans were refused: they are in blkkin.dead",
        "1 records could not be decoded: they are in blkkin.dead",
        "1 trace fragments are missing",
        "(partition ",
    ] {
        assert!(log.contains(text), "no `{text}` in:\n{log}");
    }
}

/// Reads a metric of a destination.
fn destination_metric(exporter: &Service, name: &str, destination: &str, more: &str) -> f64 {
    let log = exporter.output();
    let metrics = get(metrics::address(&log), "/metrics");
    metrics::value(&metrics, &format!("blkkin_exporter_{name}{{destination=\"{destination}\"{more}}}"))
}

/// Asserts the counters after 20 fragments of 40 spans, of which one span was refused, one fragment
/// is missing and one record could not be decoded.
fn assert_metrics(exporter: &Service, destination: &str) {
    let count = |name: &str| destination_metric(exporter, &format!("{name}_total"), destination, "");
    assert!(eventually(|| count("spans_acknowledged") >= 799.0), "{}", exporter.output());
    let outcomes = ["acknowledged", "refused", "dead_lettered", "not_taken"];
    assert_eq!(outcomes.map(|outcome| count(&format!("spans_{outcome}"))), [799.0, 1.0, 1.0, 0.0]);
    assert_eq!(count("spans_sent") - count("spans_resent"), 800.0, "each is sent the first time once");
    let records = ["fragments_received", "fragments_missing", "records_unreadable", "records_duplicate"];
    assert_eq!(records.map(count), [20.0, 1.0, 1.0, 0.0]);
    let requests = |result: &str| {
        destination_metric(exporter, "requests_total", destination, &format!(",result=\"{result}\""))
    };
    assert!(requests("accepted") >= 1.0 && requests("refused") >= 1.0 && requests("none") == 0.0);
    assert!(destination_metric(exporter, "delivery_seconds_count", destination, "") >= 1.0);
    let since = destination_metric(exporter, "last_acknowledgement_timestamp_seconds", destination, "");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 600.0..=now).contains(&since), "{since} of {now}");
}

#[test]
fn an_unreachable_destination_does_not_hold_up_the_others() {
    let broker = or_skip!(cluster());
    let settings = broker.settings();
    settings.create_topic("zipkin", 1, Some(1)).unwrap();
    let zipkin = or_skip!(Zipkin::start_with_kafka(Some(&settings.brokers)));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spans.json");
    let args = [
        // Port 1 of this machine has no listener.
        "zipkin=http://127.0.0.1:1".to_owned(),
        format!("zipkin-kafka={}", settings.brokers),
        format!("zipkin={}", file.display()),
    ];
    let args: Vec<_> = args.iter().flat_map(|word| ["--to", word.as_str()]).collect();
    let metrics = [&args[..], &["--metrics", "127.0.0.1:0"]].concat();
    let exporter = exporting::start(&settings, folder.path(), &metrics);
    let pieces = |from: u64| move || (from..from + 50).map(fragment).collect::<Vec<_>>();
    let mut writer = Writer::new(&settings, 0);
    writer.write(pieces(0)());
    assert_all_in_zipkin(&zipkin, pieces(0), &exporter);
    exporter.wait_for_output("cannot reach http://127.0.0.1:1", TIMEOUT);
    let unreachable = "zipkin=http://127.0.0.1:1/api/v2/spans";
    let reachable = format!("zipkin={}", file.display());
    let health = get(metrics::address(&exporter.output()), "/health");
    assert!(health.starts_with(&format!("healthy\n{unreachable} is unreachable since 20")), "{health}");
    let up = |destination: &str| destination_metric(&exporter, "destination_up", destination, "");
    assert_eq!((up(unreachable), up(&reachable)), (0.0, 1.0));
    let unreachable_retries =
        || destination_metric(&exporter, "retries_total", unreachable, ",reason=\"not reached\"");
    assert!(eventually(|| unreachable_retries() >= 2.0));
    // Lag grows for the unreachable destination, although no records are fetched for it any more.
    writer.write(pieces(50)());
    let lag = |destination: &str| {
        let all = metrics::series(&get(metrics::address(&exporter.output()), "/metrics"));
        let is = |(name, value): (&str, &str), labels: &BTreeMap<String, String>| {
            labels.get(name).is_some_and(|l| l == value)
        };
        let series = all.iter().find(|(labels, _)| {
            is(("__name__", "blkkin_exporter_lag_records"), labels)
                && is(("destination", destination), labels)
        });
        series.map(|(_, records)| *records)
    };
    assert!(
        eventually(|| (lag(unreachable), lag(&reachable)) == (Some(2.0), Some(0.0))),
        "{:?}",
        lag(unreachable)
    );
    let log = exporter.finish_without_error();
    assert!(log.contains("2000 spans were not acknowledged"), "{log}");
    // A second exporter continues with the file.
    let exporter = exporting::start(&settings, folder.path(), &args[2..]);
    writer.write(pieces(100)());
    assert_all_in_zipkin(&zipkin, pieces(100), &exporter);
    exporter.finish_without_error();
    let list: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(found_spans(list), expected_spans((0..150).map(fragment)));
}

#[test]
fn errors_name_the_remedy() {
    let refused = |args: &[&str]| {
        common::run(&[&["exporter", "--brokers", "127.0.0.1:1"], args].concat()).expect_code(2).stderr
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
fn the_older_of_two_exporters_with_one_name_is_fenced() {
    let broker = or_skip!(cluster());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    // Port 1 of this machine has no listener.
    let args = ["--to", "zipkin=http://127.0.0.1:1", "--instance", "one"];
    let [older, newer] = ["older", "newer"].map(|name| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    });
    let mut older = exporting::start(&settings, &older, &args);
    older.wait_for_output("4 partitions of blkkin.traces are read from their first record on", TIMEOUT);
    let newer = exporting::start(&settings, &newer, &args);
    let (status, log) = older.wait();
    assert_eq!(status, Some(1), "{log}");
    assert!(log.contains("fenced by another exporter of the same name"), "{log}");
    newer.finish_without_error();
}

fn refused_setting() -> String {
    let args = ["exporter", "--brokers", "127.0.0.1:1", "--to", "otlp=http://h", "--set", "sasl.pasword=x"];
    common::run(&args).expect_code(2).stderr
}

#[test]
fn an_unreachable_cluster_and_a_missing_topic_are_reported_and_awaited() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let file = format!("zipkin={}", folder.path().join("x.json").display());
    let unreachable = exporting::start(&Settings::new("127.0.0.1:1"), folder.path(), &["--to", &file]);
    unreachable.wait_for_output("cannot reach the Kafka cluster at 127.0.0.1:1", TIMEOUT);
    unreachable.wait_for_output("check the address", TIMEOUT);
    assert_eq!(unreachable.finish().0, Some(0));
    let early = exporting::start(&settings, folder.path(), &["--to", &file]);
    early.wait_for_output("the topic blkkin.traces cannot be used", TIMEOUT);
    early.wait_for_output("--create --topic blkkin.traces", TIMEOUT);
    settings.create_topic(TRACES, 1, Some(1)).unwrap();
    early.wait_for_output("blkkin.traces can be read after", TIMEOUT);
    assert_eq!(early.finish().0, Some(0));
}
