//! State by pointer: which followed bio or request lives at this address now.
//!
//! An array of sets of four ways each, instead of a hash map: insert + lookup + delete cost at most 10 ns, a
//! hash map's 225 to 265. A way is claimed by compare-and-exchange of its key; what it holds is written by its
//! owner before anybody can look it up, because the address is handed on only after the tracepoint returns.
//!
//! A full set is not a reason to push out somebody: the newcomer is not followed, and counted.

use aya_ebpf::btf_maps::Array;
use blkkin_probe_abi::flight::{Set, WAYS, Way};

/// Where a new entry went.
pub enum Claim<V: 'static> {
    /// Into a free way.
    Fresh(&'static mut V),
    /// Into the way of an entry of the same address, whose end was never seen.
    Stale(&'static mut V),
    /// The set is full.
    Full,
}

/// The set of an address. Slab objects lie at multiples of at least 64 B: the bits below say nothing.
#[inline(always)]
fn set<V, const SETS: usize>(table: &Array<Set<V>, SETS>, address: u64) -> Option<*mut Set<V>> {
    let hash = (address >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    table.get_ptr_mut((hash >> 40) as u32 & (SETS as u32 - 1))
}

/// The entry of `address`.
#[inline(always)]
pub fn find<V, const SETS: usize>(table: &Array<Set<V>, SETS>, address: u64) -> Option<&'static mut V> {
    let set = set(table, address)?;
    let mut i = 0;
    while i < WAYS {
        // SAFETY: a way of a set of the map; keys are read whole.
        unsafe {
            let way = &raw mut (*set).ways[i];
            if core::ptr::read_volatile(&raw const (*way).key) == address {
                return Some(&mut (*way).value);
            }
        }
        i += 1;
    }
    None
}

/// A place for `address`, which is not in the table or is there as a left-over.
#[inline(always)]
pub fn claim<V, const SETS: usize>(table: &Array<Set<V>, SETS>, address: u64) -> Claim<V> {
    if let Some(value) = find(table, address) {
        return Claim::Stale(value);
    }
    let Some(set) = set(table, address) else { return Claim::Full };
    let mut i = 0;
    while i < WAYS {
        // SAFETY: as above; the exchange decides between two CPUs.
        unsafe {
            let way = &raw mut (*set).ways[i];
            if core::ptr::read_volatile(&raw const (*way).key) == 0
                && compare_exchange(&raw mut (*way).key, 0, address) == 0
            {
                return Claim::Fresh(&mut (*way).value);
            }
        }
        i += 1;
    }
    Claim::Full
}

/// Forgets an entry, which [`find`] or [`claim`] gave.
#[inline(always)]
pub fn release<V>(value: &mut V) {
    let offset = core::mem::offset_of!(Way<V>, value);
    // SAFETY: a value of a table lies in its way; only the owner of an entry releases it.
    unsafe { core::ptr::write_volatile((&raw mut *value).byte_sub(offset).cast::<u64>(), 0) }
}

/// What was there before; `new` is there now if that was `expected`.
///
/// # Safety
/// `place` is a word of a map's value.
#[inline(always)]
unsafe fn compare_exchange(place: *mut u64, expected: u64, new: u64) -> u64 {
    let mut found = expected;
    // SAFETY: BPF_CMPXCHG on a map's value (Documentation/bpf/standardization/instruction-set.rst); its
    // comparand and result are r0. core's atomics refuse the target (it declares no compare-and-exchange).
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

/// Adds `amount`, and gives what was there before.
///
/// # Safety
/// `place` is a word of a map's value.
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
