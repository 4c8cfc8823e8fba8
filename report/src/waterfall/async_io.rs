//! Rows of asynchronous I/O: submissions with their bios.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::async_io::{AsyncIoEvent, AsyncIoOutcome};
use blkkin_wire::ids::SpanId;
use blkkin_wire::syscalls::errno_name;

use super::bar::{Fill, Segment};
use super::row::{RowGroup, WaterfallRow};
use crate::text::style::Ink;
use crate::text::units;

/// Maximum number of submissions of a trace with rows of their own, the slowest. The others are
/// summed in one row.
const SUBMISSIONS_SHOWN: usize = 8;

/// Returns the submissions below the root, with the rows of their bios.
pub(super) fn groups(
    trace: &Trace,
    depth: usize,
    bios: impl Fn(SpanId) -> Vec<WaterfallRow>,
) -> Vec<RowGroup> {
    let below = trace.async_ios.iter().map(|io| &io.event).filter(|event| event.span != trace.root_span);
    let mut events: Vec<&AsyncIoEvent> = below.collect();
    // Stable: equal times stay in the order of the trace.
    events.sort_by_key(|event| std::cmp::Reverse(event.end.since(event.start)));
    let shown = if events.len() > SUBMISSIONS_SHOWN + 1 { SUBMISSIONS_SHOWN } else { events.len() };
    let (shown, more) = events.split_at(shown);
    let group = |event: &&AsyncIoEvent| {
        let mut rows = vec![row(event, depth)];
        rows.extend(bios(event.span));
        RowGroup { start: event.start, rows }
    };
    let mut groups: Vec<RowGroup> = shown.iter().map(group).collect();
    groups.extend(summed(more, depth));
    groups
}

fn row(event: &AsyncIoEvent, depth: usize) -> WaterfallRow {
    let ink = if event.errno().is_some() { Ink::Alarm } else { Ink::Plain };
    WaterfallRow::new(depth, label(event), event.end.since(event.start), vec![lifetime(event)]).with_ink(ink)
}

fn lifetime(event: &AsyncIoEvent) -> Segment {
    Segment { from: event.start, to: event.end, fill: Fill::Bio }
}

/// Returns the label of a submission: operation, length, offset, and what is special.
pub(crate) fn label(event: &AsyncIoEvent) -> String {
    let mut label = event.operation().name.to_owned();
    if let Some(length) = event.length {
        label.push_str(&format!(" {}", units::bytes(length.into())));
    }
    if let Some(offset) = event.offset.filter(|offset| *offset >= 0) {
        label.push_str(&format!(" at {offset}"));
    }
    if event.queued.is_some() {
        label.push_str(", worker");
    }
    if event.is_linked() {
        label.push_str(", linked");
    }
    match (event.outcome, event.errno()) {
        (_, Some(errno)) => {
            let name = errno_name(errno).map_or_else(|| errno.to_string(), str::to_owned);
            label.push_str(&format!(": {name}"));
        }
        (AsyncIoOutcome::NoEnd, _) => label.push_str(", no end seen"),
        _ => {}
    }
    label
}

fn summed(more: &[&AsyncIoEvent], depth: usize) -> Option<RowGroup> {
    let start = more.iter().map(|event| event.start).min()?;
    let end = more.iter().map(|event| event.end).max()?;
    let label = format!("+ {}", units::counted(more.len() as u64, "more submission"));
    let lifetimes = more.iter().map(|event| lifetime(event)).collect();
    let row = WaterfallRow::new(depth, label, end.since(start), lifetimes).with_ink(Ink::Dim);
    Some(RowGroup { start, rows: vec![row] })
}
