//! Rules that compare operations with each other: what is slower than a percentile of the last minute.
//!
//! *In*: the kernel side's histogram of a rule's operations, once a second. *Out*: the time that counts as slow until the
//! next reading. *Invariant*: the time is the end of the bucket that the percentile of the last minute is in. So at
//! most that part of the minute's operations took as long, and the time is at most 12.5 % above the percentile.
//!
//! *A late reading.* Operations between two readings of more than 10 s apart are dropped, and so are all before.
//!
//! *Few operations.* Where fewer than 1 / (1 − p) operations ended within the minute, the percentile is the slowest of
//! them. Without any, nothing is slow: there is nothing to compare with.
//!
//! *Rejected*: an estimate that forgets exponentially (P², HDR with decay). It has no window that can be stated, and a
//! second reading of the same minute has another result.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use blkkin_probe_abi::totals::{BUCKETS, bounds_of, bucket_at};
use blkkin_wire::clock::DurationNs;

use super::{KeepRule, KeptOperations};

/// Time of which a percentile is.
const WINDOW: Duration = Duration::from_secs(60);
/// Time between two readings beyond which the operations between them are no part of a minute: the reader waited for its
/// subscriber, and when they ended is unknown.
const GAP_MAX: Duration = Duration::from_secs(10);

/// Digits of a percentile after its decimal point.
const DECIMALS: u32 = 3;
/// Parts of a percent.
const PARTS: u32 = 10_u32.pow(DECIMALS);

/// Part of all operations, in thousandths of a percent: more than none and less than all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percentile(u32);

impl Percentile {
    /// Parses digits with up to three after a decimal point: `99`, `99.9`. None if it is no number above 0 and below 100.
    pub fn parse(digits: &str) -> Option<Percentile> {
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > DECIMALS as usize {
            return None;
        }
        let missing = DECIMALS - decimals.len() as u32;
        let parts = whole.parse::<u32>().ok()?.checked_mul(PARTS)?;
        let parts = parts.checked_add(decimals.parse::<u32>().ok()? * 10_u32.pow(missing))?;
        (1..100 * PARTS).contains(&parts).then_some(Percentile(parts))
    }

    /// Returns how many of `operations` are not above the percentile, at least one.
    fn rank(self, operations: u64) -> u64 {
        let parts = u128::from(operations) * u128::from(self.0);
        parts.div_ceil(u128::from(100 * PARTS)).max(1) as u64
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, decimals) = (self.0 / PARTS, self.0 % PARTS);
        let digits = format!("{whole}.{decimals:03}");
        write!(f, "p{}", digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Operations by the bucket of their time.
pub(super) type Histogram = [u64; BUCKETS];

/// Times of a rule's operations in the last minute.
#[derive(Debug)]
pub(super) struct Window {
    operations: KeptOperations,
    percentile: Percentile,
    /// Counts of the last reading. A histogram is never reset.
    before: Box<Histogram>,
    /// Counts between two readings, and when the later one was.
    parts: VecDeque<(Instant, Box<Histogram>)>,
    sum: Box<Histogram>,
    slow: Option<DurationNs>,
}

impl Window {
    /// Creates the window of a rule. `before` has the counts of its histogram at first.
    pub(super) fn new(operations: &KeptOperations, percentile: Percentile, before: &Histogram) -> Window {
        Window {
            operations: operations.clone(),
            percentile,
            before: Box::new(*before),
            parts: VecDeque::new(),
            sum: Box::new([0; BUCKETS]),
            slow: None,
        }
    }

    /// Returns whether the window is that of this rule.
    pub(super) fn is_of(&self, rule: &KeepRule) -> bool {
        matches!(rule, KeepRule::SlowerThanMost(operations, percentile)
            if *operations == self.operations && *percentile == self.percentile)
    }

    /// Returns the rule, as it is written on the command line.
    pub(super) fn rule(&self) -> String {
        self.operations.rule(&self.percentile).to_string()
    }

    /// Returns the time from which an operation counts as slow; none if none does.
    pub(super) fn slow(&self) -> Option<DurationNs> {
        self.slow
    }

    /// Takes the histogram of now into account.
    pub(super) fn advance(&mut self, now: Instant, counts: &Histogram) {
        if self.parts.back().is_some_and(|(at, _)| now.duration_since(*at) > GAP_MAX) {
            *self = Window::new(&self.operations, self.percentile, counts);
        }
        let mut part = Box::new([0; BUCKETS]);
        for (bucket, count) in counts.iter().enumerate() {
            part[bucket] = count.wrapping_sub(self.before[bucket]);
            self.sum[bucket] += part[bucket];
        }
        *self.before = *counts;
        self.parts.push_back((now, part));
        while self.parts.front().is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            let Some((_, part)) = self.parts.pop_front() else { break };
            self.sum.iter_mut().zip(part.iter()).for_each(|(sum, count)| *sum -= count);
        }
        self.slow = slow_from(&self.sum, self.percentile);
    }
}

/// Returns the end of the bucket that the percentile is in.
fn slow_from(histogram: &Histogram, percentile: Percentile) -> Option<DurationNs> {
    let rank = percentile.rank(histogram.iter().sum());
    bounds_of(bucket_at(histogram, rank)?).1.map(DurationNs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use blkkin_probe_abi::totals::bucket_of;
    use proptest::prelude::*;

    use super::*;

    fn percentile(digits: &str) -> Percentile {
        Percentile::parse(digits).unwrap()
    }

    #[test]
    fn percentiles_are_exact() {
        for (digits, shown) in
            [("99.9", "p99.9"), ("99", "p99"), ("50.0", "p50"), ("99.999", "p99.999"), ("0.001", "p0.001")]
        {
            assert_eq!(percentile(digits).to_string(), shown);
        }
        for bad in ["", ".", "99.", ".9", "0", "0.000", "100", "99.9999", "-1", "1e1", "99,9", "4294968"] {
            assert_eq!(Percentile::parse(bad), None, "{bad}");
        }
        assert_eq!(
            [1, 1_000, 1_001, 10_000].map(|count| percentile("99.9").rank(count)),
            [1, 999, 1_000, 9_990]
        );
    }

    fn window(digits: &str) -> Window {
        Window::new(&KeptOperations::All, percentile(digits), &[0; BUCKETS])
    }

    #[test]
    fn a_minute_later_the_times_are_forgotten() {
        let mut window = window("50");
        let (start, mut counts) = (Instant::now(), [0; BUCKETS]);
        window.advance(start, &counts);
        assert_eq!(window.slow(), None);
        counts[bucket_of(1_000_000)] += 1;
        window.advance(start + Duration::from_secs(1), &counts);
        assert_eq!(window.slow(), bounds_of(bucket_of(1_000_000)).1.map(DurationNs));
        for second in 2..61 {
            counts[bucket_of(1_000)] += u64::from(second == 30);
            window.advance(start + Duration::from_secs(second), &counts);
            assert!(window.slow().unwrap().0 > 1_000_000 || second >= 30, "{second}");
        }
        window.advance(start + Duration::from_secs(61), &counts);
        assert_eq!(window.slow(), bounds_of(bucket_of(1_000)).1.map(DurationNs));
        // A reader that waited for two minutes: when the operation ended is unknown.
        counts[bucket_of(5_000)] += 1;
        window.advance(start + Duration::from_secs(181), &counts);
        assert_eq!(window.slow(), None);
        assert_eq!(*window.sum, [0; BUCKETS]);
        counts[bucket_of(9_000)] += 1;
        window.advance(start + Duration::from_secs(182), &counts);
        assert_eq!(window.slow(), bounds_of(bucket_of(9_000)).1.map(DurationNs));
    }

    /// Counts of before the rule, and operations that are longer than any bucket, are no reason to keep anything.
    #[test]
    fn earlier_counts_and_endless_operations_are_left_out() {
        let mut counts = [7; BUCKETS];
        let mut window = Window::new(&KeptOperations::All, percentile("99"), &counts);
        window.advance(Instant::now(), &counts);
        assert_eq!(window.slow(), None);
        counts[BUCKETS - 1] += 1;
        window.advance(Instant::now(), &counts);
        assert_eq!(window.slow(), None);
    }

    proptest! {
        /// At most the part above the percentile is as slow, and nothing is that is below the percentile itself.
        #[test]
        fn no_more_than_the_part_above_is_slow(
            mut times in prop::collection::vec(1_u64..1 << 40, 1..400),
            parts in 1_u32..100_000,
        ) {
            let percentile = Percentile(parts);
            let mut histogram = [0; BUCKETS];
            times.iter().for_each(|ns| histogram[bucket_of(*ns)] += 1);
            times.sort_unstable();
            let rank = percentile.rank(times.len() as u64) as usize;
            let exact = times[rank - 1];
            if let Some(slow) = slow_from(&histogram, percentile) {
                prop_assert!(slow.0 > exact && slow.0 <= (exact + exact / 8 + 1).max(64));
                let kept = times.iter().filter(|ns| **ns >= slow.0).count();
                prop_assert!(kept <= times.len() - rank);
            } else {
                prop_assert_eq!(bucket_of(exact), BUCKETS - 1);
            }
        }
    }
}
