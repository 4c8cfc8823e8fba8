//! A trace's clock against this machine's CLOCK_MONOTONIC, the clock of the kernel's events (`bpf_ktime_get_ns`).
//!
//! LTTng-UST's own clock is CLOCK_MONOTONIC, and writes the boot's id as its uuid (lttng-ust, `clock.c`): its ticks are taken as
//! they are. Another clock (a plugin's, another boot's) only says what the time since 1970 was at its 0: it is
//! converted by that, and carries an error: what its trace says of its precision and how well the two clocks of this
//! machine were read together. What says nothing of 1970, or ticks slower than its events' order needs, is refused.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ctf::metadata::Clock;
use crate::timeline::Timeline;

/// The largest error that is converted with: beyond it, spans would stand above the wrong calls.
pub const ERROR_MAX: Duration = Duration::from_millis(1);

/// Why a trace's times are of no use here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClockError {
    /// Nothing says what its ticks are since.
    #[error(
        "the clock `{0}` is not CLOCK_MONOTONIC and does not say its time since 1970: it cannot be converted"
    )]
    NoOrigin(String),
    /// It would put events in the wrong place.
    #[error("the clock `{name}` would be converted with an error of {error:?}, more than {ERROR_MAX:?}")]
    Coarse {
        /// Its name.
        name: String,
        /// What the error would be.
        error: Duration,
    },
}

/// How a trace's ticks become CLOCK_MONOTONIC's ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conversion {
    /// Ticks to ns.
    pub timeline: Timeline,
    /// How far off a converted time may be; 0 where ticks are taken as they are.
    pub error: Duration,
}

/// CLOCK_MONOTONIC in ns.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time`, which is ours, and knows this clock on every Linux: it cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What this machine says of its own clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Here {
    /// The boot's id, as `/proc/sys/kernel/random/boot_id` has it.
    pub boot: Option<[u8; 16]>,
    /// CLOCK_REALTIME − CLOCK_MONOTONIC in ns.
    pub monotonic_to_1970_ns: i128,
    /// How far off that may be.
    pub error: Duration,
}

impl Here {
    /// Reads both clocks together, the closest of some attempts.
    pub fn read() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let boot = boot.and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
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
            boot: boot.map(u128::to_be_bytes),
            monotonic_to_1970_ns: offset,
            error: Duration::from_nanos(half + 1),
        }
    }

    /// How `clock` is converted; or why it is refused.
    pub fn convert(&self, clock: &Clock) -> Result<Conversion, ClockError> {
        let same_boot = clock.uuid.is_none() || self.boot.is_none() || clock.uuid == self.boot;
        if clock.name == "monotonic" && clock.frequency == 1_000_000_000 && same_boot {
            return Ok(Conversion { timeline: Timeline::TICKS, error: Duration::ZERO });
        }
        if clock.offset_s == 0 && clock.offset == 0 {
            return Err(ClockError::NoOrigin(clock.name.clone()));
        }
        let tick = 1_000_000_000_u64.div_ceil(clock.frequency.max(1));
        let error = Duration::from_nanos(tick.saturating_mul(clock.precision.max(1))) + self.error;
        if error > ERROR_MAX {
            return Err(ClockError::Coarse { name: clock.name.clone(), error });
        }
        Ok(Conversion { timeline: Timeline::since_1970(clock).moved(-self.monotonic_to_1970_ns), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(name: &str, uuid: Option<[u8; 16]>, frequency: u64, offset_s: i64) -> Clock {
        let (name, description) = (name.to_owned(), String::new());
        Clock { name, uuid, description, frequency, precision: 1, offset_s, offset: 0 }
    }

    fn here() -> Here {
        Here {
            boot: Some([7; 16]),
            monotonic_to_1970_ns: 1_000_000_000_000,
            error: Duration::from_nanos(300),
        }
    }

    #[test]
    fn this_boots_monotonic_clock_is_taken_as_it_is() {
        let converted = here().convert(&clock("monotonic", Some([7; 16]), 1_000_000_000, 1)).expect("it is");
        assert_eq!((converted.timeline.ns(123), converted.error), (123, Duration::ZERO));
        let read = Here::read();
        assert!(read.error < ERROR_MAX, "{read:?}");
        let (first, then) = (monotonic_ns(), monotonic_ns());
        assert!(first <= then);
    }

    #[test]
    fn other_clocks_are_converted_by_the_time_since_1970() {
        // Another boot's; a counter of 2.5 GHz; both began 900 s after 1970, 100 s before this boot.
        for (other, ticks) in [
            (clock("monotonic", Some([8; 16]), 1_000_000_000, 900), 150_000_000_000),
            (clock("tsc", None, 2_500_000_000, 900), 375_000_000_000),
        ] {
            let converted = here().convert(&other).expect("it says its time since 1970");
            assert_eq!(converted.timeline.ns(ticks), 50_000_000_000, "{}", other.name);
            assert!(converted.error > Duration::from_nanos(300) && converted.error < ERROR_MAX);
        }
    }

    #[test]
    fn clocks_of_no_use_are_refused() {
        let says = |clock: &Clock| here().convert(clock).expect_err("it is of no use").to_string();
        assert!(says(&clock("mine", None, 1_000_000_000, 0)).contains("does not say its time since 1970"));
        assert!(says(&clock("jiffies", None, 250, 900)).contains("4.0003ms, more than 1ms"));
    }
}
