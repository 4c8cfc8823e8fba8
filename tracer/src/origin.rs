//! Who we are: the machine, its boot, this start; and what its clocks say.

use std::fs;

use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};
use uuid::Uuid;

/// This machine (/etc/machine-id), this boot, and a random start. A machine without an id is told apart by its
/// boot alone, which is random too.
pub fn source() -> Source {
    let boot = read_id("/proc/sys/kernel/random/boot_id").unwrap_or_else(Uuid::new_v4);
    let node = read_id("/etc/machine-id").unwrap_or(boot);
    let [epoch, _] = [Uuid::new_v4().as_u64_pair().0, 0];
    Source { node: NodeId(node.as_u128()), boot: BootId(boot.as_u128()), epoch: StartEpoch(epoch) }
}

fn read_id(path: &str) -> Option<Uuid> {
    Uuid::try_parse(fs::read_to_string(path).ok()?.trim()).ok()
}

/// Readings of the pair of clocks, of which the tightest is taken: an interrupt between two readings is rare, ten
/// in a row do not happen.
const READINGS: usize = 10;

/// Both clocks at one moment: the wall clock read between two readings of the monotonic one.
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
    // Both run on: what lies between the two readings is ns, a suspension is more.
    let (monotonic, boottime) = (read_clock(libc::CLOCK_MONOTONIC), read_clock(libc::CLOCK_BOOTTIME));
    ClockAnchor { suspended: DurationNs(boottime.saturating_sub(monotonic)), claimed: claimed(), ..best }
}

/// How far the wall clock may be off, as who disciplines it has told the kernel: adjtimex(2).
fn claimed() -> Option<DurationNs> {
    // SAFETY: all of it is numbers, for which zero is a value; `modes` 0 only reads.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is writable.
    let state = unsafe { libc::adjtimex(&mut clock) };
    let disciplined = state >= 0 && state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0;
    disciplined.then(|| DurationNs(u64::try_from(clock.maxerror).unwrap_or(0) * 1_000))
}

/// CLOCK_MONOTONIC now: the clock of the records (bpf_ktime_get_ns).
pub fn now() -> MonotonicNs {
    MonotonicNs(read_clock(libc::CLOCK_MONOTONIC))
}

fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// /proc/uptime is CLOCK_BOOTTIME (fs/proc/uptime.c), in hundredths of a second.
    #[test]
    fn an_anchor_knows_how_long_the_machine_was_suspended() {
        let up = |at: &str| at.split_whitespace().next().unwrap().replace('.', "").parse::<u64>().unwrap();
        let before = up(&fs::read_to_string("/proc/uptime").unwrap());
        let anchor = anchor();
        let boottime = (now().0 + anchor.suspended.0) / 10_000_000;
        let after = up(&fs::read_to_string("/proc/uptime").unwrap());
        assert!((before..=after).contains(&boottime), "{before} {boottime} {after}");
    }
}
