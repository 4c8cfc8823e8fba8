//! Spans as the layers of a real request produce them.

use std::sync::Arc;

use blkkin_wire::clock::{DurationNs, WallclockNs};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind, SpanLink, TagValue};

/// Returns a minimal span.
pub(crate) fn span(trace: u128, id: u64, start: WallclockNs) -> Span {
    Span {
        name: "pwrite".into(),
        service: "sqlite3".into(),
        start,
        duration: DurationNs(1500),
        ..Span::bare(TraceId(trace), SpanId(id))
    }
}

/// Returns `count` minimal spans of one trace, with ids from `first` on.
pub(crate) fn spans(trace: u128, first: u64, count: u64, start: WallclockNs) -> Vec<Span> {
    (first..first + count).map(|id| span(trace, id, start)).collect()
}

/// Returns one fdatasync over all layers; together its spans use every field of a span.
pub(crate) fn fdatasync(trace: u128, start: WallclockNs) -> Vec<Span> {
    let at = |us: u64| WallclockNs(start.0 + us * 1000);
    let call = Span {
        name: "fdatasync".into(),
        kind: SpanKind::Client,
        remote_service: Some("ext4".into()),
        duration: DurationNs(412_345),
        tags: vec![
            ("process.pid".into(), TagValue::Number(4711)),
            ("file.path".into(), TagValue::Shared(Arc::from("/mnt/ü \"quoted\"\\\n\u{1}.db"))),
            ("offset".into(), TagValue::Number(-1)),
        ],
        ..span(trace, 0x1001, start)
    };
    let file_system = Span {
        parent: Some(call.id),
        service: "ext4".into(),
        kind: SpanKind::Server,
        duration: DurationNs(400_000),
        annotations: vec![(at(20), "commit waited for".into()), (at(380), "woken".into())],
        links: vec![
            SpanLink {
                trace: TraceId(0xfeed << 64 | 7),
                span: SpanId(7),
                relation: "caused by (exact: tid)".into(),
            },
            SpanLink { trace: TraceId(9), span: SpanId(9), relation: "shared commit".into() },
        ],
        ..Span { name: "Fsync".into(), ..span(trace, 0x1002, at(3)) }
    };
    let bio = Span {
        parent: Some(file_system.id),
        service: "block".into(),
        kind: SpanKind::Server,
        duration: DurationNs(360_000),
        tags: vec![("disk.io.direction".into(), TagValue::Text("write".into()))],
        ..Span { name: "bio write".into(), ..span(trace, 0x1003, at(5)) }
    };
    let request = Span {
        parent: Some(bio.id),
        service: "loop0".into(),
        kind: SpanKind::Server,
        duration: DurationNs(640),
        error: Some("I/O error".into()),
        ..Span { name: "request write".into(), ..span(trace, 0x1004, at(6)) }
    };
    vec![call, file_system, bio, request]
}
