//! TLS, headers and compression of OTLP requests: a real Collector with a certificate of a private
//! authority, and servers that check what they receive.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use blkkin_wire::clock::WallclockNs;
use blkkin_zipkin_export::{Destination, ExportConfig, ExportStats, Exporter, OtlpConfig, TlsFiles};
use support::certificates::Certificates;
use support::collector::{Collector, LONG};
use support::fake::FakeServer;
use support::grpc_server::{GrpcServer, TOKEN_HEADER};
use support::or_skip;
use support::spans::spans;

const START: WallclockNs = WallclockNs(1_790_000_000_000_000_123);
const TOKEN: &str = "s3cret-t0ken";
const SPANS: u64 = 500;

/// Parses the variables of a program's environment.
fn config(variables: &[(&str, &str)]) -> ExportConfig {
    let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    ExportConfig { otlp: OtlpConfig::from_variables(get).unwrap(), ..ExportConfig::default() }
}

fn headers() -> String {
    format!("{TOKEN_HEADER}={TOKEN}")
}

/// Exports [`SPANS`] spans and returns the counters and the last error.
fn export(to: &str, config: ExportConfig, trace: u128, deadline: Duration) -> (ExportStats, Option<String>) {
    let (kind, value) = to.split_once('=').unwrap();
    let destination = Destination::read(kind, value).unwrap().unwrap();
    let exporter = Exporter::open(destination, config).unwrap();
    exporter.offer(spans(trace, 1, SPANS, START));
    let stats = exporter.finish(deadline);
    (stats, exporter.last_error())
}

fn assert_sent(to: &str, config: ExportConfig, trace: u128) {
    let (stats, error) = export(to, config, trace, LONG);
    assert_eq!((stats.sent, error), (SPANS, None), "{to}: {stats:?}");
}

fn gunzip(body: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut decoded).unwrap();
    decoded
}

#[test]
fn collector_accepts_compressed_spans_over_tls() {
    let Some(certificates) = or_skip(Certificates::new()) else { return };
    let files = [&*certificates.certificate(), &*certificates.key()];
    let Some(collector) = or_skip(Collector::start_with(Some(files))) else { return };
    let authority = certificates.authority();
    let authority = authority.to_str().unwrap();
    let (http, grpc) = (collector.http, collector.grpc);
    let destinations = [
        format!("otlp=https://127.0.0.1:{http}"),
        format!("otlp=https://localhost:{http}"),
        format!("otlp=grpcs://127.0.0.1:{grpc}"),
        format!("otlp=grpcs://localhost:{grpc}"),
    ];
    let mut trace = 0xb0 << 64 | 0x10;
    for to in &destinations {
        for compression in ["none", "gzip"] {
            let config = config(&[
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", authority),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", compression),
                ("OTEL_EXPORTER_OTLP_HEADERS", &headers()),
            ]);
            assert_sent(to, config, trace);
            let id = format!("{trace:032x}");
            let arrived = || collector.output().matches(&id).count() >= SPANS as usize;
            collector.until("all spans are there", arrived);
            trace += 1;
        }
        // Public authorities did not sign this certificate.
        let (stats, error) = export(to, config(&[]), trace, Duration::from_millis(500));
        let error = error.unwrap();
        assert_eq!(stats.sent, 0, "{to}");
        assert!(error.contains("invalid peer certificate"), "{to}: {error}");
        assert!(error.contains("set OTEL_EXPORTER_OTLP_CERTIFICATE"), "{to}: {error}");
    }
}

#[test]
fn collector_that_requires_a_client_certificate_accepts_ours_alone() {
    let Some(certificates) = or_skip(Certificates::new()) else { return };
    let (authority, files) = (certificates.authority(), [&*certificates.certificate(), &*certificates.key()]);
    let Some(collector) = or_skip(Collector::start_for_clients(Some(files), Some(&authority))) else {
        return;
    };
    let (own, key) = certificates.identity("client");
    let [own, key, ca] = [&own, &key, &authority].map(|path| path.to_str().unwrap());
    let tls = |identity| ExportConfig {
        tls: TlsFiles { authorities: Some(authority.clone()), identity },
        ..ExportConfig::default()
    };
    let by_variables = config(&[
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", own),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", key),
    ]);
    let mut trace = 0xc0 << 64 | 0x10;
    for to in [
        format!("otlp=https://localhost:{}", collector.http),
        format!("otlp=grpcs://localhost:{}", collector.grpc),
    ] {
        for config in [by_variables.clone(), tls(Some(certificates.identity("client")))] {
            assert_sent(&to, config, trace);
            let id = format!("{trace:032x}");
            collector
                .until("all spans are there", || collector.output().matches(&id).count() >= SPANS as usize);
            trace += 1;
        }
        for identity in [None, Some(certificates.identity("stranger"))] {
            let (stats, error) = export(&to, tls(identity.clone()), trace, Duration::from_millis(500));
            let error = error.unwrap();
            assert_eq!(stats.sent, 0, "{to} {identity:?}");
            // Definite after an alert; the alert can be lost.
            assert!(error.contains("set --tls-certificate and --tls-key"), "{to} {identity:?}: {error}");
        }
    }
    // Zipkin's client takes the same files; the Collector does not know its path.
    let to = format!("zipkin=https://localhost:{}", collector.http);
    let (stats, error) = export(&to, tls(Some(certificates.identity("client"))), trace, LONG);
    assert_eq!(stats.sent, 0);
    assert!(error.as_ref().is_some_and(|error| error.contains("responded 404")), "{error:?}");
    let (_, error) = export(&to, tls(None), trace, Duration::from_millis(500));
    assert!(error.as_ref().is_some_and(|error| error.contains("--tls-certificate")), "{error:?}");
}

#[test]
fn key_of_another_certificate_is_a_start_error() {
    let Some(certificates) = or_skip(Certificates::new()) else { return };
    let identity = Some((certificates.identity("client").0, certificates.identity("stranger").1));
    for destination in ["otlp=https://localhost:1", "otlp=grpcs://localhost:1", "zipkin=https://localhost:1"]
    {
        let (kind, value) = destination.split_once('=').unwrap();
        let tls = TlsFiles { authorities: None, identity: identity.clone() };
        let config = ExportConfig { tls, ..ExportConfig::default() };
        let error = Exporter::open(Destination::read(kind, value).unwrap().unwrap(), config).err().unwrap();
        let error = error.to_string();
        assert!(error.contains("KeyMismatch") && error.contains("; set --tls-certificate"), "{error}");
    }
}

#[test]
fn key_that_every_user_can_read_is_a_start_error() {
    let Some(certificates) = or_skip(Certificates::new()) else { return };
    let (own, key) = certificates.identity("client");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    for destination in ["otlp=https://localhost:1", "otlp=grpcs://localhost:1", "zipkin=https://localhost:1"]
    {
        let (kind, value) = destination.split_once('=').unwrap();
        let tls = TlsFiles { authorities: None, identity: Some((own.clone(), key.clone())) };
        let config = ExportConfig { tls, ..ExportConfig::default() };
        let error = Exporter::open(Destination::read(kind, value).unwrap().unwrap(), config).err().unwrap();
        let error = error.to_string();
        assert!(error.contains("every user can read it; chmod o-r"), "{destination}: {error}");
    }
}

#[test]
fn http_requests_have_headers_and_compression() {
    let server = FakeServer::start(vec![]);
    let to = format!("otlp={}", server.url);
    assert_sent(&to, config(&[]), 1);
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", &*headers()), ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")];
    assert_sent(&to, config(&variables), 1);
    let posts: Vec<_> = server.received().into_iter().filter(|post| post.body.len() > 32).collect();
    let [plain, compressed] = &posts[..] else { panic!("{} posts", posts.len()) };
    let token = format!("\r\n{TOKEN_HEADER}: {TOKEN}\r\n");
    assert!(!plain.head.contains(&token) && !plain.head.contains("content-encoding"), "{}", plain.head);
    assert!(compressed.head.contains(&token), "{}", compressed.head);
    assert!(compressed.head.contains("\r\ncontent-encoding: gzip\r\n"), "{}", compressed.head);
    assert!(compressed.body.len() < plain.body.len());
    assert_eq!(gunzip(&compressed.body), plain.body);
}

#[test]
fn zipkin_requests_have_neither() {
    let server = FakeServer::start(vec![]);
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", &*headers()), ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")];
    assert_sent(&format!("zipkin={}", server.url), config(&variables), 1);
    for post in server.received() {
        assert!(!post.head.contains(TOKEN_HEADER), "{}", post.head);
        assert!(!post.head.contains("content-encoding"), "{}", post.head);
    }
}

#[test]
fn grpc_calls_have_headers_and_compression() {
    let server = GrpcServer::start(TOKEN);
    let to = format!("otlp=grpc://127.0.0.1:{}", server.port);
    assert_sent(&to, config(&[("OTEL_EXPORTER_OTLP_HEADERS", &headers())]), 1);
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", &*headers()), ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")];
    assert_sent(&to, config(&variables), 1);
    let calls = server.received();
    let [plain, compressed] = &calls[..] else { panic!("{} calls", calls.len()) };
    for call in [plain, compressed] {
        assert_eq!(call.path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
        assert_eq!(call.headers["content-type"], "application/grpc");
        assert_eq!(call.headers["te"], "trailers");
        assert!(call.headers["user-agent"].to_str().unwrap().starts_with("blkkin/"));
    }
    assert_eq!((plain.headers.get("grpc-encoding"), plain.body[0]), (None, 0));
    assert_eq!((compressed.headers["grpc-encoding"].as_bytes(), compressed.body[0]), (&b"gzip"[..], 1));
    assert_eq!(gunzip(&compressed.body[5..]), plain.body[5..]);
}

#[test]
fn rejected_token_is_reported_without_its_value() {
    let server = GrpcServer::start("another-token");
    let to = format!("otlp=grpc://127.0.0.1:{}", server.port);
    let (stats, error) = export(&to, config(&[("OTEL_EXPORTER_OTLP_HEADERS", &headers())]), 1, LONG);
    let error = error.unwrap();
    assert_eq!((stats.sent, stats.dropped_rejected), (0, SPANS), "{error}");
    assert!(error.contains("responded with status 16: unknown token [redacted]"), "{error}");
}

#[test]
fn unreadable_certificate_is_a_start_error() {
    let config = |scheme: &str| {
        let variables = [("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/ca.pem")];
        let destination = Destination::read("otlp", &format!("{scheme}://127.0.0.1:1")).unwrap().unwrap();
        Exporter::open(destination, config(&variables)).err().map(|error| error.to_string())
    };
    for scheme in ["https", "grpcs"] {
        let error = config(scheme).unwrap();
        assert!(error.contains("/no/such/ca.pem"), "{error}");
        assert!(error.contains("; set OTEL_EXPORTER_OTLP_CERTIFICATE"), "{error}");
    }
    for scheme in ["http", "grpc"] {
        assert_eq!(config(scheme), None);
    }
}
