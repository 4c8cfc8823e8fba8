//! What was not over when tracing was.

use blkkin_wire::in_flight::{BlockLayer, DeviceChange};
use serde_json::{Value, json};

use crate::report::Report;
use crate::view::name_of;

/// More would be no report any more; how many there are is among what is beside the losses.
const IN_FLIGHT_MAX: usize = 1_000;

pub(super) fn in_flight(report: &Report) -> Vec<Value> {
    let at_end = &report.at_end;
    let each = at_end.in_flight.iter().take(IN_FLIGHT_MAX).map(|one| {
        json!({
            "layer": match one.layer {
                BlockLayer::Bio => "bio",
                BlockLayer::Request => "request",
            },
            "device": name_of(at_end, one.device),
            "operation": one.op.name_for(one.bytes),
            "sector": one.sector.0,
            "bytes": one.bytes,
            "age_ns": at_end.at.since(one.start).0,
            "at_device_ns": one.issue.map(|issue| at_end.at.since(issue).0),
        })
    });
    each.collect()
}

pub(super) fn lost(report: &Report) -> Vec<Value> {
    let lost = report.at_end.lost.iter().map(|lost| {
        let fate = match lost.change {
            DeviceChange::Gone => "gone",
            DeviceChange::Replaced => "replaced",
        };
        json!({ "device": &*lost.name, "fate": fate })
    });
    lost.collect()
}
