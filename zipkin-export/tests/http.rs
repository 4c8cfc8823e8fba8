//! The exporter against servers that reject, delay or never respond.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use blkkin_wire::clock::WallclockNs;
use blkkin_wire::span::{Span, TagValue};
use blkkin_zipkin_export::backoff::Backoff;
use blkkin_zipkin_export::{Destination, ExportConfig, ExportStats, Exporter};
use support::fake::{Act, FakeServer};
use support::spans::{span, spans};

/// Timeout longer than any test: no result depends on it.
const LONG: Duration = Duration::from_secs(60);
const START: WallclockNs = WallclockNs(1_700_000_000_000_000_000);
const ACCEPTED: Act = Act::Answer("202 Accepted", "");

fn config() -> ExportConfig {
    let soon = Duration::from_micros(10);
    ExportConfig { backoff: Backoff { first: soon, most: soon }, ..ExportConfig::default() }
}

fn open(url: &str, config: ExportConfig) -> Exporter {
    // JSON, so that what arrives can be read.
    let url = format!("{url}?format=json");
    Exporter::open(Destination::parse(&url).unwrap(), config).unwrap()
}

/// Exports `spans` to a server and returns the counters and the last error.
fn export(server: &FakeServer, spans: Vec<Span>) -> (ExportStats, Option<String>) {
    let exporter = open(&server.url, config());
    exporter.offer(spans);
    let stats = exporter.finish(LONG);
    assert!(stats.balances() && stats.pending == 0, "{stats:?}");
    (stats, exporter.last_error())
}

#[test]
fn post_is_what_zipkin_expects() {
    let server = FakeServer::start(vec![ACCEPTED]);
    let (stats, error) = export(&server, spans(1, 1, 3, START));
    assert_eq!((stats.sent, stats.retries, error), (3, 0, None));
    let posts = server.received();
    assert_eq!(posts.len(), 1);
    assert!(posts[0].head.starts_with("post /api/v2/spans http/1.1\r\n"), "{}", posts[0].head);
    assert!(posts[0].head.contains("\r\ncontent-type: application/json\r\n"), "{}", posts[0].head);
    let list: Vec<serde_json::Value> = serde_json::from_slice(&posts[0].body).unwrap();
    assert_eq!(list[2]["id"], "0000000000000003");
}

#[test]
fn unprocessed_request_is_retried_byte_for_byte() {
    let later = |status| Act::Answer(status, "not now");
    let acts = vec![
        later("503 Service Unavailable"),
        later("429 Too Many Requests"),
        Act::HangUp,
        later("500 Internal Server Error"),
        later("408 Request Timeout"),
        ACCEPTED,
    ];
    let retries = acts.len() as u64 - 1;
    let server = FakeServer::start(acts);
    let (stats, error) = export(&server, spans(1, 1, 5, START));
    assert_eq!((stats.sent, stats.retries, error), (5, retries, None));
    let posts = server.received();
    assert_eq!(posts.len() as u64, retries + 1);
    assert!(posts.iter().all(|post| post.body == posts[0].body));
}

#[test]
fn rejected_request_is_halved() {
    let refused = Act::Answer("400 Bad Request", "id is all zeros");
    // Of 1 2 3 4: all, 1 2, 3 4, 3, 4.
    let server = FakeServer::start(vec![refused, ACCEPTED, refused, refused, ACCEPTED]);
    let (stats, error) = export(&server, spans(1, 1, 4, START));
    assert_eq!((stats.sent, stats.dropped_rejected, stats.retries), (3, 1, 0));
    assert_eq!(server.received().len(), 5);
    let error = error.unwrap();
    assert!(error.contains("400 Bad Request: id is all zeros") && error.contains(&server.url), "{error}");
}

#[test]
fn wrong_endpoint_is_not_retried_and_redirect_is_not_success() {
    for status in ["404 Not Found", "401 Unauthorized", "405 Method Not Allowed", "302 Found"] {
        let server = FakeServer::start(vec![Act::Answer(status, "")]);
        let (stats, error) = export(&server, spans(1, 1, 4, START));
        assert_eq!((stats.sent, stats.dropped_rejected, stats.retries), (0, 4, 0), "{status}");
        assert_eq!(server.received().len(), 1, "{status}");
        assert!(error.unwrap().contains(status));
    }
}

#[test]
fn posts_keep_both_bounds_and_order() {
    let server = FakeServer::start(vec![]);
    let long = TagValue::Text("x".repeat(3000).into());
    let mut offered = spans(1, 1, 2500, START);
    offered[600..1100].iter_mut().for_each(|span| span.tags.push(("t".into(), long.clone())));
    let (stats, _) = export(&server, offered);
    assert_eq!(stats.sent, 2500);
    let lists = server.received().into_iter().map(|post| post.body);
    let mut ids = Vec::new();
    for list in lists {
        assert!(list.len() <= 1 << 20);
        let list: Vec<serde_json::Value> = serde_json::from_slice(&list).unwrap();
        assert!(list.len() <= 1000);
        ids.extend(list.iter().map(|s| u64::from_str_radix(s["id"].as_str().unwrap(), 16).unwrap()));
    }
    assert_eq!(ids, (1..=2500).collect::<Vec<_>>());
}

#[test]
fn oversized_span_is_rejected_alone() {
    let server = FakeServer::start(vec![]);
    let mut offered = spans(1, 1, 3, START);
    offered[1].tags.push(("t".into(), TagValue::Text("x".repeat(2 << 20).into())));
    let (stats, error) = export(&server, offered);
    assert_eq!((stats.sent, stats.dropped_rejected), (2, 1));
    assert!(error.unwrap().contains("too long to post"));
}

#[test]
fn unreachable_server_is_not_a_start_error_and_loses_only_queue_overflow() {
    // The local port of a connection has no listener, and no other process can get it.
    let far = bound_port();
    let near = TcpStream::connect(far.local_addr().unwrap()).unwrap();
    let url = format!("http://{}", near.local_addr().unwrap());
    let exporter = open(&url, ExportConfig { queue_spans_max: 100, ..config() });
    for batch in 0..50 {
        exporter.offer(spans(1, batch * 7 + 1, 7, START));
        assert!(exporter.stats().balances());
    }
    let stats = exporter.stats();
    assert_eq!((stats.offered, stats.sent, stats.pending, stats.dropped_queue_full), (350, 0, 100, 250));
    let error = first_error(&exporter);
    assert!(error.contains(&url) && error.contains("start Zipkin there"), "{error}");
    let stats = exporter.finish(Duration::ZERO);
    assert_eq!((stats.dropped_undeliverable, stats.dropped_queue_full, stats.pending), (100, 250, 0));
    assert!(stats.balances());
    exporter.offer(vec![span(1, 1, START)]);
    assert_eq!(exporter.stats().dropped_undeliverable, 101, "offered after the end");
    assert!(exporter.stats().balances());
}

#[test]
fn silent_server_does_not_delay_shutdown() {
    // It accepts connections, by its backlog, and nothing more.
    let silent = bound_port();
    let exporter = open(&format!("http://{}", silent.local_addr().unwrap()), config());
    exporter.offer(spans(1, 1, 3, START));
    let stats = exporter.finish(Duration::from_millis(1));
    assert_eq!((stats.dropped_undeliverable, stats.pending), (3, 0));
    assert!(exporter.last_error().is_some());
    assert_eq!(exporter.stats(), stats);
}

/// Waits for the first error.
fn first_error(exporter: &Exporter) -> String {
    loop {
        if let Some(error) = exporter.last_error() {
            return error;
        }
        std::thread::yield_now();
    }
}

fn bound_port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}
