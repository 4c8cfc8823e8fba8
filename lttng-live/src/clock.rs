//! Conversion of a trace's clock to CLOCK_MONOTONIC, the clock of kernel events
//! (`bpf_ktime_get_ns`).
//!
//! *In*: a clock's declaration. *Out*: a [`ClockConversion`], or the reason why there is none.
//!
//! LTTng-UST's own clock is CLOCK_MONOTONIC with the boot id as its UUID (lttng-ust, `clock.c`),
//! and its ticks need no conversion. Any other clock (of a plugin or another boot) declares only
//! the time since 1970 at its 0. The conversion through this time has an error: the clock's
//! declared precision, plus the error of reading this machine's two clocks together.
//!
//! *Invariant*: a conversion that could change the order of events is refused. So is a clock
//! without an offset from 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ctf::metadata::CtfClock;
use crate::tick_conversion::TickConversion;

/// Maximum error of a conversion. With a larger error, spans would be parents of wrong system
/// calls.
pub const ERROR_MAX: Duration = Duration::from_millis(1);

/// Reason why a trace's times cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClockError {
    /// The clock's origin is unknown.
    #[error("cannot convert the clock `{0}`: it is not CLOCK_MONOTONIC and has no offset from 1970")]
    NoEpoch(String),
    /// The error exceeds [`ERROR_MAX`].
    #[error("the clock `{name}` is too imprecise: an error of {error:?}, more than {ERROR_MAX:?}")]
    Imprecise {
        /// Clock's name.
        name: String,
        /// Error of the conversion.
        error: Duration,
    },
}

/// Conversion of a trace's ticks to CLOCK_MONOTONIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockConversion {
    /// Conversion to ns.
    pub ticks: TickConversion,
    /// Maximum error of a converted time; 0 without conversion.
    pub error: Duration,
}

/// Returns CLOCK_MONOTONIC in ns.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is local, and every Linux has this clock, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Clocks of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostClocks {
    /// Boot id from `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<[u8; 16]>,
    /// CLOCK_REALTIME − CLOCK_MONOTONIC in ns.
    pub realtime_offset_ns: i128,
    /// Maximum error of `realtime_offset_ns`.
    pub error: Duration,
}

impl HostClocks {
    /// Reads both clocks several times and uses the closest pair.
    pub fn read() -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let boot_id = boot_id.and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
        let attempt = || {
            let before = monotonic_ns();
            let since_1970 =
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i128;
            let after = monotonic_ns();
            let half = after.saturating_sub(before) / 2;
            (half, since_1970 - i128::from(before + half))
        };
        let (half, offset) = (0..16).map(|_| attempt()).min().unwrap_or_default();
        Self {
            boot_id: boot_id.map(u128::to_be_bytes),
            realtime_offset_ns: offset,
            error: Duration::from_nanos(half + 1),
        }
    }

    /// Returns the conversion of `clock`.
    pub fn convert(&self, clock: &CtfClock) -> Result<ClockConversion, ClockError> {
        let same_boot = clock.uuid.is_none() || self.boot_id.is_none() || clock.uuid == self.boot_id;
        if clock.name == "monotonic" && clock.frequency == 1_000_000_000 && same_boot {
            return Ok(ClockConversion { ticks: TickConversion::IDENTITY, error: Duration::ZERO });
        }
        if clock.offset_s == 0 && clock.offset == 0 {
            return Err(ClockError::NoEpoch(clock.name.clone()));
        }
        let tick = 1_000_000_000_u64.div_ceil(clock.frequency.max(1));
        let error = Duration::from_nanos(tick.saturating_mul(clock.precision.max(1))) + self.error;
        if error > ERROR_MAX {
            return Err(ClockError::Imprecise { name: clock.name.clone(), error });
        }
        Ok(ClockConversion {
            ticks: TickConversion::since_1970(clock).shifted(-self.realtime_offset_ns),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(name: &str, uuid: Option<[u8; 16]>, frequency: u64, offset_s: i64) -> CtfClock {
        let (name, description) = (name.to_owned(), String::new());
        CtfClock { name, uuid, description, frequency, precision: 1, offset_s, offset: 0 }
    }

    fn host_clocks() -> HostClocks {
        HostClocks {
            boot_id: Some([7; 16]),
            realtime_offset_ns: 1_000_000_000_000,
            error: Duration::from_nanos(300),
        }
    }

    #[test]
    fn monotonic_clock_of_this_boot_is_not_converted() {
        let converted = host_clocks()
            .convert(&clock("monotonic", Some([7; 16]), 1_000_000_000, 1))
            .expect("the same clock");
        assert_eq!((converted.ticks.ns(123), converted.error), (123, Duration::ZERO));
        let read = HostClocks::read();
        assert!(read.error < ERROR_MAX, "{read:?}");
        let (first, then) = (monotonic_ns(), monotonic_ns());
        assert!(first <= then);
    }

    #[test]
    fn other_clocks_are_converted_by_the_time_since_1970() {
        // Another boot's clock, and a counter of 2.5 GHz. Both started 900 s after 1970, 100 s
        // before this boot.
        for (other, ticks) in [
            (clock("monotonic", Some([8; 16]), 1_000_000_000, 900), 150_000_000_000),
            (clock("tsc", None, 2_500_000_000, 900), 375_000_000_000),
        ] {
            let converted = host_clocks().convert(&other).expect("it has an offset from 1970");
            assert_eq!(converted.ticks.ns(ticks), 50_000_000_000, "{}", other.name);
            assert!(converted.error > Duration::from_nanos(300) && converted.error < ERROR_MAX);
        }
    }

    #[test]
    fn imprecise_clocks_and_clocks_without_epoch_are_refused() {
        let refusal = |clock: &CtfClock| host_clocks().convert(clock).expect_err("a refusal").to_string();
        assert!(refusal(&clock("mine", None, 1_000_000_000, 0)).contains("has no offset from 1970"));
        assert!(refusal(&clock("jiffies", None, 250, 900)).contains("4.0003ms, more than 1ms"));
    }
}
