//! Rows of a waterfall: what the call waited for, and the holder of the lock.

use blkkin_aggregator::latency::Breakdown;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::call_waits::{CallWaits, LongestWait, WaitKind};
use blkkin_wire::clock::{DurationNs, MonotonicNs};

use super::bar::{Fill, Segment};
use super::row::WaterfallRow;
use crate::text::line::sanitize;
use crate::text::style::Ink;
use crate::text::units;

/// Returns the rows of the call's waits: its locks, its pauses and the log, each with a sentence. The bar
/// shows the longest wait, the only one with a recorded begin.
pub(super) fn rows(trace: &Trace, breakdown: Breakdown) -> Vec<WaterfallRow> {
    let Some(waits) = trace.call().and_then(|call| call.waits.as_deref()) else { return Vec::new() };
    let groups: [Group; 3] = [
        ("lock wait", breakdown.locks, WaitKind::is_lock),
        ("throttled", breakdown.throttled, |kind| kind == WaitKind::DirtyPages),
        ("log write", breakdown.journal.min(waits.log()), |kind| kind == WaitKind::Log),
    ];
    let reached = groups.into_iter().filter(|(_, time, _)| time.0 > 0);
    reached.flat_map(|(label, time, of)| group(waits, label, time, of)).collect()
}

/// Label, time, and the kinds that belong to it.
type Group = (&'static str, DurationNs, fn(WaitKind) -> bool);

/// Returns begin and end of the call's longest wait.
pub(super) fn longest(trace: &Trace) -> Option<(MonotonicNs, MonotonicNs)> {
    Some(interval(&trace.call()?.waits.as_ref()?.longest))
}

fn interval(wait: &LongestWait) -> (MonotonicNs, MonotonicNs) {
    (wait.begin, MonotonicNs(wait.begin.0.saturating_add(wait.time.0)))
}

fn group(waits: &CallWaits, label: &str, time: DurationNs, of: fn(WaitKind) -> bool) -> [WaterfallRow; 2] {
    let (from, to) = interval(&waits.longest);
    let shown = of(waits.longest.kind).then_some(Segment { from, to, fill: Fill::Waiting });
    let sentence = sentence(waits, of);
    [
        WaterfallRow::new(1, label.to_owned(), time, shown.into_iter().collect()).with_ink(Ink::Alarm),
        WaterfallRow::note(2, sentence),
    ]
}

/// Formats the kinds and the holder: `3 × the file's lock, longest 8.10 ms, held by dd · pid 12`.
fn sentence(waits: &CallWaits, of: impl Fn(WaitKind) -> bool) -> String {
    let sums = waits.sums.iter().filter(|sum| of(sum.kind));
    let kinds: Vec<String> =
        sums.map(|sum| format!("{} × {}", units::count(sum.count.into()), sum.kind.name())).collect();
    let mut sentence = kinds.join(", ");
    if of(waits.longest.kind) {
        let time = units::duration(waits.longest.time);
        sentence.push_str(&format!(", longest {time}"));
        if let Some(holder) = &waits.longest.holder {
            let thread = if holder.tid.0 == holder.pid.0 {
                String::new()
            } else {
                format!(" · tid {}", holder.tid.0)
            };
            sentence.push_str(&format!(
                ", held by {} · pid {}{thread}",
                sanitize(&holder.comm),
                holder.pid.0
            ));
        }
    }
    sentence
}
