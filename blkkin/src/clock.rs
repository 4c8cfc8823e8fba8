//! The clock of events, read in this process.

use blkkin_wire::clock::MonotonicNs;

/// Reads CLOCK_MONOTONIC, the clock of bpf_ktime_get_ns.
pub(crate) fn now() -> MonotonicNs {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time`, which outlives it. It cannot fail: every Linux has this
    // clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    MonotonicNs(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
