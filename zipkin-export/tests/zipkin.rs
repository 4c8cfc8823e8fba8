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
use support::server::Zipkin;
use support::spans::{fdatasync, span, spans};

const LONG: Duration = Duration::from_secs(120);

#[test]
fn zipkin_accepts_and_shows_spans() {
    let Some(mut server) = or_skip(Zipkin::prepare()) else { return };
    spans_offered_before_the_server_is_up_arrive(&mut server);
    every_field_comes_back(&server);
    only_the_bad_span_is_lost(&server);
    invalid_spans_are_rejected(&server);
    file_is_accepted_unchanged(&server);
    the_layers_are_a_chain_in_the_dependency_graph(&server);
    retry_is_shown_once(&server);
    start_page_is_not_success(&server);
}

fn exporter(server: &Zipkin) -> Exporter {
    Exporter::open(Destination::parse(&server.url()).unwrap(), ExportConfig::default()).unwrap()
}

fn spans_offered_before_the_server_is_up_arrive(server: &mut Zipkin) {
    let early = exporter(server);
    early.offer(spans(0xe0 << 64, 1, 3000, now()));
    while early.stats().retries == 0 {
        std::thread::yield_now();
    }
    server.up();
    let stats = early.finish(LONG);
    assert_eq!((stats.offered, stats.sent, early.last_error()), (3000, 3000, None));
    assert!(stats.retries > 0 && stats.balances(), "{stats:?}");
    shown(server, TraceId(0xe0 << 64), 3000);
}

fn every_field_comes_back(server: &Zipkin) {
    let sent = fdatasync(0xf1 << 64 | 1, now());
    export(server, sent.clone());
    let shown = shown(server, sent[0].trace, sent.len());
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

fn only_the_bad_span_is_lost(server: &Zipkin) {
    let trace = 0xb1 << 64;
    let mut sent = spans(trace, 1, 500, now());
    sent[333].id = SpanId(0);
    let exporter = exporter(server);
    exporter.offer(sent);
    let stats = exporter.finish(LONG);
    assert_eq!((stats.sent, stats.dropped_rejected), (499, 1));
    let error = exporter.last_error().unwrap();
    assert!(error.contains("id is all zeros"), "{error}");
    shown(server, TraceId(trace), 499);
}

fn invalid_spans_are_rejected(server: &Zipkin) {
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

fn file_is_accepted_unchanged(server: &Zipkin) {
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
    let shown = shown(server, TraceId(trace), 2504);
    assert!(shown.iter().map(without_addresses).eq(sent));
}

/// Checks the dependency graph. The root is a client of the file system, each lower layer a server:
/// Zipkin then draws each layer below its caller.
fn the_layers_are_a_chain_in_the_dependency_graph(server: &Zipkin) {
    let a_year = Duration::from_secs(365 * 24 * 3600);
    let then = WallclockNs(now().0 - a_year.as_nanos() as u64);
    export(server, fdatasync(0xd1 << 64 | 1, then));
    shown(server, TraceId(0xd1 << 64 | 1), 4);
    let (end, back) = (then.0 / 1_000_000 + 60_000, 120_000);
    let links = server.get(&format!("/api/v2/dependencies?endTs={end}&lookback={back}")).unwrap();
    let mut drawn: Vec<_> = links.as_array().unwrap().iter().map(link).collect();
    drawn.sort();
    assert_eq!(drawn, ["block>loop0:1 failed 1", "ext4>block:1 failed 0", "sqlite3>ext4:1 failed 0"]);
}

fn retry_is_shown_once(server: &Zipkin) {
    let trace = 0xc1 << 64 | 1;
    let sent = fdatasync(trace, now());
    let list = list(&sent.iter().collect::<Vec<_>>());
    assert_eq!(server.post(&list).0, 202);
    assert_eq!(server.post(&list).0, 202);
    let shown = shown(server, TraceId(trace), 4);
    assert!(shown.iter().map(without_addresses).eq(sent.iter().map(encoded)));
}

fn start_page_is_not_success(server: &Zipkin) {
    let wrong = format!("{}/zipkin/", server.url());
    let exporter = Exporter::open(Destination::parse(&wrong).unwrap(), ExportConfig::default()).unwrap();
    exporter.offer(spans(1, 1, 2, now()));
    let stats = exporter.finish(LONG);
    assert_eq!((stats.sent, stats.dropped_rejected), (0, 2), "{:?}", exporter.last_error());
}

fn export(server: &Zipkin, spans: Vec<Span>) {
    let (exporter, count) = (exporter(server), spans.len() as u64);
    exporter.offer(spans);
    assert_eq!((exporter.finish(LONG).sent, exporter.last_error()), (count, None));
}

/// Returns all `count` spans of a trace that the server shows, by id.
fn shown(server: &Zipkin, trace: TraceId, count: usize) -> Vec<Value> {
    let mut spans = server.trace(&trace.to_string(), count);
    spans.sort_by_key(|span| span["id"].to_string());
    assert_eq!(spans.len(), count);
    spans
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
