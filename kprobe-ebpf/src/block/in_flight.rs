//! Bios and requests in flight: their tables, and the lookup of the bio that a request's bio stems
//! from.

use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::settings::setting;
use crate::runtime::table::{self, ClaimCounters};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{REQUESTS_STALE, REQUESTS_UNTRACKED};
pub use blkkin_probe_abi::in_flight::{BIO_SETS, Bio, REQUEST_SETS, Request, Set};
use blkkin_probe_abi::record::{BIO_DEFERRED, REQUEST_DEFERRED};

#[btf_map]
pub static BIOS: Array<Set<Bio>, BIO_SETS> = Array::new();

#[btf_map]
pub static REQUESTS: Array<Set<Request>, REQUEST_SETS> = Array::new();

/// Counters of claims of a request's entry.
pub const REQUEST_CLAIMS: ClaimCounters = ClaimCounters { stale: REQUESTS_STALE, full: REQUESTS_UNTRACKED };

/// Current state of a bio, as needed to find its entry.
#[derive(Clone, Copy)]
pub struct BioRef {
    /// Address of the bio.
    pub bio: u64,
    /// Completion function.
    pub end_io: u64,
    /// Argument of the completion function.
    pub private: u64,
    /// Current sector, which advances as parts are split off and completed.
    pub sector: u64,
}

/// Returns the entry of the submitted bio: the bio itself, or, for the front of a split, the bio
/// that it was split from. Also returns whether it was such a clone.
#[inline(always)]
pub fn find_origin(bio_ref: BioRef) -> Option<(&'static mut Bio, bool)> {
    if let Some(entry) = find_entry(bio_ref.bio, bio_ref.sector) {
        return Some((entry, false));
    }
    Some((find_split_origin(bio_ref)?, true))
}

/// Returns the entry of the bio at `address`, which is at `sector` now.
#[inline(always)]
pub fn find_entry(address: u64, sector: u64) -> Option<&'static mut Bio> {
    let entry = table::find(&BIOS, address)?;
    if entry.request_part.rq == 0 && covers(entry, sector) { Some(entry) } else { None }
}

/// Returns the entry of the bio that `bio_ref` was split from. The front of a split is a clone that
/// never passes block_bio_queue and ends in bio_chain_endio, with its origin in bi_private
/// (block/bio.c, bio_chain; 257,056 of 257,056 matched).
#[inline(always)]
pub fn find_split_origin(bio_ref: BioRef) -> Option<&'static mut Bio> {
    let chain_endio = setting!(bio_chain_endio);
    let (mut end_io, mut origin) = (bio_ref.end_io, bio_ref.private);
    // A split may be split again: each level of stacking may add one.
    let mut step = 0;
    while step < 3 {
        if chain_endio == 0 || end_io != chain_endio {
            return None;
        }
        if let Some(entry) = table::find(&BIOS, origin) {
            return if entry.request_part.rq == 0 && covers(entry, bio_ref.sector) {
                Some(entry)
            } else {
                None
            };
        }
        // SAFETY: bpf_probe_read_kernel takes any address.
        unsafe {
            end_io = ProbeRead::read(origin as Pointer, offset!(bio_end_io));
            origin = ProbeRead::read(origin as Pointer, offset!(bio_private));
        }
        step += 1;
    }
    None
}

/// Writes the spans of a bio and of its root, after which [`ids_of`] returns them.
#[inline(always)]
pub fn set_ids(entry: &mut Bio, span: u64, root: u64) {
    // SAFETY: words of the table.
    unsafe {
        (&raw mut entry.root).write_volatile(root);
        (&raw mut entry.span).write_volatile(span);
    }
}

/// Releases the entry of a bio. Its next bio has no span until [`set_ids`].
#[inline(always)]
pub fn release_bio(entry: &mut Bio) {
    // SAFETY: as above.
    unsafe { (&raw mut entry.span).write_volatile(0) };
    table::release(entry);
}

/// Releases the entry of a request whose end was missed, which must not match another request.
#[inline(always)]
pub fn release_stale_request(percpu: &mut PerCpuState, entry: &mut Request) {
    let (flags, root) = (entry.flags, entry.root);
    table::release(entry);
    percpu.count(REQUESTS_STALE);
    if deferred::is_on() && flags & REQUEST_DEFERRED != 0 {
        deferred::end_part(percpu, root);
    }
}

/// Claims the entry of a request. That of an earlier one at its address, whose end was missed, is released
/// before.
#[inline(always)]
pub fn claim_request(
    percpu: &mut PerCpuState,
    address: u64,
    counters: ClaimCounters,
) -> Option<&'static mut Request> {
    if deferred::is_on() {
        if let Some(stale) = table::find(&REQUESTS, address) {
            release_stale_request(percpu, stale);
        }
    }
    table::claim(&REQUESTS, address, percpu, counters)
}

/// Lets the request of a deferred bio be a part of its operation too. Returns the request's flag.
#[inline(always)]
pub fn defer_request(percpu: &mut PerCpuState, bio: &Bio) -> u16 {
    if !deferred::is_on() || bio.flags & BIO_DEFERRED == 0 {
        return 0;
    }
    deferred::begin_part(bio.root, deferred::FIND, 0, percpu.slot() as u64);
    REQUEST_DEFERRED
}

/// Returns the spans of the bio at `address` and of its root, for a program that runs while other CPUs
/// may submit or end the bio; 0 if none is in flight. An entry has its key before it has the bio's spans,
/// and may belong to a bio at another address by the time that they are read.
#[inline(always)]
pub fn ids_of(address: u64) -> [u64; 2] {
    let Some(entry) = table::find(&BIOS, address) else { return [0; 2] };
    // SAFETY: as above.
    let ids = unsafe { [&raw const entry.span, &raw const entry.root].map(|id| id.read_volatile()) };
    if ids[0] != 0 && table::address_of(entry) == address { ids } else { [0; 2] }
}

/// Returns whether `sector` is within the submitted range. An entry whose end was missed may match
/// a clone at its address, and clones pass no hook that would clear it: a wrong link is worse than
/// none.
/// A driver that moves the bio itself to another device, like md's raid0, loses its link here; its
/// own entry belongs to the upper device.
#[inline(always)]
pub fn covers(entry: &Bio, sector: u64) -> bool {
    sector.wrapping_sub(entry.sector) <= (entry.bytes >> 9) as u64
}

/// Reads the current state of a bio.
///
/// # Safety
/// `bio` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn bio_ref<R: KernelRead>(percpu: &mut PerCpuState, bio: Pointer) -> BioRef {
    // SAFETY: by the caller's contract: `bio` is of the kind that R reads.
    unsafe {
        let end_io: Pointer = R::read(bio, offset!(bio_end_io));
        let private: Pointer = R::read(bio, offset!(bio_private));
        BioRef {
            bio: percpu.address(bio),
            end_io: percpu.address(end_io),
            private: percpu.address(private),
            sector: R::read(bio, offset!(bio_sector)),
        }
    }
}
