//! Ticks of a trace's clock as ns of one line for all traces.
//!
//! Traces of one boot whose clock counts ns are compared by their ticks: what each trace says of the time since 1970 was
//! read at another moment, and differs by microseconds. Others are compared by the time since 1970.

use crate::ctf::metadata::{Clock, Trace};

/// How one stream's ticks become ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeline {
    offset_ns: i128,
    frequency: u64,
}

impl Timeline {
    /// Ticks that are the line's ns already.
    pub const TICKS: Self = Self { offset_ns: 0, frequency: 1_000_000_000 };

    /// The time since 1970 by `clock`.
    pub fn since_1970(clock: &Clock) -> Self {
        Self { offset_ns: clock.since_1970_ns(0), frequency: clock.frequency }
    }

    /// The same line, its ns counted from elsewhere.
    pub fn moved(self, by_ns: i128) -> Self {
        Self { offset_ns: self.offset_ns + by_ns, ..self }
    }

    /// `ticks` on the line; what does not fit is at its end.
    #[inline]
    pub fn ns(&self, ticks: u64) -> i64 {
        if self.frequency == 1_000_000_000 && self.offset_ns == 0 {
            return i64::try_from(ticks).unwrap_or(i64::MAX);
        }
        let ns = i128::from(ticks) * 1_000_000_000 / i128::from(self.frequency) + self.offset_ns;
        i64::try_from(ns).unwrap_or(i64::MAX)
    }
}

/// What makes two traces' ticks comparable.
fn identity(clock: &Clock) -> Option<(&str, [u8; 16])> {
    (clock.frequency == 1_000_000_000).then_some(())?;
    Some((&clock.name, clock.uuid?))
}

/// True if all clocks of `traces` are the same, and count ns.
pub fn ticks_compare<'t>(traces: impl IntoIterator<Item = &'t Trace>) -> bool {
    let mut clocks = traces.into_iter().flat_map(|trace| &trace.clocks).map(identity);
    match clocks.next() {
        None => true,
        Some(None) => false,
        Some(first) => clocks.all(|clock| clock == first),
    }
}
