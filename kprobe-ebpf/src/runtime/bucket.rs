//! Buckets of histograms, in a form that each kernel's verifier accepts.

use blkkin_probe_abi::totals::{BUCKETS, bucket_of};

/// Returns the bucket of a time, of which the verifier finds the limit.
#[inline(always)]
pub fn bounded_bucket(ns: u64) -> Option<usize> {
    let mut bucket = bucket_of(ns);
    // SAFETY: changes nothing; the compiler no longer knows the result's limit, which the verifier does not find.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) bucket, options(nomem, nostack, preserves_flags));
    }
    if bucket < BUCKETS { Some(bucket) } else { None }
}
