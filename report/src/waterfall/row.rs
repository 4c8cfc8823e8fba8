//! Rows of a waterfall, and groups of them.

use blkkin_wire::clock::{DurationNs, MonotonicNs};

use super::bar::Segment;
use crate::text::style::Ink;

/// Row of a waterfall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaterfallRow {
    /// Depth below the root.
    pub depth: usize,
    /// Label on the left.
    pub label: String,
    /// Ink of the label.
    pub ink: Ink,
    /// Segments of the bar.
    pub segments: Vec<Segment>,
    /// Of a request: time before its issue.
    pub queued: Option<DurationNs>,
    /// Of a request: time at the device or in the flush machinery.
    pub device: Option<DurationNs>,
    /// Total time.
    pub time: DurationNs,
    /// True if all segments are within the root's lifetime, so that the time is a share of it.
    pub within: bool,
    /// True if the row marks events, which have no duration.
    pub instant: bool,
    /// True if the label is a sentence about the row above: it has the whole width, and no bar.
    pub note: bool,
}

impl WaterfallRow {
    pub(super) fn new(depth: usize, label: String, time: DurationNs, segments: Vec<Segment>) -> Self {
        let (queued, device, within, instant, note) = (None, None, true, false, false);
        WaterfallRow { depth, label, ink: Ink::Plain, segments, queued, device, time, within, instant, note }
    }

    /// Creates a sentence about the row above.
    pub(super) fn note(depth: usize, text: String) -> Self {
        let row = WaterfallRow::new(depth, text, DurationNs(0), Vec::new());
        WaterfallRow { note: true, ink: Ink::Dim, ..row }
    }

    pub(super) fn with_ink(self, ink: Ink) -> Self {
        WaterfallRow { ink, ..self }
    }
}

/// Rows that stay together when siblings are sorted by start time.
pub(super) struct RowGroup {
    pub(super) start: MonotonicNs,
    pub(super) rows: Vec<WaterfallRow>,
}

/// Marks the rows whose segments are all within `lifetime`.
pub(super) fn mark_within(rows: &mut [WaterfallRow], lifetime: Segment) {
    for row in rows {
        row.within = row.segments.iter().all(|part| part.from >= lifetime.from && part.to <= lifetime.to);
    }
}
