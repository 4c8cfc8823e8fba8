//! State at the end of tracing: I/O in flight and lost devices.

use blkkin_wire::in_flight::{BlockLayer, DeviceChange};
use serde_json::{Value, json};

use crate::report::Report;
use crate::view::device_name;

/// Maximum number of entries; the losses have the total count.
const IN_FLIGHT_MAX: usize = 1_000;

pub(super) fn in_flight(report: &Report) -> Vec<Value> {
    let final_state = &report.final_state;
    let each = final_state.in_flight.iter().take(IN_FLIGHT_MAX).map(|one| {
        json!({
            "layer": match one.layer {
                BlockLayer::Bio => "bio",
                BlockLayer::Request => "request",
            },
            "device": device_name(final_state, one.device),
            "operation": one.op.name_for(one.bytes),
            "sector": one.sector.0,
            "bytes": one.bytes,
            "age_ns": final_state.at.since(one.start).0,
            "at_device_ns": one.issue.map(|issue| final_state.at.since(issue).0),
        })
    });
    each.collect()
}

pub(super) fn lost_devices(report: &Report) -> Vec<Value> {
    let lost = report.final_state.lost.iter().map(|lost| {
        let change = match lost.change {
            DeviceChange::Gone => "gone",
            DeviceChange::Replaced => "replaced",
        };
        json!({ "device": &*lost.name, "fate": change })
    });
    lost.collect()
}
