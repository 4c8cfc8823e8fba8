//! Bars: segments of time mapped to columns of a terminal.
//!
//! A column shows the fill that covers most of it, if at least half of the column is covered. A row
//! with a segment in the window shows at least one column, so that no short segment is invisible.

use blkkin_wire::clock::MonotonicNs;

/// Meaning of a segment. If two fills cover a column equally, the later in this order is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fill {
    /// A bio was in flight.
    Bio,
    /// Lifetime of the root.
    Call,
    /// Lifetime of a commit.
    Commit,
    /// A request or its reply was between client and server.
    InTransit,
    /// A daemon span was open without a recorded call or server.
    OutsideCalls,
    /// A call was in the file system, with no I/O in flight.
    FileSystem,
    /// The call slept, with no recorded I/O in flight.
    Unaccounted,
    /// The call waited for a lock, or was paused because too many pages were dirty.
    Waiting,
    /// The call's task was runnable, with no recorded I/O in flight.
    Cpu,
    /// A request waited in the block layer.
    Queued,
    /// A request was in a scheduler, or in the software queue of a device without one.
    Scheduled,
    /// A request was in the flush machinery, which issued a request of its own for it.
    Flush,
    /// A request was at the device.
    Device,
    /// An event of a daemon span.
    Event,
}

const FILLS: [Fill; 14] = [
    Fill::Bio,
    Fill::Call,
    Fill::Commit,
    Fill::InTransit,
    Fill::OutsideCalls,
    Fill::FileSystem,
    Fill::Unaccounted,
    Fill::Waiting,
    Fill::Cpu,
    Fill::Queued,
    Fill::Scheduled,
    Fill::Flush,
    Fill::Device,
    Fill::Event,
];

/// Segment of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start of the segment.
    pub from: MonotonicNs,
    /// End of the segment.
    pub to: MonotonicNs,
    /// Meaning of the segment.
    pub fill: Fill,
}

/// Time range of all bars of a waterfall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Left edge.
    pub from: MonotonicNs,
    /// Right edge.
    pub to: MonotonicNs,
}

/// Columns of one bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Fill of each column.
    pub columns: Vec<Option<Fill>>,
    /// True if a segment begins before the window.
    pub cut_left: bool,
}

/// Maps `segments` to `columns` columns.
pub fn bar(window: Window, segments: &[Segment], columns: usize) -> Bar {
    let length = u128::from(window.to.since(window.from).0.max(1));
    let mut filled = vec![[0_u128; FILLS.len()]; columns];
    for segment in segments.iter().filter(|segment| touches(window, segment)) {
        add(&mut filled, window, segment, length);
    }
    let shown = |column: &[u128; FILLS.len()]| column.iter().sum::<u128>() * 2 >= length;
    let mut bar: Vec<Option<Fill>> =
        filled.iter().map(|column| if shown(column) { most(column) } else { None }).collect();
    if bar.iter().all(Option::is_none) {
        show_fullest(&mut bar, &filled);
    }
    Bar { columns: bar, cut_left: segments.iter().any(|segment| segment.from < window.from) }
}

/// Adds the time that `segment` covers of each column. Times are multiplied by the number of
/// columns: a column then has the length `length`, and no rounding is needed.
fn add(filled: &mut [[u128; FILLS.len()]], window: Window, segment: &Segment, length: u128) {
    let columns = filled.len() as u128;
    let at = |time: MonotonicNs| u128::from(time.since(window.from).0).min(length) * columns;
    // An event counts as the shortest segment.
    let (from, to) = (at(segment.from), at(segment.to).max(at(segment.from) + 1));
    let first = (from / length).min(columns.saturating_sub(1));
    for (column, fills) in filled.iter_mut().enumerate().skip(first as usize) {
        let begin = column as u128 * length;
        if begin >= to {
            break;
        }
        let overlap = to.min(begin + length).saturating_sub(from.max(begin)).max(1);
        fills[segment.fill as usize] += overlap;
    }
}

fn touches(window: Window, segment: &Segment) -> bool {
    segment.to >= window.from && segment.from <= window.to
}

fn most(column: &[u128; FILLS.len()]) -> Option<Fill> {
    let (fill, time) = FILLS.iter().zip(column).max_by_key(|(fill, time)| (**time, **fill))?;
    (*time > 0).then_some(*fill)
}

fn show_fullest(bar: &mut [Option<Fill>], filled: &[[u128; FILLS.len()]]) {
    // If several columns are equally full, the first.
    let fullest = (0..filled.len()).rev().max_by_key(|&column| filled[column].iter().sum::<u128>());
    if let Some(column) = fullest {
        bar[column] = most(&filled[column]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Window = Window { from: MonotonicNs(1_000), to: MonotonicNs(2_000) };

    fn segment(from: u64, to: u64, fill: Fill) -> Segment {
        Segment { from: MonotonicNs(from), to: MonotonicNs(to), fill }
    }

    fn drawn(segments: &[Segment], columns: usize) -> String {
        let bar = bar(WINDOW, segments, columns);
        let glyph = |fill: &Option<Fill>| match fill {
            None => ' ',
            Some(Fill::Bio) => '-',
            Some(Fill::Call) => '=',
            Some(Fill::Queued) => '.',
            Some(Fill::Device) => '#',
            Some(_) => '?',
        };
        bar.columns.iter().map(glyph).collect()
    }

    #[test]
    fn a_segment_of_the_whole_window_fills_every_column() {
        assert_eq!(drawn(&[segment(1_000, 2_000, Fill::Call)], 10), "==========");
    }

    #[test]
    fn a_segment_is_drawn_at_its_time() {
        assert_eq!(drawn(&[segment(1_300, 1_600, Fill::Bio)], 10), "   ---    ");
    }

    #[test]
    fn a_column_shows_the_fill_that_covers_most_of_it() {
        let request = [segment(1_000, 1_240, Fill::Queued), segment(1_240, 1_500, Fill::Device)];
        assert_eq!(drawn(&request, 10), "..###     ");
        // Two halves: the device is shown.
        let halves = [segment(1_000, 1_050, Fill::Queued), segment(1_050, 1_100, Fill::Device)];
        assert_eq!(drawn(&halves, 10), "#         ");
    }

    #[test]
    fn a_column_covered_less_than_half_is_empty() {
        assert_eq!(drawn(&[segment(1_100, 1_240, Fill::Bio)], 10), " -        ");
        assert_eq!(drawn(&[segment(1_100, 1_250, Fill::Bio)], 10), " --       ");
    }

    #[test]
    fn a_short_segment_is_visible() {
        assert_eq!(drawn(&[segment(1_501, 1_502, Fill::Device)], 10), "     #    ");
        assert_eq!(drawn(&[segment(1_501, 1_501, Fill::Device)], 10), "     #    ");
        assert_eq!(drawn(&[segment(2_000, 2_000, Fill::Device)], 10), "         #");
        assert_eq!(drawn(&[segment(1_000, 1_000, Fill::Device)], 10), "#         ");
    }

    #[test]
    fn segments_outside_the_window_are_cut_and_marked() {
        let early = bar(WINDOW, &[segment(500, 1_200, Fill::Commit)], 10);
        assert!(early.cut_left);
        assert_eq!(early.columns.iter().flatten().count(), 2);
        let before = bar(WINDOW, &[segment(500, 600, Fill::Commit)], 10);
        assert!(before.cut_left);
        assert_eq!(before.columns.iter().flatten().count(), 0);
        assert_eq!(drawn(&[segment(1_900, 9_000, Fill::Bio)], 10), "         -");
    }

    #[test]
    fn an_empty_window_and_zero_columns_are_accepted() {
        let empty = Window { from: MonotonicNs(5), to: MonotonicNs(5) };
        assert_eq!(bar(empty, &[segment(5, 5, Fill::Call)], 3).columns.iter().flatten().count(), 1);
        assert!(bar(WINDOW, &[segment(1_000, 2_000, Fill::Call)], 0).columns.is_empty());
        assert_eq!(drawn(&[], 3), "   ");
    }

    proptest! {
        #[test]
        fn a_segment_in_the_window_is_drawn_in_one_run(
            from in 0_u64..3_000, length in 0_u64..3_000, columns in 1_usize..80
        ) {
            let one = segment(from, from + length, Fill::Device);
            let bar = bar(WINDOW, &[one], columns);
            prop_assert_eq!(bar.columns.len(), columns);
            prop_assert_eq!(bar.columns.iter().any(Option::is_some), touches(WINDOW, &one));
            let filled: Vec<usize> = (0..columns).filter(|&at| bar.columns[at].is_some()).collect();
            prop_assert!(filled.windows(2).all(|pair| pair[1] == pair[0] + 1));
        }
    }
}
