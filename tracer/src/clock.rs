//! Readings of the system clocks.

use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};

/// Number of clock readings, of which the tightest is used. An interrupt between two readings is
/// rare; ten in a row do not happen.
const READINGS: usize = 10;

/// Reads both clocks at one moment: the wall clock between two readings of the monotonic clock.
pub fn anchor() -> ClockAnchor {
    let mut best: Option<ClockAnchor> = None;
    for _ in 0..READINGS {
        let before = read_clock(libc::CLOCK_MONOTONIC);
        let wallclock = read_clock(libc::CLOCK_REALTIME);
        let after = read_clock(libc::CLOCK_MONOTONIC);
        let uncertainty = DurationNs(after.saturating_sub(before));
        if best.is_none_or(|best| uncertainty < best.uncertainty) {
            best = Some(ClockAnchor {
                monotonic: MonotonicNs(before + uncertainty.0 / 2),
                wallclock: WallclockNs(wallclock),
                uncertainty,
                ..ClockAnchor::NONE
            });
        }
    }
    let best = best.expect("invariant: READINGS is not 0");
    // Both clocks keep running: between the two readings pass ns, a suspension is longer.
    let (monotonic, boottime) = (read_clock(libc::CLOCK_MONOTONIC), read_clock(libc::CLOCK_BOOTTIME));
    ClockAnchor { suspended: DurationNs(boottime.saturating_sub(monotonic)), max_error: claimed(), ..best }
}

/// Returns the maximum error of the wall clock, as reported to the kernel by its time daemon:
/// adjtimex(2).
fn claimed() -> Option<DurationNs> {
    // SAFETY: all fields are numbers, for which zero is valid; `modes` 0 only reads.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is writable.
    let state = unsafe { libc::adjtimex(&mut clock) };
    let disciplined = state >= 0 && state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0;
    disciplined.then(|| DurationNs(u64::try_from(clock.maxerror).unwrap_or(0) * 1_000))
}

/// Returns the ns of one tick of the kernel's timer: the resolution of CLOCK_MONOTONIC_COARSE is
/// TICK_NSEC (kernel/time/posix-timers.c).
pub(crate) fn tick_ns() -> u32 {
    let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `tick` is writable; the clock exists since Linux 2.6.32.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut tick) };
    tick.tv_nsec as u32
}

/// Reads CLOCK_MONOTONIC, the clock of the records (bpf_ktime_get_ns).
pub fn now() -> MonotonicNs {
    MonotonicNs(read_clock(libc::CLOCK_MONOTONIC))
}

/// Returns the CPU time that all threads of this process have taken, in ns.
pub(crate) fn process_cpu_ns() -> u64 {
    read_clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fs;

    use super::*;

    /// /proc/uptime is CLOCK_BOOTTIME (fs/proc/uptime.c), in hundredths of a second.
    #[test]
    fn anchor_includes_suspended_time() {
        let up = |at: &str| at.split_whitespace().next().unwrap().replace('.', "").parse::<u64>().unwrap();
        let before = up(&fs::read_to_string("/proc/uptime").unwrap());
        let anchor = anchor();
        let boottime = (now().0 + anchor.suspended.0) / 10_000_000;
        let after = up(&fs::read_to_string("/proc/uptime").unwrap());
        assert!((before..=after).contains(&boottime), "{before} {boottime} {after}");
    }
}
