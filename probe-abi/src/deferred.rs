//! Deferred operations: the records of an operation wait in the kernel until it ends, and only then is it
//! decided whether they are kept.
//!
//! *In*: the rules, by operation, and why an operation ended as it did. *Out*: the verdict about it, and the times of
//! operations under a rule that compares them with each other.
//! *Invariant*: the records of an operation reach the ring all or not at all. An operation that outgrows its
//! place is kept.
//!
//! *The place* of an operation is [`DEFERRED_RECORDS`] records; most have two or three.

use crate::plain;
use crate::record::{AsyncIoRecord, BioPagesRecord, BioRequestRecord, RequestRecord, SyscallWithContext};
use crate::record::{BIO_AT_DISK, BIO_DEFERRED, BIO_OF_OTHER};
use crate::sleep::SleepsRecord;
use crate::wait::WaitsRecord;

/// Name of the map with the operations.
pub const DEFERRED_MAP: &str = "DEFERRED_OPERATIONS";
/// Sets of the table of operations: 4,096 with I/O in flight, 10 MiB. The map has one set if no operation is
/// deferred.
pub const DEFERRED_SETS: usize = 1_024;
/// Records for which an operation has room.
pub const DEFERRED_RECORDS: usize = 12;
/// Words of a record: the largest is a system call with its thread's context.
pub const DEFERRED_RECORD_WORDS: usize = 25;
/// Time in ns after which an operation without a place may take another's: the end of one of its parts was
/// missed. An operation that takes longer than this may be lost then.
pub const DEFERRED_NS_MAX: u64 = 600_000_000_000;

/// Operation whose records wait. Its key is the span of its root.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeferredOperation {
    /// CLOCK_MONOTONIC when it began.
    pub begin_ns: u64,
    /// Parts that have not ended. Atomic.
    pub open: u64,
    /// Records that were due. Atomic.
    pub records: u64,
    /// Verdict at its begin: [`VERDICT_DROP`], or [`sampled_verdict`].
    pub verdict: u64,
    /// Verdict about a part that was slow or failed; else 0.
    pub reason: u64,
    /// Disks of which the call at its root exceeded the limit, as [`SLOW_AT`]: it is slow if it has I/O at one of them.
    /// Above these bits, the version of the disks at its begin ([`KEEP_DISKS_VERSION_SHIFT`]).
    pub slow_at: u64,
    /// Root of the next operation that has ended on the same CPU and is to be decided about; 0 for none.
    pub next: u64,
    /// The records. One whose first word is 0 is not there.
    pub stored: [[u64; DEFERRED_RECORD_WORDS]; DEFERRED_RECORDS],
}

impl Default for DeferredOperation {
    fn default() -> Self {
        DeferredOperation {
            begin_ns: 0,
            open: 0,
            records: 0,
            verdict: 0,
            reason: 0,
            slow_at: 0,
            next: 0,
            stored: [[0; DEFERRED_RECORD_WORDS]; DEFERRED_RECORDS],
        }
    }
}

/// The records are dropped.
pub const VERDICT_DROP: u64 = 0;
/// Kept, because it was slow.
pub const VERDICT_SLOW: u64 = 0x81;
/// Kept, because it failed.
pub const VERDICT_FAILED: u64 = 0x82;
/// Kept, because it has more records than there is room for.
pub const VERDICT_LARGE: u64 = 0x83;

/// Bit of the verdict about a sampled operation that began while the rules were suspended: it keeps its ratio, whatever
/// it does, because others like it are dropped.
pub const NO_RULES: u64 = 0x40;

/// Bits of a verdict that name its kind.
const KIND: u64 = 0xff;
/// Position of [`SLOW_AT`], which only a verdict that is not final has.
pub const SLOW_AT_SHIFT: u32 = 8;
/// Bits of a verdict for the disks of which the call exceeded the limit.
pub const SLOW_AT: u64 = ((1 << KEEP_DISKS) - 1) << SLOW_AT_SHIFT;

/// Returns the verdict about an operation that head sampling records as one in 2 to the power of `sampling`.
#[inline(always)]
pub const fn sampled_verdict(sampling: u8) -> u64 {
    1 + sampling as u64
}

/// Returns whether the verdict is final: what follows cannot change it.
#[inline(always)]
pub const fn is_final(verdict: u64) -> bool {
    verdict & KIND >= VERDICT_SLOW
}

/// Returns the field [`sampling`](crate::record::Header::sampling) of the root of an operation that is kept.
#[inline(always)]
pub const fn sampling_of(verdict: u64) -> u8 {
    if is_final(verdict) { verdict as u8 } else { ((verdict & !NO_RULES) as u8).wrapping_sub(1) }
}

/// Returns the verdict about an operation with this one so far, of which a part or the end has that one.
#[inline(always)]
pub const fn combined(so_far: u64, verdict: u64) -> u64 {
    if is_final(verdict) && !is_final(so_far) && so_far & NO_RULES == 0 { verdict } else { so_far }
}

/// Returns the verdict about an operation with this one at its begin, which has a part with that reason, and as
/// many records.
#[inline(always)]
pub const fn verdict_of(begin: u64, reason: u64, records: u64) -> u64 {
    let verdict = combined(begin, reason);
    if records > DEFERRED_RECORDS as u64 { combined(verdict, VERDICT_LARGE) } else { verdict }
}

/// Name of the map with the rules.
pub const KEEP_RULES_MAP: &str = "KEEP_RULES";
/// Bits of an operation's word that are a time in ns: an operation that takes as long is kept. With all of them, none is.
pub const KEEP_NS: u64 = (1 << KEEP_HISTOGRAM_SHIFT) - 1;
/// First of the bits that number the histogram of [`KEEP_LATENCIES_MAP`] that counts the operation's time, from 1. With
/// none of them, no histogram does.
pub const KEEP_HISTOGRAM_SHIFT: u32 = 56;
/// Word of the first system call, by its number.
pub const KEEP_SYSCALLS: u32 = 0;
/// Word of the first operation of io_uring (`IORING_OP_*`, below 64).
pub const KEEP_URING: u32 = crate::settings::SYSCALL_NUMBERS as u32;
/// Word of the first operation of libaio (`IOCB_CMD_*`, below 16).
pub const KEEP_LIBAIO: u32 = KEEP_URING + 64;
/// Word of [`KEEP_FAILED`] and [`KEEP_AT_DISKS`].
pub const KEEP_FLAGS: u32 = KEEP_LIBAIO + 16;
/// Words of the map.
pub const KEEP_WORDS: usize = KEEP_FLAGS as usize + 1;
/// Operations that fail are kept.
pub const KEEP_FAILED: u64 = 1 << 0;
/// A disk has limits of its own.
pub const KEEP_AT_DISKS: u64 = 1 << 1;
/// First of the bits of that word that count changes of the disks and of their limits. No operation is judged by other ones
/// than those of its begin.
pub const KEEP_DISKS_VERSION_SHIFT: u32 = 16;

/// Name of the map with the limits of single disks. The element of an operation, at the index of its word in
/// [`KEEP_RULES_MAP`], has a time in ns for each disk, 0 for none: an operation with I/O at the disk is kept if it takes as
/// long.
pub const KEEP_DISK_LIMITS_MAP: &str = "KEEP_DISK_LIMITS";
/// Disks with limits of their own.
pub const KEEP_DISKS: usize = 4;
/// Index of the element that has the disks' device numbers in the kernel's encoding, 0 for none. No operation has
/// this index.
pub const KEEP_DISK_NUMBERS: u32 = KEEP_FLAGS;

/// Name of the map with the histograms: per CPU, operations by the bucket of their time
/// ([`bucket_of`](crate::totals::bucket_of)).
pub const KEEP_LATENCIES_MAP: &str = "KEEP_LATENCIES";
/// Histograms of the map: 16,000 bytes for each CPU. The map has one if no operation is deferred.
pub const KEEP_HISTOGRAMS: usize = 8;

/// Bit of the word of [`HEAD_SAMPLING_MAP`](crate::head_sampling::HEAD_SAMPLING_MAP): operations that are not
/// sampled are dropped when they begin. What is deferred already stays.
pub const SAMPLED_ONLY: u64 = 1 << 8;

const _: () = {
    let room = 8 * DEFERRED_RECORD_WORDS;
    assert!(SLOW_AT >> KEEP_DISKS_VERSION_SHIFT == 0);
    assert!(BIO_AT_DISK > BIO_OF_OTHER && BIO_DEFERRED > BIO_AT_DISK << (KEEP_DISKS - 1));
    assert!(size_of::<SyscallWithContext>() <= room && size_of::<WaitsRecord>() <= room);
    assert!(size_of::<SleepsRecord>() <= room);
    assert!(size_of::<BioRequestRecord>() <= room && size_of::<RequestRecord>() <= room);
    assert!(size_of::<AsyncIoRecord>() <= room && size_of::<BioPagesRecord>() <= room);
};

plain! { DeferredOperation = 8 * (7 + DEFERRED_RECORD_WORDS * DEFERRED_RECORDS) }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head_sampling::SAMPLING_MAX;

    #[test]
    fn a_ratio_is_no_final_verdict() {
        for sampling in 0..=SAMPLING_MAX {
            let verdict = sampled_verdict(sampling);
            assert!(verdict != VERDICT_DROP && !is_final(verdict));
            assert_eq!(sampling_of(verdict), sampling);
        }
        for verdict in [VERDICT_SLOW, VERDICT_FAILED, VERDICT_LARGE] {
            assert!(is_final(verdict) && sampling_of(verdict) > SAMPLING_MAX);
        }
    }

    /// The limits of disks are no reason before the operation's disks are known.
    #[test]
    fn exceeded_limits_of_disks_are_no_final_verdict() {
        for so_far in [VERDICT_DROP, sampled_verdict(0), sampled_verdict(SAMPLING_MAX)] {
            assert!(!is_final(so_far | SLOW_AT));
            assert_eq!(combined(so_far, VERDICT_DROP | SLOW_AT), so_far);
            assert_eq!(sampling_of(sampled_verdict(3) | SLOW_AT), 3);
        }
    }

    /// An operation is weighed by what decided about it: the first rule, or its ratio where rules are suspended.
    #[test]
    fn the_first_rule_decides_unless_rules_are_suspended() {
        for so_far in [VERDICT_DROP, sampled_verdict(0), sampled_verdict(SAMPLING_MAX)] {
            assert_eq!(combined(so_far, VERDICT_DROP), so_far);
            assert_eq!(combined(so_far, VERDICT_SLOW), VERDICT_SLOW);
        }
        assert_eq!(combined(VERDICT_SLOW, VERDICT_FAILED), VERDICT_SLOW);
        for sampling in 0..=SAMPLING_MAX {
            let suspended = sampled_verdict(sampling) | NO_RULES;
            assert!(!is_final(suspended) && suspended != VERDICT_DROP);
            assert_eq!(combined(suspended, VERDICT_LARGE), suspended);
            assert_eq!(sampling_of(suspended), sampling);
        }
    }
}
