//! Tables keyed by kernel address: the traced bio or request that currently has this address.
//!
//! A table is an array of four-way sets instead of a hash map: insert, lookup and delete cost at
//! most 10 ns together, against 225 to 265 ns for a hash map. An insert claims a way by
//! compare-and-exchange of its key. The owner writes the value before any other program can look it
//! up, because the kernel passes the address on only after the tracepoint returns.
//!
//! A full set evicts no entry: the new object is not traced, and is counted.

use aya_ebpf::btf_maps::Array;
use blkkin_probe_abi::in_flight::{Set, WAYS, Way, set_of};

use super::atomic::compare_exchange;
use super::percpu::PerCpuState;

/// Counters of failed claims.
pub struct ClaimCounters {
    /// Entries whose end was missed: the address is in use again.
    pub stale: usize,
    /// Objects that are not traced because their set is full.
    pub full: usize,
}

/// Returns the set of an address.
#[inline(always)]
fn set<V, const SETS: usize>(table: &Array<Set<V>, SETS>, address: u64) -> Option<*mut Set<V>> {
    table.get_ptr_mut(set_of(address, SETS))
}

/// Returns the entry of `address`.
#[inline(always)]
pub fn find<V, const SETS: usize>(table: &Array<Set<V>, SETS>, address: u64) -> Option<&'static mut V> {
    let set = set(table, address)?;
    let mut i = 0;
    while i < WAYS {
        // SAFETY: a way of a set of the map; keys are read whole.
        unsafe {
            if core::ptr::read_volatile(&raw const (*set).ways[i].key) == address {
                return Some(value(set, i, address));
            }
        }
        i += 1;
    }
    None
}

/// Returns the value of a way. The verifier does not learn which way it is: it would repeat all that
/// follows for each of them (425,399 instructions for all programs instead of 291,902).
///
/// # Safety
/// `set` is a set of the map, and `way` is less than [`WAYS`].
#[inline(always)]
unsafe fn value<'a, V>(set: *mut Set<V>, way: usize, address: u64) -> &'a mut V {
    let mut same = address;
    // SAFETY: changes nothing; the compiler no longer knows that both are equal.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) same, options(nomem, nostack, preserves_flags));
    }
    let way = way ^ (same ^ address) as usize & (WAYS - 1);
    // SAFETY: the mask keeps the way below WAYS, a power of two.
    unsafe { &mut (*(&raw mut (*set).ways).cast::<Way<V>>().add(way)).value }
}

/// Claims an entry for `address`; none if its set is full. An entry that has this address already
/// is stale, and is claimed again. Both cases are counted.
#[inline(always)]
pub fn claim<V, const SETS: usize>(
    table: &Array<Set<V>, SETS>,
    address: u64,
    percpu: &mut PerCpuState,
    counters: ClaimCounters,
) -> Option<&'static mut V> {
    if let Some(found) = find(table, address) {
        percpu.count(counters.stale);
        return Some(found);
    }
    let Some(set) = set(table, address) else {
        percpu.count(counters.full);
        return None;
    };
    let mut i = 0;
    while i < WAYS {
        // SAFETY: as above; the exchange decides between two CPUs.
        unsafe {
            let way = &raw mut (*set).ways[i];
            if core::ptr::read_volatile(&raw const (*way).key) == 0
                && compare_exchange(&raw mut (*way).key, 0, address) == 0
            {
                return Some(value(set, i, address));
            }
        }
        i += 1;
    }
    percpu.count(counters.full);
    None
}

/// Returns the position of the entry of `address` in the table, from 1; 0 if it has none.
#[inline(always)]
pub fn position<V, const SETS: usize>(table: &Array<Set<V>, SETS>, address: u64) -> u32 {
    let index = set_of(address, SETS);
    let Some(set) = table.get_ptr_mut(index) else { return 0 };
    let mut i = 0;
    while i < WAYS {
        // SAFETY: a way of a set of the map; keys are read whole.
        if unsafe { core::ptr::read_volatile(&raw const (*set).ways[i].key) } == address {
            return index * WAYS as u32 + i as u32 + 1;
        }
        i += 1;
    }
    0
}

/// Returns the entry at a position that [`position`] returned, if an object has it.
#[inline(always)]
pub fn at<V, const SETS: usize>(table: &Array<Set<V>, SETS>, position: u32) -> Option<&'static mut V> {
    let index = position.wrapping_sub(1);
    let set = table.get_ptr_mut(index / WAYS as u32)?;
    let wanted = index % WAYS as u32;
    let mut i = 0;
    while i < WAYS {
        // SAFETY: as above.
        unsafe {
            if i as u32 == wanted && core::ptr::read_volatile(&raw const (*set).ways[i].key) != 0 {
                return Some(value(set, i, position as u64));
            }
        }
        i += 1;
    }
    None
}

/// Returns the address that an entry belongs to now; 0 for none.
#[inline(always)]
pub fn address_of<V>(value: &V) -> u64 {
    let offset = core::mem::offset_of!(Way<V>, value);
    // SAFETY: a table value is a field of its way; keys are read whole.
    unsafe { core::ptr::read_volatile((&raw const *value).byte_sub(offset).cast::<u64>()) }
}

/// Releases an entry that [`find`] or [`claim`] returned.
#[inline(always)]
pub fn release<V>(value: &mut V) {
    let offset = core::mem::offset_of!(Way<V>, value);
    // SAFETY: a table value is a field of its way; only the owner of an entry releases it.
    unsafe { core::ptr::write_volatile((&raw mut *value).byte_sub(offset).cast::<u64>(), 0) }
}

/// Releases an entry of which other words were written: the next owner sees them.
#[inline(always)]
pub fn release_in_order<V>(value: &mut V) {
    if cfg!(not(bpf_target_arch = "aarch64")) {
        // x86-64 keeps the order of stores (Intel SDM, volume 3, 10.2.2).
        return release(value);
    }
    let offset = core::mem::offset_of!(Way<V>, value);
    let key = address_of(value);
    // SAFETY: as in `release`. An exchange orders what is before it.
    unsafe { compare_exchange((&raw mut *value).byte_sub(offset).cast::<u64>(), key, 0) };
}
