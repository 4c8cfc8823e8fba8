//! How long something took, counted by range.

use std::time::Duration;

use crate::service::Times;

/// Upper ends of the ranges, ms; beyond the last there is one more. A request to a server nearby takes some ms, to one that
/// collects garbage seconds, and a delivery is as long as the destination is away.
const BOUNDS_MS: [u64; 14] = [1, 3, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 60_000, 600_000];

/// Counts of each range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Durations {
    ranges: [u64; BOUNDS_MS.len() + 1],
    sum: Duration,
}

impl Durations {
    /// One took so long.
    pub(super) fn note(&mut self, time: Duration) {
        let range = BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < time);
        self.ranges[range] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// As a family shows them.
    pub(super) fn times(&self) -> Times {
        let ends = BOUNDS_MS.iter().map(|ms| *ms as f64 / 1e3).chain([f64::INFINITY]);
        let ranges = ends.zip(self.ranges).map(|(end, count)| (end, count, None));
        Times { sum: self.sum.as_secs_f64(), ranges: ranges.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_the_range_that_ends_at_it() {
        let mut durations = Durations::default();
        let ms = Duration::from_millis;
        [ms(0), ms(1), ms(2), ms(600_000), ms(600_001)].into_iter().for_each(|time| durations.note(time));
        let Times { sum, ranges } = durations.times();
        let counts: Vec<_> = ranges.iter().map(|(_, count, _)| *count).collect();
        assert_eq!((counts[0], counts[1], counts[13], counts[14]), (2, 1, 1, 1));
        assert_eq!((sum, ranges[14].0), (1_200.004, f64::INFINITY));
    }
}
