//! Spans for the tests of this crate.

use blkkin_wire::clock::{DurationNs, WallclockNs};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::Span;

/// Returns a minimal span with id `n`.
pub(crate) fn span(n: u64) -> Span {
    Span {
        name: "pwrite".into(),
        service: "sqlite3".into(),
        start: WallclockNs(1_700_000_000_000_000_000 + n),
        duration: DurationNs(1500),
        ..Span::bare(TraceId(1 << 64 | 1), SpanId(n))
    }
}

/// Returns spans with ids 1 to `n`.
pub(crate) fn spans(n: u64) -> Vec<Span> {
    (1..=n).map(span).collect()
}
