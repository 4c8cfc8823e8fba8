//! Trace ids as two columns.

use crate::ids::TraceId;

/// Joins the two columns of a trace id.
pub(super) fn trace_id(high: &u64, low: &u64) -> TraceId {
    TraceId(u128::from(*high) << 64 | u128::from(*low))
}

/// Returns the upper and the lower 64 bits of a trace id.
pub(super) fn high_low(trace: TraceId) -> (u64, u64) {
    ((trace.0 >> 64) as u64, trace.0 as u64)
}
