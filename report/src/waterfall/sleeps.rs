//! Rows of a waterfall: where in the kernel the call slept, if the trace records it.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::call_sleeps::SleepPlace;

use super::row::WaterfallRow;
use crate::text::line::sanitize;
use crate::text::units;

/// Returns the time that the call slept, and a line for each place, the longest time first. It has no bar: the
/// other rows show what the call waited for meanwhile.
pub(super) fn rows(trace: &Trace) -> Vec<WaterfallRow> {
    let Some(slept) = trace.call().and_then(|call| call.slept.as_deref()) else { return Vec::new() };
    let places = slept.by_time().into_iter().map(|place| WaterfallRow::note(2, sentence(place)));
    let others = (slept.others > 0).then(|| {
        let time = units::duration(slept.others_time);
        WaterfallRow::note(2, format!("{time} at further places, {} ×", units::count(slept.others.into())))
    });
    let unended = (slept.unended > 0).then(|| {
        WaterfallRow::note(
            2,
            format!("{} × without a time: the end was not observed", units::count(slept.unended.into())),
        )
    });
    let total = WaterfallRow::new(1, "asleep".to_owned(), slept.time(), Vec::new());
    [total].into_iter().chain(places).chain(others).chain(unended).collect()
}

/// Formats a place: `26.2 ms in submit_bio_wait, 1 ×, called by blkdev_issue_flush`.
fn sentence(place: &SleepPlace) -> String {
    let (time, count) = (units::duration(place.time), units::count(place.count.into()));
    let caller = place
        .callers()
        .first()
        .map_or_else(String::new, |caller| format!(", called by {}", sanitize(caller)));
    format!("{time} in {}, {count} ×{caller}", sanitize(place.function()))
}
