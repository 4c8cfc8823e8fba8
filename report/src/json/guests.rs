//! Operations of guests, as JSON.

use serde_json::{Map, Value, json};

use crate::collect::guests::layers::{GuestLayer, LayerTimes};
use crate::collect::guests::{GuestKey, GuestSums, SlowOperation};
use crate::report::Report;
use crate::view::PROGRAMS_SHOWN;

/// Returns the object, null without an operation of a guest.
pub(super) fn value(report: &Report) -> Value {
    let (guests, rows) = (&report.guests, report.guests.rows());
    if rows.is_empty() {
        return Value::Null;
    }
    let [requests, linked] = guests.requests();
    json!({
        "requests": requests,
        "requests_linked": linked,
        "endpoints_refused": guests.refused(),
        "records_lost": guests.lost(),
        "operations_decided_early": guests.decided_early(),
        "programs": rows.iter().take(PROGRAMS_SHOWN).map(|(key, sums)| program(key, sums)).collect::<Vec<_>>(),
        "slowest": guests.slowest().iter().map(slow).collect::<Vec<_>>(),
    })
}

fn program(key: &GuestKey, sums: &GuestSums) -> Value {
    json!({
        "machine": key.machine,
        "program": key.program,
        "operations": sums.operations,
        "operations_unlinked": sums.left_out.unlinked,
        "operations_shared": sums.left_out.shared,
        "operations_incomplete": sums.left_out.incomplete,
        "operations_unnamed": sums.left_out.unnamed,
        "layers_ns": layers(sums.times),
    })
}

fn slow(operation: &SlowOperation) -> Value {
    json!({
        "machine": operation.key.machine,
        "program": operation.key.program,
        "name": operation.name(),
        "duration_ns": operation.duration().0,
        "layers_ns": layers(operation.times),
    })
}

fn layers(times: LayerTimes) -> Map<String, Value> {
    let of = |layer: GuestLayer| (layer.name().replace(' ', "_").to_lowercase(), json!(times.of(layer).0));
    GuestLayer::ALL.into_iter().map(of).collect()
}
