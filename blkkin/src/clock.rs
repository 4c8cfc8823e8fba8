//! This process's reading of the clock that events carry.

use blkkin_wire::clock::MonotonicNs;

/// CLOCK_MONOTONIC, now: the same clock as bpf_ktime_get_ns.
pub(crate) fn now() -> MonotonicNs {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written by the call and outlives it. It cannot fail: every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    MonotonicNs(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
