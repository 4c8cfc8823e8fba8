//! Conversion of clock ticks to ns that are comparable across traces.
//!
//! Traces of one boot with a clock in ns are compared by their ticks. The time since 1970 that each
//! trace declares was read at another moment, and differs by microseconds. Other traces are
//! compared by the time since 1970.

use crate::ctf::metadata::{CtfClock, CtfTrace};

/// Linear conversion of ticks to ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TickConversion {
    offset_ns: i128,
    frequency: u64,
}

impl TickConversion {
    /// Conversion of ticks that are ns already.
    pub const IDENTITY: Self = Self { offset_ns: 0, frequency: 1_000_000_000 };

    /// Returns the conversion to ns since 1970.
    pub fn since_1970(clock: &CtfClock) -> Self {
        Self { offset_ns: clock.since_1970_ns(0), frequency: clock.frequency }
    }

    /// Returns the conversion with another origin.
    pub fn shifted(self, by_ns: i128) -> Self {
        Self { offset_ns: self.offset_ns + by_ns, ..self }
    }

    /// Converts `ticks` to ns, saturating.
    #[inline]
    pub fn ns(&self, ticks: u64) -> i64 {
        if self.frequency == 1_000_000_000 && self.offset_ns == 0 {
            return i64::try_from(ticks).unwrap_or(i64::MAX);
        }
        let ns = i128::from(ticks) * 1_000_000_000 / i128::from(self.frequency) + self.offset_ns;
        i64::try_from(ns).unwrap_or(i64::MAX)
    }
}

/// Returns the clock's identity; ticks of clocks with the same identity are comparable.
fn identity(clock: &CtfClock) -> Option<(&str, [u8; 16])> {
    (clock.frequency == 1_000_000_000).then_some(())?;
    Some((&clock.name, clock.uuid?))
}

/// Returns true if all clocks of `traces` are the same clock and count ns.
pub fn ticks_are_comparable<'t>(traces: impl IntoIterator<Item = &'t CtfTrace>) -> bool {
    let mut clocks = traces.into_iter().flat_map(|trace| &trace.clocks).map(identity);
    match clocks.next() {
        None => true,
        Some(None) => false,
        Some(first) => clocks.all(|clock| clock == first),
    }
}
