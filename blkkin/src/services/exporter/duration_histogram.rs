//! A histogram of durations.

use std::time::Duration;

use crate::service::Histogram;

/// Upper bounds of the buckets, in ms; one more bucket is unbounded. A request to a nearby server
/// takes some ms, one to a server in garbage collection seconds, and a delivery lasts as long as
/// its destination's outage.
const BOUNDS_MS: [u64; 14] = [1, 3, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 60_000, 600_000];

/// Counts by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DurationHistogram {
    buckets: [u64; BOUNDS_MS.len() + 1],
    sum: Duration,
}

impl DurationHistogram {
    /// Records a duration.
    pub(super) fn observe(&mut self, time: Duration) {
        let range = BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < time);
        self.buckets[range] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// Returns the histogram in the form of a metric sample.
    pub(super) fn times(&self) -> Histogram {
        let ends = BOUNDS_MS.iter().map(|ms| *ms as f64 / 1e3).chain([f64::INFINITY]);
        let buckets = ends.zip(self.buckets).map(|(end, count)| (end, count, None));
        Histogram { sum: self.sum.as_secs_f64(), buckets: buckets.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_falls_into_the_bucket_that_ends_at_it() {
        let mut durations = DurationHistogram::default();
        let ms = Duration::from_millis;
        [ms(0), ms(1), ms(2), ms(600_000), ms(600_001)].into_iter().for_each(|time| durations.observe(time));
        let Histogram { sum, buckets } = durations.times();
        let counts: Vec<_> = buckets.iter().map(|(_, count, _)| *count).collect();
        assert_eq!((counts[0], counts[1], counts[13], counts[14]), (2, 1, 1, 1));
        assert_eq!((sum, buckets[14].0), (1_200.004, f64::INFINITY));
    }
}
