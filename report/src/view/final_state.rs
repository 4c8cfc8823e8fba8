//! Section: I/O in flight when tracing ended, and devices that were lost or replaced.

use blkkin_wire::event::BlockOp;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::in_flight::{BlockLayer, DeviceChange, FinalState, InFlightIo};

use super::title;
use crate::report::Report;
use crate::text::line::{Line, sanitize, wrap};
use crate::text::style::Ink;
use crate::text::table::INDENT;
use crate::text::units;

/// Maximum number of entries, the oldest first; the JSON has up to 1,000.
const IN_FLIGHT_SHOWN: usize = 10;

/// Returns the devices that were lost or replaced.
pub(super) fn changes(report: &Report, columns: usize) -> Vec<Line> {
    let lost = report.final_state.lost.iter().map(|lost| device_change(&lost.name, lost.change));
    lost.flat_map(|text| wrap(&text, INDENT, columns, Ink::Alarm)).collect()
}

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let final_state = &report.final_state;
    let mut lines: Vec<String> =
        final_state.lost.iter().map(|lost| device_change(&lost.name, lost.change)).collect();
    let lowest: Vec<&InFlightIo> = final_state.in_flight.iter().filter(|one| one.is_lowest()).collect();
    lines.extend(lowest.iter().take(IN_FLIGHT_SHOWN).map(|one| in_flight(final_state, one)));
    if lowest.len() > IN_FLIGHT_SHOWN {
        lines.push(format!("{} more in flight", units::count((lowest.len() - IN_FLIGHT_SHOWN) as u64)));
    }
    if lines.is_empty() {
        return Vec::new();
    }
    let wrapped = lines.iter().flat_map(|text| wrap(text, INDENT, columns, Ink::Alarm));
    title("at the end", "", columns).into_iter().chain(wrapped).collect()
}

fn device_change(name: &str, change: DeviceChange) -> String {
    match change {
        DeviceChange::Gone => format!("{} is gone", sanitize(name)),
        DeviceChange::Replaced => {
            format!("{} was replaced by another disk: its rows cover both", sanitize(name))
        }
    }
}

/// Formats one entry: `write 4.0 KiB at sector 2048 of nullb1: at the device for 1.20 s`.
fn in_flight(final_state: &FinalState, one: &InFlightIo) -> String {
    let since = |from| units::duration(final_state.at.since(from));
    let place = match (one.layer, one.issue) {
        (BlockLayer::Request, Some(issue)) => format!("at the device for {}", since(issue)),
        (BlockLayer::Request, None) => format!("in the queue for {}", since(one.start)),
        (BlockLayer::Bio, _) => format!("in no request for {}", since(one.start)),
    };
    let name = sanitize(&device_name(final_state, one.device));
    // A flush and a driver's command have no sector.
    let at = if one.sector.0 == u64::MAX { String::new() } else { format!(" at sector {}", one.sector.0) };
    format!("{}{at} of {name}: {place}", operation(one.op, one.bytes))
}

fn operation(op: BlockOp, bytes: u32) -> String {
    if bytes == 0 {
        return op.name_for(0).to_owned();
    }
    format!("{} {}", op.name_for(bytes), units::bytes(bytes.into()))
}

/// Returns a device's name, or its numbers if it has none.
pub(crate) fn device_name(final_state: &FinalState, device: DeviceId) -> String {
    let known = final_state.device_names.iter().find(|(known, _)| *known == device);
    known.map_or_else(|| device.to_string(), |(_, name)| name.to_string())
}
