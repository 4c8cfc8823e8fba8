//! The exporter against servers that say no, later, or nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use blkkin_wire::clock::WallclockNs;
use blkkin_wire::span::{Span, TagValue};
use blkkin_zipkin_export::backoff::Backoff;
use blkkin_zipkin_export::{Destination, ExportAccounts, ExportConfig, Exporter};
use support::fake::{Act, FakeServer};
use support::spans::{span, spans};

/// Longer than any test takes: no result depends on it.
const LONG: Duration = Duration::from_secs(60);
const START: WallclockNs = WallclockNs(1_700_000_000_000_000_000);
const ACCEPTED: Act = Act::Answer("202 Accepted", "");

fn config() -> ExportConfig {
    let soon = Duration::from_micros(10);
    ExportConfig { backoff: Backoff { first: soon, most: soon }, ..ExportConfig::default() }
}

fn open(url: &str, config: ExportConfig) -> Exporter {
    Exporter::open(Destination::parse(url).unwrap(), config).unwrap()
}

/// What becomes of `spans` at a server that acts so.
fn export(server: &FakeServer, spans: Vec<Span>) -> (ExportAccounts, Option<String>) {
    let exporter = open(&server.url, config());
    exporter.offer(spans);
    let books = exporter.finish(LONG);
    assert!(books.balances() && books.pending == 0, "{books:?}");
    (books, exporter.last_error())
}

#[test]
fn a_post_is_what_zipkin_expects() {
    let server = FakeServer::start(vec![ACCEPTED]);
    let (books, error) = export(&server, spans(1, 1, 3, START));
    assert_eq!((books.sent, books.retries, error), (3, 0, None));
    let posts = server.received();
    assert_eq!(posts.len(), 1);
    assert!(posts[0].head.starts_with("post /api/v2/spans http/1.1\r\n"), "{}", posts[0].head);
    assert!(posts[0].head.contains("\r\ncontent-type: application/json\r\n"), "{}", posts[0].head);
    let list: Vec<serde_json::Value> = serde_json::from_slice(&posts[0].body).unwrap();
    assert_eq!(list[2]["id"], "0000000000000003");
}

#[test]
fn what_nobody_looked_at_is_repeated_byte_for_byte() {
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
    let (books, error) = export(&server, spans(1, 1, 5, START));
    assert_eq!((books.sent, books.retries, error), (5, retries, None));
    let posts = server.received();
    assert_eq!(posts.len() as u64, retries + 1);
    assert!(posts.iter().all(|post| post.body == posts[0].body));
}

#[test]
fn what_is_refused_is_halved() {
    let refused = Act::Answer("400 Bad Request", "id is all zeros");
    // Of 1 2 3 4: all, 1 2, 3 4, 3, 4.
    let server = FakeServer::start(vec![refused, ACCEPTED, refused, refused, ACCEPTED]);
    let (books, error) = export(&server, spans(1, 1, 4, START));
    assert_eq!((books.sent, books.dropped_rejected, books.retries), (3, 1, 0));
    assert_eq!(server.received().len(), 5);
    let error = error.unwrap();
    assert!(error.contains("400 Bad Request: id is all zeros") && error.contains(&server.url), "{error}");
}

#[test]
fn what_is_no_place_for_spans_is_not_asked_again_and_a_redirect_is_no_yes() {
    for status in ["404 Not Found", "401 Unauthorized", "405 Method Not Allowed", "302 Found"] {
        let server = FakeServer::start(vec![Act::Answer(status, "")]);
        let (books, error) = export(&server, spans(1, 1, 4, START));
        assert_eq!((books.sent, books.dropped_rejected, books.retries), (0, 4, 0), "{status}");
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
    let (books, _) = export(&server, offered);
    assert_eq!(books.sent, 2500);
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
fn a_span_too_long_for_any_post_is_rejected_alone() {
    let server = FakeServer::start(vec![]);
    let mut offered = spans(1, 1, 3, START);
    offered[1].tags.push(("t".into(), TagValue::Text("x".repeat(2 << 20).into())));
    let (books, error) = export(&server, offered);
    assert_eq!((books.sent, books.dropped_rejected), (2, 1));
    assert!(error.unwrap().contains("too long to post"));
}

#[test]
fn an_unreachable_server_is_no_error_at_start_and_loses_exactly_what_the_queue_cannot_hold() {
    // The near end of a connection has a port that nobody listens on and nobody else can get.
    let far = bound_port();
    let near = TcpStream::connect(far.local_addr().unwrap()).unwrap();
    let url = format!("http://{}", near.local_addr().unwrap());
    let exporter = open(&url, ExportConfig { queue_spans_max: 100, ..config() });
    for batch in 0..50 {
        exporter.offer(spans(1, batch * 7 + 1, 7, START));
        assert!(exporter.accounts().balances());
    }
    let books = exporter.accounts();
    assert_eq!((books.offered, books.sent, books.pending, books.dropped_queue_full), (350, 0, 100, 250));
    let error = told(&exporter);
    assert!(error.contains(&url) && error.contains("start Zipkin there"), "{error}");
    let books = exporter.finish(Duration::ZERO);
    assert_eq!((books.dropped_undeliverable, books.dropped_queue_full, books.pending), (100, 250, 0));
    assert!(books.balances());
    exporter.offer(vec![span(1, 1, START)]);
    assert_eq!(exporter.accounts().dropped_undeliverable, 101, "offered after the end");
    assert!(exporter.accounts().balances());
}

#[test]
fn a_server_that_never_answers_does_not_hold_up_the_end() {
    // It accepts connections, by its backlog, and nothing more.
    let silent = bound_port();
    let exporter = open(&format!("http://{}", silent.local_addr().unwrap()), config());
    exporter.offer(spans(1, 1, 3, START));
    let books = exporter.finish(Duration::from_millis(1));
    assert_eq!((books.dropped_undeliverable, books.pending), (3, 0));
    assert!(exporter.last_error().is_some());
    assert_eq!(exporter.accounts(), books);
}

/// The first trouble: there will be one.
fn told(exporter: &Exporter) -> String {
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
