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
