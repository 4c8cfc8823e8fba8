//! Spans for the tests of this crate.

use blkkin_wire::clock::{DurationNs, WallclockNs};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind};

/// Returns a minimal span with id `n`.
pub(crate) fn span(n: u64) -> Span {
    Span {
        trace: TraceId(1 << 64 | 1),
        id: SpanId(n),
        parent: None,
        name: "pwrite".into(),
        service: "sqlite3".into(),
        remote_service: None,
        kind: SpanKind::Local,
        start: WallclockNs(1_700_000_000_000_000_000 + n),
        duration: DurationNs(1500),
        annotations: Vec::new(),
        tags: Vec::new(),
        error: None,
        links: Vec::new(),
    }
}

/// Returns spans with ids 1 to `n`.
pub(crate) fn spans(n: u64) -> Vec<Span> {
    (1..=n).map(span).collect()
}
