//! Stretches of time as columns of a terminal.
//!
//! A column shows what filled most of its time, if at least half of it was filled. A row with any stretch in
//! the window shows at least one column, however short it was: nothing that happened is invisible.

use blkkin_wire::clock::MonotonicNs;

/// What a stretch of time was spent on. Of equals in one column the later in this order is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fill {
    /// A bio was on its way.
    Bio,
    /// The root's whole life.
    Call,
    /// A commit's whole life.
    Commit,
    /// Who asked had sent, and who answered was not at it.
    Way,
    /// An operation was open, and nothing was done for it that is known of.
    Program,
    /// Nothing below the file system was on its way.
    FileSystem,
    /// Nothing was on its way that is known of, and the call slept.
    Unaccounted,
    /// The call was ready to run, and nothing was on its way that is known of.
    Cpu,
    /// A request waited in the block layer.
    Queued,
    /// A request was in a scheduler, or in the software queue of a device without one.
    Scheduled,
    /// A request was with the flush machinery, which served it by one of its own.
    Flush,
    /// A request was at the device.
    Device,
    /// Something was said at that moment.
    Moment,
}

const FILLS: [Fill; 13] = [
    Fill::Bio,
    Fill::Call,
    Fill::Commit,
    Fill::Way,
    Fill::Program,
    Fill::FileSystem,
    Fill::Unaccounted,
    Fill::Cpu,
    Fill::Queued,
    Fill::Scheduled,
    Fill::Flush,
    Fill::Device,
    Fill::Moment,
];

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its begin.
    pub from: MonotonicNs,
    /// Its end.
    pub to: MonotonicNs,
    /// What it was.
    pub fill: Fill,
}

/// The stretch of time that all bars of a waterfall show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The left edge.
    pub from: MonotonicNs,
    /// The right edge.
    pub to: MonotonicNs,
}

/// A row's columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// What each column shows.
    pub columns: Vec<Option<Fill>>,
    /// Something began before the window.
    pub cut_left: bool,
}

/// `segments` in `columns` columns.
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

/// Adds the time that `segment` takes of each column. Times are multiplied by the number of columns, so that
/// a column is `length` long and nothing is rounded.
fn add(filled: &mut [[u128; FILLS.len()]], window: Window, segment: &Segment, length: u128) {
    let columns = filled.len() as u128;
    let at = |time: MonotonicNs| u128::from(time.since(window.from).0).min(length) * columns;
    // A moment is as long as the shortest stretch.
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
    // Of equals the first.
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
    fn the_whole_window_fills_every_column() {
        assert_eq!(drawn(&[segment(1_000, 2_000, Fill::Call)], 10), "==========");
    }

    #[test]
    fn a_stretch_stands_where_it_was() {
        assert_eq!(drawn(&[segment(1_300, 1_600, Fill::Bio)], 10), "   ---    ");
    }

    #[test]
    fn a_column_shows_what_filled_most_of_it() {
        let request = [segment(1_000, 1_240, Fill::Queued), segment(1_240, 1_500, Fill::Device)];
        assert_eq!(drawn(&request, 10), "..###     ");
        // Half and half: the device.
        let halves = [segment(1_000, 1_050, Fill::Queued), segment(1_050, 1_100, Fill::Device)];
        assert_eq!(drawn(&halves, 10), "#         ");
    }

    #[test]
    fn less_than_half_a_column_is_not_shown_beside_more() {
        assert_eq!(drawn(&[segment(1_100, 1_240, Fill::Bio)], 10), " -        ");
        assert_eq!(drawn(&[segment(1_100, 1_250, Fill::Bio)], 10), " --       ");
    }

    #[test]
    fn what_is_short_still_shows() {
        assert_eq!(drawn(&[segment(1_501, 1_502, Fill::Device)], 10), "     #    ");
        assert_eq!(drawn(&[segment(1_501, 1_501, Fill::Device)], 10), "     #    ");
        assert_eq!(drawn(&[segment(2_000, 2_000, Fill::Device)], 10), "         #");
        assert_eq!(drawn(&[segment(1_000, 1_000, Fill::Device)], 10), "#         ");
    }

    #[test]
    fn what_lies_outside_is_cut_and_said() {
        let early = bar(WINDOW, &[segment(500, 1_200, Fill::Commit)], 10);
        assert!(early.cut_left);
        assert_eq!(early.columns.iter().flatten().count(), 2);
        let before = bar(WINDOW, &[segment(500, 600, Fill::Commit)], 10);
        assert!(before.cut_left);
        assert_eq!(before.columns.iter().flatten().count(), 0);
        assert_eq!(drawn(&[segment(1_900, 9_000, Fill::Bio)], 10), "         -");
    }

    #[test]
    fn no_window_and_no_columns_do_no_harm() {
        let moment = Window { from: MonotonicNs(5), to: MonotonicNs(5) };
        assert_eq!(bar(moment, &[segment(5, 5, Fill::Call)], 3).columns.iter().flatten().count(), 1);
        assert!(bar(WINDOW, &[segment(1_000, 2_000, Fill::Call)], 0).columns.is_empty());
        assert_eq!(drawn(&[], 3), "   ");
    }

    proptest! {
        #[test]
        fn anything_in_the_window_shows_and_only_where_it_was(
            from in 0_u64..3_000, length in 0_u64..3_000, columns in 1_usize..80
        ) {
            let one = segment(from, from + length, Fill::Device);
            let bar = bar(WINDOW, &[one], columns);
            prop_assert_eq!(bar.columns.len(), columns);
            prop_assert_eq!(bar.columns.iter().any(Option::is_some), touches(WINDOW, &one));
            let places: Vec<usize> = (0..columns).filter(|&at| bar.columns[at].is_some()).collect();
            // In one piece.
            prop_assert!(places.windows(2).all(|pair| pair[1] == pair[0] + 1));
        }
    }
}
