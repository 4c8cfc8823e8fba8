//! The exporter against a real Zipkin server, which accepts and shows valid spans, and rejects the
//! spans that [`InvalidSpan`](blkkin_zipkin_export::json::InvalidSpan) describes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blkkin_wire::clock::WallclockNs;
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::Span;
use blkkin_zipkin_export::{Destination, ExportConfig, Exporter, json};
use serde_json::{Value, json};
use support::or_skip;
use support::server::{RunningZipkin, Zipkin};
use support::spans::{fdatasync, span, spans};

const LONG: Duration = Duration::from_secs(120);

#[test]
fn zipkin_accepts_and_shows_spans() {
    let Some(zipkin) = or_skip(Zipkin::find()) else { return };
    let early = exporter(&zipkin);
    let server = spans_offered_before_the_server_is_up_arrive(&zipkin, &early);
    every_field_comes_back(&zipkin, &server);
    only_the_bad_span_is_lost(&zipkin, &server);
    invalid_spans_are_rejected(&server);
    file_is_accepted_unchanged(&server);
    the_layers_are_a_chain_in_the_dependency_graph(&zipkin, &server);
    retry_is_shown_once(&server);
    start_page_is_not_success(&zipkin);
}

fn exporter(zipkin: &Zipkin) -> Exporter {
    Exporter::open(Destination::parse(&zipkin.url()).unwrap(), ExportConfig::default()).unwrap()
}

fn spans_offered_before_the_server_is_up_arrive(zipkin: &Zipkin, early: &Exporter) -> RunningZipkin {
    early.offer(spans(0xe0 << 64, 1, 3000, now()));
    while early.stats().retries == 0 {
        std::thread::yield_now();
    }
    let server = zipkin.start();
    let stats = early.finish(LONG);
    assert_eq!((stats.offered, stats.sent, early.last_error()), (3000, 3000, None));
    assert!(stats.retries > 0 && stats.balances(), "{stats:?}");
    server.trace(&TraceId(0xe0 << 64).to_string(), 3000);
    server
}

fn every_field_comes_back(zipkin: &Zipkin, server: &RunningZipkin) {
    let sent = fdatasync(0xf1 << 64 | 1, now());
    export(zipkin, sent.clone());
    let shown = server.trace(&sent[0].trace.to_string(), sent.len());
    for (span, shown) in sent.iter().zip(&shown) {
        assert_eq!(without_addresses(shown), encoded(span));
    }
    let us = sent[0].start.micros();
    assert_eq!(shown[0]["timestamp"], us);
    assert_eq!((&shown[0]["duration"], &shown[3]["duration"]), (&json!(412), &json!(1)));
    assert_eq!(shown[3]["tags"]["error"], "I/O error");
    assert_eq!(shown[1]["name"], "fsync");
    let services = server.get("/api/v2/services").unwrap();
    let services: BTreeSet<_> = services.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(services.is_superset(&["block", "ext4", "loop0", "sqlite3"].into()), "{services:?}");
}

fn only_the_bad_span_is_lost(zipkin: &Zipkin, server: &RunningZipkin) {
    let trace = 0xb1 << 64;
    let mut sent = spans(trace, 1, 500, now());
    sent[333].id = SpanId(0);
    let exporter = exporter(zipkin);
    exporter.offer(sent);
    let stats = exporter.finish(LONG);
    assert_eq!((stats.sent, stats.dropped_rejected), (499, 1));
    let error = exporter.last_error().unwrap();
    assert!(error.contains("id is all zeros"), "{error}");
    server.trace(&TraceId(trace).to_string(), 499);
}

fn invalid_spans_are_rejected(server: &RunningZipkin) {
    let good = span(0xa1 << 64, 1, now());
    for bad in [
        Span { id: SpanId(0), ..good.clone() },
        Span { trace: TraceId(0), ..good.clone() },
        Span { trace: TraceId(0), id: SpanId(0), ..good.clone() },
    ] {
        let (status, words) = server.post(&list(&[&good, &bad]));
        assert_eq!(status, 400, "{words}");
        assert!(json::check(&bad).is_err());
    }
    for odd in [
        Span { parent: Some(SpanId(0)), ..good.clone() },
        Span { parent: Some(good.id), ..good.clone() },
        Span { start: WallclockNs(0), ..good.clone() },
        Span { start: WallclockNs(u64::MAX), ..good.clone() },
        Span { name: "".into(), service: "".into(), ..good.clone() },
        Span { trace: TraceId(1), ..good.clone() },
        Span {
            error: Some("".into()),
            annotations: vec![(WallclockNs(0), "\0\u{7f}".into())],
            ..good.clone()
        },
    ] {
        assert_eq!(server.post(&list(&[&odd])).0, 202, "{odd:?}");
        assert!(json::check(&odd).is_ok());
    }
}

fn file_is_accepted_unchanged(server: &RunningZipkin) {
    let trace = 0xf2 << 64 | 1;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let exporter = Exporter::open(Destination::File(path.clone()), ExportConfig::default()).unwrap();
    exporter.offer(fdatasync(trace, now()));
    exporter.offer(vec![Span { id: SpanId(0), ..span(trace, 0, now()) }]);
    exporter.offer(spans(trace, 0x2001, 2500, now()));
    let stats = exporter.finish(LONG);
    assert_eq!((stats.sent, stats.dropped_rejected), (2504, 1));
    let file = fs::read(&path).unwrap();
    assert_eq!(server.post(&file).0, 202);
    let mut sent: Vec<Value> = serde_json::from_slice(&file).unwrap();
    sent.sort_by_key(|span| span["id"].to_string());
    let shown = server.trace(&TraceId(trace).to_string(), 2504);
    assert!(shown.iter().map(without_addresses).eq(sent));
}

/// Checks the dependency graph. The root is a client of the file system, each lower layer a server:
/// Zipkin then draws each layer below its caller.
fn the_layers_are_a_chain_in_the_dependency_graph(zipkin: &Zipkin, server: &RunningZipkin) {
    let a_year = Duration::from_secs(365 * 24 * 3600);
    let then = WallclockNs(now().0 - a_year.as_nanos() as u64);
    export(zipkin, fdatasync(0xd1 << 64 | 1, then));
    server.trace(&TraceId(0xd1 << 64 | 1).to_string(), 4);
    let (end, back) = (then.0 / 1_000_000 + 60_000, 120_000);
    let links = server.get(&format!("/api/v2/dependencies?endTs={end}&lookback={back}")).unwrap();
    let mut drawn: Vec<_> = links.as_array().unwrap().iter().map(link).collect();
    drawn.sort();
    assert_eq!(drawn, ["block>loop0:1 failed 1", "ext4>block:1 failed 0", "sqlite3>ext4:1 failed 0"]);
}

fn retry_is_shown_once(server: &RunningZipkin) {
    let trace = 0xc1 << 64 | 1;
    let sent = fdatasync(trace, now());
    let list = list(&sent.iter().collect::<Vec<_>>());
    assert_eq!(server.post(&list).0, 202);
    assert_eq!(server.post(&list).0, 202);
    let shown = server.trace(&TraceId(trace).to_string(), 4);
    assert!(shown.iter().map(without_addresses).eq(sent.iter().map(encoded)));
}

fn start_page_is_not_success(zipkin: &Zipkin) {
    let wrong = format!("{}/zipkin/", zipkin.url());
    let exporter = Exporter::open(Destination::parse(&wrong).unwrap(), ExportConfig::default()).unwrap();
    exporter.offer(spans(1, 1, 2, now()));
    let stats = exporter.finish(LONG);
    assert_eq!((stats.sent, stats.dropped_rejected), (0, 2), "{:?}", exporter.last_error());
}

fn export(zipkin: &Zipkin, spans: Vec<Span>) {
    let (exporter, count) = (exporter(zipkin), spans.len() as u64);
    exporter.offer(spans);
    assert_eq!((exporter.finish(LONG).sent, exporter.last_error()), (count, None));
}

fn encoded(span: &Span) -> Value {
    let mut out = Vec::new();
    json::encode(span, &mut out);
    serde_json::from_slice(&out).unwrap()
}

fn list(spans: &[&Span]) -> Vec<u8> {
    serde_json::to_vec(&spans.iter().map(|span| encoded(span)).collect::<Vec<_>>()).unwrap()
}

/// Removes the sender's address, which a server adds to a span whose endpoint has none.
fn without_addresses(shown: &Value) -> Value {
    let mut shown = shown.clone();
    for endpoint in ["localEndpoint", "remoteEndpoint"] {
        if let Some(endpoint) = shown.get_mut(endpoint).and_then(Value::as_object_mut) {
            endpoint.retain(|key, _| key == "serviceName");
        }
    }
    shown
}

fn link(link: &Value) -> String {
    let words = |key: &str| link[key].as_str().unwrap_or_default().to_owned();
    let failed = link["errorCount"].as_u64().unwrap_or_default();
    format!("{}>{}:{} failed {failed}", words("parent"), words("child"), link["callCount"])
}

fn now() -> WallclockNs {
    WallclockNs(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
}
