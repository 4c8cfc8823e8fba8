//! The exporter against a real OpenTelemetry Collector, by HTTP and by gRPC.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use blkkin_wire::clock::WallclockNs;
use blkkin_zipkin_export::{Destination, ExportConfig, Exporter};
use support::collector::{Collector, LONG};
use support::or_skip;
use support::spans::{fdatasync, spans};

const START: WallclockNs = WallclockNs(1_790_000_000_000_000_123);

fn export(to: &str, many: u64, trace: u128) {
    let (kind, value) = to.split_once('=').unwrap();
    let destination = Destination::read(kind, value).unwrap().unwrap();
    let exporter = Exporter::open(destination, ExportConfig::default()).unwrap();
    exporter.offer(fdatasync(trace, START));
    exporter.offer(spans(trace + 1, 1, many, START));
    let stats = exporter.finish(LONG);
    assert_eq!((stats.sent, exporter.last_error()), (many + 4, None), "{stats:?}");
}

/// Checks the Collector's detailed output for the fdatasync request of the test support module.
fn assert_exported(output: &str, trace: u128) {
    let trace = format!("{trace:032x}");
    let resources: Vec<_> = output.split("ResourceSpans #").filter(|part| part.contains(&trace)).collect();
    for service in ["sqlite3", "ext4", "block", "loop0"] {
        let of = format!("service.name: Str({service})");
        assert!(resources.iter().any(|part| part.contains(&of)), "{service} in {resources:?}");
    }
    let all = resources.concat();
    for words in [
        "Name           : fdatasync",
        "Kind           : Client",
        "Kind           : Server",
        "Start time     : 2026-09-21 14:13:20.000000123",
        "Status code    : Error",
        "Status message : I/O error",
        "process.pid: Int(4711)",
        "offset: Int(-1)",
        "disk.io.direction: Str(write)",
        "peer.service: Str(ext4)",
        "blkkin.relation: Str(shared commit)",
        "Name: commit waited for",
    ] {
        assert!(all.contains(words), "no `{words}` in {all}");
    }
}

#[test]
fn collector_accepts_spans_by_http_and_grpc() {
    let Some(collector) = or_skip(Collector::start()) else { return };
    let ids = [0xa1 << 64 | 0x10, 0xa2 << 64 | 0x10];
    let (http, grpc) = (collector.http, collector.grpc);
    export(&format!("otlp=http://127.0.0.1:{http}"), 3_000, ids[0]);
    export(&format!("otlp=grpc://127.0.0.1:{grpc}"), 3_000, ids[1]);
    for trace in ids {
        let many = format!("{:032x}", trace + 1);
        collector.until("all spans are there", || collector.output().matches(&many).count() >= 3_000);
        assert_exported(&collector.output(), trace);
    }
}

#[test]
fn server_without_otlp_is_not_success() {
    // HTTP/1.1 alone.
    let server = support::fake::FakeServer::start(vec![]);
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    let destination = Destination::read("otlp", &format!("grpc://127.0.0.1:{port}")).unwrap().unwrap();
    let exporter = Exporter::open(destination, ExportConfig::default()).unwrap();
    exporter.offer(spans(1, 1, 3, START));
    let stats = exporter.finish(std::time::Duration::from_millis(500));
    assert_eq!((stats.sent, stats.dropped_undeliverable), (0, 3));
    assert!(exporter.last_error().unwrap().contains("start an OTLP receiver"), "{:?}", exporter.last_error());
}
