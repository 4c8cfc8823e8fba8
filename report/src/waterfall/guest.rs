//! Waterfall of a guest's operation: its own kernel, QEMU, and the machines that served its requests.
//!
//! A file system's span has the times of its call, and a bio nearly those of its request, so neither has a row.

use blkkin_wire::clock::{DurationNs, MonotonicNs};

use super::bar::{Fill, Segment, Window};
use super::row::WaterfallRow;
use crate::collect::guests::SlowOperation;
use crate::collect::guests::layers::{GuestLayer, LayerTimes, PartKind, PlacedPart};
use crate::text::line::sanitize;
use crate::text::units;

/// Maximum number of rows.
const ROWS_MAX: usize = 24;
/// Maximum number of layers in a sentence.
const SHARES_MAX: usize = 3;

/// Returns the rows of an operation.
pub(crate) fn rows(operation: &SlowOperation) -> Vec<WaterfallRow> {
    let drawn: Vec<&PlacedPart> = operation.tree.parts.iter().filter(|one| is_drawn(one)).collect();
    // Depths of the drawn parts above.
    let mut above: Vec<usize> = Vec::new();
    let window = window(operation);
    let mut rows: Vec<WaterfallRow> = Vec::new();
    for one in drawn.iter().take(ROWS_MAX) {
        above.retain(|depth| *depth < one.depth);
        let segment = segment_of(one);
        let time = segment.to.since(segment.from);
        let mut row = WaterfallRow::new(above.len(), sanitize(&one.part.label), time, vec![segment]);
        row.within = segment.from >= window.from && segment.to <= window.to;
        rows.push(row);
        above.push(one.depth);
    }
    if drawn.len() > ROWS_MAX {
        rows.push(WaterfallRow::note(0, format!("… and {} more", drawn.len() - ROWS_MAX)));
    }
    rows
}

/// Returns the time range of its root.
pub(crate) fn window(operation: &SlowOperation) -> Window {
    let time = operation.tree.parts.first().map_or(0..0, |root| root.part.time.clone());
    Window { from: MonotonicNs(time.start), to: MonotonicNs(time.end) }
}

/// Formats where the time went: `44.1 % in QEMU and virtio, 34.0 % in the guest's kernel`.
pub(crate) fn shares(times: LayerTimes) -> String {
    let total = times.total();
    let known = times.by_time().into_iter().filter(|(_, time)| *time > DurationNs(0)).take(SHARES_MAX);
    let shares: Vec<String> =
        known.map(|(layer, time)| format!("{} {}", units::share(time.0, total.0), layer.place())).collect();
    shares.join(", ")
}

fn is_drawn(one: &PlacedPart) -> bool {
    one.depth == 0 || one.part.kind != PartKind::Other || one.is_served
}

fn segment_of(one: &PlacedPart) -> Segment {
    let fill = match one.layer {
        GuestLayer::GuestKernel => Fill::Call,
        GuestLayer::GuestJournal => Fill::Commit,
        GuestLayer::Qemu => Fill::Bio,
        GuestLayer::Nbd | GuestLayer::Network => Fill::InTransit,
        GuestLayer::Daemon => Fill::OutsideCalls,
        GuestLayer::HostKernel => Fill::FileSystem,
        GuestLayer::Device => Fill::Device,
    };
    let [from, to] = [one.part.time.start, one.part.time.end].map(MonotonicNs);
    Segment { from, to, fill }
}
