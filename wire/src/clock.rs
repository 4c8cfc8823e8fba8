//! Times. Events carry the monotonic clock as the kernel gave it, and it is never changed; a wall clock time is
//! always monotonic + an anchor, and the anchor says how far it may be off.

use serde::{Deserialize, Serialize};

/// CLOCK_MONOTONIC of one boot of one node, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MonotonicNs(pub u64);

impl MonotonicNs {
    /// Time from `earlier` to here; zero when `earlier` is later.
    pub fn since(self, earlier: MonotonicNs) -> DurationNs {
        DurationNs(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DurationNs(pub u64);

/// Wall clock: ns since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WallclockNs(pub u64);

impl WallclockNs {
    /// In the unit of Zipkin's timestamps, rounded down.
    pub fn micros(self) -> u64 {
        self.0 / 1000
    }
}

/// The two clocks read at one moment, and the span of time within which that moment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnchor {
    /// CLOCK_MONOTONIC at the moment.
    pub monotonic: MonotonicNs,
    /// CLOCK_REALTIME at the moment.
    pub wallclock: WallclockNs,
    /// The two readings were taken at most this far apart.
    pub uncertainty: DurationNs,
    /// What CLOCK_BOOTTIME was ahead of CLOCK_MONOTONIC by then: how long the machine had been suspended since its boot.
    pub suspended: DurationNs,
    /// How far the wall clock may be off from UTC, as the kernel was told by who disciplines it (`maxerror` of adjtimex(2));
    /// none where nobody does. It is a claim: what requests between nodes show wins over it.
    pub claimed: Option<DurationNs>,
}

impl ClockAnchor {
    /// Of no clock: all zero, and nothing claimed.
    pub const NONE: ClockAnchor = ClockAnchor {
        monotonic: MonotonicNs(0),
        wallclock: WallclockNs(0),
        uncertainty: DurationNs(0),
        suspended: DurationNs(0),
        claimed: None,
    };

    /// The wall clock at `time`, as this anchor has it. Deterministic: a replay gives the same.
    pub fn wallclock(&self, time: MonotonicNs) -> WallclockNs {
        let at = i128::from(self.wallclock.0) + i128::from(time.0) - i128::from(self.monotonic.0);
        WallclockNs(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_converts_before_and_after_itself() {
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
    fn an_anchor_never_wraps() {
        let anchor = ClockAnchor { monotonic: MonotonicNs(u64::MAX), ..ClockAnchor::NONE };
        assert_eq!(anchor.wallclock(MonotonicNs(0)), WallclockNs(0));
    }
}
