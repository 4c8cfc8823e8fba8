//! Atomic operations on words of map values, as BPF instructions.
//!
//! core's atomics reject the target, which declares no compare-and-exchange.

/// Stores `new` if the value is `expected`, and returns the previous value.
///
/// # Safety
/// `place` is a word of a map value.
#[inline(always)]
pub unsafe fn compare_exchange(place: *mut u64, expected: u64, new: u64) -> u64 {
    let mut found = expected;
    // SAFETY: BPF_CMPXCHG on a map value (Documentation/bpf/standardization/instruction-set.rst);
    // its comparand and result are r0.
    unsafe {
        core::arch::asm!(
            "r0 = cmpxchg_64({place} + 0, r0, {new})",
            place = in(reg) place,
            new = in(reg) new,
            inlateout("r0") found,
        );
    }
    found
}

/// Adds `amount`, and returns the previous value.
///
/// # Safety
/// `place` is a word of a map value.
#[inline(always)]
pub unsafe fn fetch_add(place: *mut u64, amount: u64) -> u64 {
    let mut value = amount;
    // SAFETY: BPF_ADD | BPF_FETCH on a map's value.
    unsafe {
        core::arch::asm!(
            "{value} = atomic_fetch_add((u64 *)({place} + 0), {value})",
            place = in(reg) place,
            value = inlateout(reg) value,
        );
    }
    value
}
