//! Latency distribution of one kind of operation.

use blkkin_wire::clock::DurationNs;
use hdrhistogram::Histogram;

/// HDR histogram with two significant digits: a quantile is up to 0.8 % off; count, sum and maximum
/// are exact.
///
/// Memory: 1 KiB for each power of two between 256 ns and the longest duration, at least 2 KiB: 17
/// KiB up to 8 ms, 29 KiB up to 32 s, 58 KiB for the longest possible duration. Three digits need
/// eight times as much and exceed a CPU's first-level cache: recording the eight durations of one
/// traced read took 85 of its 1000 ns in user space.
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
    /// Records one duration.
    pub fn record(&mut self, time: DurationNs) {
        self.histogram.record(time.0).expect("invariant: the histogram resizes up to u64::MAX");
        self.total = DurationNs(self.total.0.saturating_add(time.0));
        self.max = self.max.max(time);
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the sum of all durations.
    pub fn total(&self) -> DurationNs {
        self.total
    }

    /// Returns the exact maximum; `None` if nothing was recorded.
    pub fn max(&self) -> Option<DurationNs> {
        (self.count() > 0).then_some(self.max)
    }

    /// Returns the duration that the fraction `quantile` does not exceed; `None` if nothing was
    /// recorded.
    pub fn quantile(&self, quantile: f64) -> Option<DurationNs> {
        // The histogram returns the upper edge of a bucket, which can exceed the maximum.
        let value = self.histogram.value_at_quantile(quantile).min(self.max.0);
        (self.count() > 0).then_some(DurationNs(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_their_error_and_the_maximum_is_exact() {
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
    fn an_empty_histogram_has_no_quantile() {
        let latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        assert_eq!(latency.max(), None);
    }

    #[test]
    fn the_longest_possible_duration_is_recorded() {
        let mut latency = Latency::default();
        latency.record(DurationNs(u64::MAX));
        latency.record(DurationNs(0));
        assert_eq!(latency.max(), Some(DurationNs(u64::MAX)));
        assert_eq!(latency.quantile(0.0), Some(DurationNs(0)));
        assert_eq!(latency.count(), 2);
    }

    #[test]
    fn memory_matches_the_documentation() {
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
