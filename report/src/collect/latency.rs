//! How long something took, over many times.

use blkkin_wire::clock::DurationNs;
use hdrhistogram::Histogram;

/// Times of one kind, in an HDR histogram of two significant digits: any quantile is at most 0.8 % off; count, sum and
/// maximum are exact.
///
/// Memory: 1 KiB for each power of two between 256 ns and the longest time, and 2 KiB at least: 17 KiB up to 8 ms, 29 KiB up
/// to 32 s, and 58 KiB for the longest time that there is. (Three digits take eight times as much, which no longer stays
/// in a CPU's first cache: 85 ns of the 1000 that a traced read took in user space were spent in recording its eight times.)
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    total: DurationNs,
    max: DurationNs,
}

const SIGNIFICANT_DIGITS: u8 = 2;

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new(SIGNIFICANT_DIGITS).expect("invariant: 2 digits are within 0 to 5");
        Latency { histogram, total: DurationNs(0), max: DurationNs(0) }
    }
}

impl Latency {
    /// Adds one time.
    pub fn record(&mut self, time: DurationNs) {
        self.histogram.record(time.0).expect("invariant: it resizes itself, up to u64::MAX");
        self.total = DurationNs(self.total.0.saturating_add(time.0));
        self.max = self.max.max(time);
    }

    /// How many times.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Their sum.
    pub fn total(&self) -> DurationNs {
        self.total
    }

    /// The longest, exactly; none of none.
    pub fn max(&self) -> Option<DurationNs> {
        (self.count() > 0).then_some(self.max)
    }

    /// The time that `quantile` of them do not exceed; none of none.
    pub fn quantile(&self, quantile: f64) -> Option<DurationNs> {
        // The histogram answers with the upper edge of a bucket, which may lie above the longest.
        let value = self.histogram.value_at_quantile(quantile).min(self.max.0);
        (self.count() > 0).then_some(DurationNs(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_hundredth_and_the_maximum_is_exact() {
        let mut latency = Latency::default();
        (1..=10_000).for_each(|n| latency.record(DurationNs(n * 1_237)));
        for (quantile, n) in [(0.5, 5_000), (0.9, 9_000), (0.99, 9_900)] {
            let expected = f64::from(n * 1_237);
            let found = latency.quantile(quantile).unwrap().0 as f64;
            assert!((found - expected).abs() / expected <= 0.008, "{quantile}: {found} for {expected}");
        }
        assert_eq!(latency.max(), Some(DurationNs(12_370_000)));
        assert_eq!(latency.count(), 10_000);
        assert_eq!(latency.total(), DurationNs(1_237 * 10_000 * 10_001 / 2));
    }

    #[test]
    fn nothing_has_no_quantile() {
        let latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        assert_eq!(latency.max(), None);
    }

    #[test]
    fn the_longest_time_there_is_does_no_harm() {
        let mut latency = Latency::default();
        latency.record(DurationNs(u64::MAX));
        latency.record(DurationNs(0));
        assert_eq!(latency.max(), Some(DurationNs(u64::MAX)));
        assert_eq!(latency.quantile(0.0), Some(DurationNs(0)));
        assert_eq!(latency.count(), 2);
    }

    #[test]
    fn memory_is_what_the_documentation_says() {
        let kib = |longest: u64| {
            let mut latency = Latency::default();
            latency.record(DurationNs(longest));
            latency.histogram.distinct_values() * size_of::<u64>() / 1024
        };
        assert_eq!(kib(1), 2);
        assert_eq!(kib(8_000_000), 17);
        assert_eq!(kib(32_000_000_000), 29);
        assert_eq!(kib(u64::MAX), 58);
    }
}
