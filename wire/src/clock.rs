//! Clocks. Events carry the kernel's monotonic time unchanged. A wall clock time is always
//! monotonic time + an anchor, and the anchor bounds its error.

use serde::{Deserialize, Serialize};

/// CLOCK_MONOTONIC of one boot of one node, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MonotonicNs(pub u64);

impl MonotonicNs {
    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: MonotonicNs) -> DurationNs {
        DurationNs(self.0.saturating_sub(earlier.0))
    }
}

/// Duration in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DurationNs(pub u64);

/// Duration that may be unknown, in one word: an event is moved several times. No duration has
/// `u64::MAX` ns, which are 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionalNs(u64);

impl OptionalNs {
    /// Unknown duration.
    pub const NONE: OptionalNs = OptionalNs(u64::MAX);

    /// Returns the duration, if it is known.
    pub fn get(self) -> Option<DurationNs> {
        (self != OptionalNs::NONE).then_some(DurationNs(self.0))
    }
}

impl From<Option<DurationNs>> for OptionalNs {
    fn from(duration: Option<DurationNs>) -> Self {
        duration.map_or(OptionalNs::NONE, OptionalNs::from)
    }
}

impl From<DurationNs> for OptionalNs {
    fn from(duration: DurationNs) -> Self {
        OptionalNs(duration.0)
    }
}

/// Wall clock: ns since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WallclockNs(pub u64);

impl WallclockNs {
    /// Converts to µs, the unit of Zipkin's timestamps, rounding down.
    pub fn micros(self) -> u64 {
        self.0 / 1000
    }
}

/// Bounds of the difference between two monotonic clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClockOffset {
    /// Moment, on the clock that is subtracted.
    pub at: MonotonicNs,
    /// The difference was at least this, in ns.
    pub low: i64,
    /// The difference was at most this, in ns.
    pub high: i64,
}

/// Maximum drift between two clocks, in ns per ms. adjtimex(2) corrects a clock's frequency by up to 500 ppm, and
/// there are two clocks.
const DRIFT_PPM: u64 = 1_000;

/// Returns the maximum drift of two clocks in `ns`, rounded up.
pub fn drift(ns: u64) -> i64 {
    // At most 2^64 / 1,000.
    (ns / (1_000_000 / DRIFT_PPM)) as i64 + 1
}

/// Returns a difference of two clocks as a number of 64 bits; the nearest if it has none.
pub fn clamp(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

impl ClockOffset {
    /// Returns the bounds at the moment of `newer` by both measurements. If they contradict each other, a clock has
    /// stood still meanwhile, and the newer one holds.
    pub fn narrowed_by(self, newer: ClockOffset) -> ClockOffset {
        let drift = drift(newer.at.0.abs_diff(self.at.0));
        let (low, high) = (self.low.saturating_sub(drift), self.high.saturating_add(drift));
        let both = ClockOffset { low: low.max(newer.low), high: high.min(newer.high), ..newer };
        if both.low <= both.high { both } else { newer }
    }
}

/// Two clocks read at one moment, with the uncertainty of that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnchor {
    /// CLOCK_MONOTONIC at the moment.
    pub monotonic: MonotonicNs,
    /// CLOCK_REALTIME at the moment.
    pub wallclock: WallclockNs,
    /// Upper bound of the time between the two readings.
    pub uncertainty: DurationNs,
    /// CLOCK_BOOTTIME - CLOCK_MONOTONIC: time that the machine has been suspended since boot.
    pub suspended: DurationNs,
    /// Maximum error of the wall clock against UTC, as the kernel reports it (`maxerror` of
    /// adjtimex(2)); none if the clock is not synchronised. Offsets measured from requests between
    /// nodes override it.
    pub max_error: Option<DurationNs>,
}

impl ClockAnchor {
    /// Anchor of no clock: all zero, no maximum error.
    pub const NONE: ClockAnchor = ClockAnchor {
        monotonic: MonotonicNs(0),
        wallclock: WallclockNs(0),
        uncertainty: DurationNs(0),
        suspended: DurationNs(0),
        max_error: None,
    };

    /// Converts `time` to wall clock with this anchor. Deterministic: a replay returns the same
    /// value.
    pub fn wallclock(&self, time: MonotonicNs) -> WallclockNs {
        let at = i128::from(self.wallclock.0) + i128::from(time.0) - i128::from(self.monotonic.0);
        WallclockNs(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(at: u64, low: i64, high: i64) -> ClockOffset {
        ClockOffset { at: MonotonicNs(at), low, high }
    }

    #[test]
    fn two_measurements_bound_more_than_one() {
        let old = offset(1_000_000_000, -1_000, 500);
        // In 1 ms two clocks drift by up to 1 us.
        let newer = offset(1_001_000_000, -200, 90_000);
        assert_eq!(old.narrowed_by(newer), offset(1_001_000_000, -200, 1_501));
        let paused = offset(1_001_000_000, 500_000_000, 500_100_000);
        assert_eq!(old.narrowed_by(paused), paused);
    }

    #[test]
    fn anchor_converts_times_before_and_after_it() {
        let anchor = ClockAnchor {
            monotonic: MonotonicNs(1_000),
            wallclock: WallclockNs(5_000_000),
            uncertainty: DurationNs(10),
            ..ClockAnchor::NONE
        };
        assert_eq!(anchor.wallclock(MonotonicNs(1_500)), WallclockNs(5_000_500));
        assert_eq!(anchor.wallclock(MonotonicNs(0)), WallclockNs(4_999_000));
    }

    #[test]
    fn anchor_saturates_instead_of_wrapping() {
        let anchor = ClockAnchor { monotonic: MonotonicNs(u64::MAX), ..ClockAnchor::NONE };
        assert_eq!(anchor.wallclock(MonotonicNs(0)), WallclockNs(0));
    }
}
