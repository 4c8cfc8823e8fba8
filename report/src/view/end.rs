//! What was not over when tracing was: what had begun and not ended, and devices that are not what they were.

use blkkin_wire::event::BlockOp;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::in_flight::{BlockLayer, DeviceChange, FinalState, InFlightIo};

use super::title;
use crate::report::Report;
use crate::text::line::{Line, harmless, wrapped};
use crate::text::style::Ink;
use crate::text::table::INDENT;
use crate::text::units;

/// The oldest; whoever wants all of them reads the JSON.
const SHOWN: usize = 10;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let at_end = &report.at_end;
    let mut lines: Vec<String> = at_end.lost.iter().map(|lost| said(&lost.name, lost.change)).collect();
    let under_way: Vec<&InFlightIo> = at_end.in_flight.iter().filter(|one| one.is_lowest()).collect();
    lines.extend(under_way.iter().take(SHOWN).map(|one| sentence(at_end, one)));
    if under_way.len() > SHOWN {
        lines.push(format!("{} more in flight", units::count((under_way.len() - SHOWN) as u64)));
    }
    if lines.is_empty() {
        return Vec::new();
    }
    let wrapped = lines.iter().flat_map(|text| wrapped(text, INDENT, columns, Ink::Alarm));
    title("at the end", "", columns).into_iter().chain(wrapped).collect()
}

fn said(name: &str, fate: DeviceChange) -> String {
    match fate {
        DeviceChange::Gone => format!("{} is gone", harmless(name)),
        DeviceChange::Replaced => format!("{} is another disk now: its rows are of both", harmless(name)),
    }
}

/// `write 4.0 KiB at sector 2048 of nullb1: at the device for 1.20 s`.
fn sentence(at_end: &FinalState, one: &InFlightIo) -> String {
    let since = |from| units::duration(at_end.at.since(from));
    let place = match (one.layer, one.issue) {
        (BlockLayer::Request, Some(issue)) => format!("at the device for {}", since(issue)),
        (BlockLayer::Request, None) => format!("in the queue for {}", since(one.start)),
        (BlockLayer::Bio, _) => format!("in no request for {}", since(one.start)),
    };
    let name = harmless(&name_of(at_end, one.device));
    // A flush and a driver's command are of no sector.
    let at = if one.sector.0 == u64::MAX { String::new() } else { format!(" at sector {}", one.sector.0) };
    format!("{}{at} of {name}: {place}", operation(one.op, one.bytes))
}

fn operation(op: BlockOp, bytes: u32) -> String {
    if bytes == 0 {
        return op.name_for(0).to_owned();
    }
    format!("{} {}", op.name_for(bytes), units::bytes(bytes.into()))
}

/// A device's name; its numbers where it had none.
pub(crate) fn name_of(at_end: &FinalState, device: DeviceId) -> String {
    let known = at_end.device_names.iter().find(|(known, _)| *known == device);
    known.map_or_else(|| device.to_string(), |(_, name)| name.to_string())
}
