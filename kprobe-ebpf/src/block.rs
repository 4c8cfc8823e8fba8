//! What bios and requests share: the tables that hold those in flight, and how to read a bio's device and owner.

use crate::access::{Access, Pointer, Probe};
use crate::layout::offset;
use crate::settings::setting;
use crate::table;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::flight::Set;
pub use blkkin_probe_abi::flight::{Bio, Request};

/// Sets of the bio table: 65,536 bios in flight, 9.4 MB.
pub const BIO_SETS: usize = 16_384;
/// Sets of the request table: requests are a bounded pool (nr_requests × hardware queues × devices); 32,768, 3 MB.
pub const REQUEST_SETS: usize = 8_192;

#[btf_map]
pub static BIOS: Array<Set<Bio>, BIO_SETS> = Array::new();

#[btf_map]
pub static REQUESTS: Array<Set<Request>, REQUEST_SETS> = Array::new();

/// A bio's device (maybe a partition) and its disk, by number.
///
/// # Safety
/// `bio` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn devices<A: Access>(bio: Pointer) -> (u32, u32) {
    // SAFETY: by the contract.
    unsafe {
        let bdev: Pointer = A::read(bio, offset!(bio_bdev));
        let disk: Pointer = A::read(bdev, offset!(bdev_disk));
        (A::read(bdev, offset!(bdev_dev)), disk_number::<A>(disk))
    }
}

/// A disk's number.
///
/// # Safety
/// `disk` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn disk_number<A: Access>(disk: Pointer) -> u32 {
    // SAFETY: by the contract.
    unsafe {
        let major: u32 = A::read(disk, offset!(disk_major));
        let minor: u32 = A::read(disk, offset!(disk_first_minor));
        major << 20 | minor
    }
}

/// A bio as it is now: what it takes to find whose it is.
#[derive(Clone, Copy)]
pub struct Carried {
    /// Its address.
    pub bio: u64,
    /// Where it ends.
    pub end_io: u64,
    /// With which argument.
    pub private: u64,
    /// Its sector, which moves as parts are split off and done.
    pub sector: u64,
}

/// The entry of the bio that was submitted: the bio itself, or, for the front of a split, the bio that it was split
/// from. Says also whether it was a clone.
#[inline(always)]
pub fn origin(carried: Carried) -> Option<(&'static mut Bio, bool)> {
    if let Some(entry) = itself(carried.bio, carried.sector) {
        return Some((entry, false));
    }
    Some((split_from(carried)?, true))
}

/// The entry of the bio at `address`, which is at `sector` now.
#[inline(always)]
pub fn itself(address: u64, sector: u64) -> Option<&'static mut Bio> {
    let entry = table::find(&BIOS, address)?;
    if entry.carrier.rq == 0 && covers(entry, sector) { Some(entry) } else { None }
}

/// The entry of the bio that `carried` was split from. A split's front is a clone which never passes block_bio_queue and
/// ends in bio_chain_endio with its origin in bi_private (block/bio.c, bio_chain; 257,056 of 257,056 found so).
#[inline(always)]
pub fn split_from(carried: Carried) -> Option<&'static mut Bio> {
    let chain = setting!(bio_chain_endio);
    let (mut end_io, mut origin) = (carried.end_io, carried.private);
    // A split of a split of a split: each level of stacking may add one.
    let mut step = 0;
    while step < 3 {
        if chain == 0 || end_io != chain {
            return None;
        }
        if let Some(entry) = table::find(&BIOS, origin) {
            return if entry.carrier.rq == 0 && covers(entry, carried.sector) { Some(entry) } else { None };
        }
        // SAFETY: reads by helper take any address.
        unsafe {
            end_io = Probe::read(origin as Pointer, offset!(bio_end_io));
            origin = Probe::read(origin as Pointer, offset!(bio_private));
        }
        step += 1;
    }
    None
}

/// Whether `sector` lies in what was submitted. An entry whose end was missed may meet a clone at its address, and
/// clones pass no hook that would clear it: a wrong link is worse than none. (A driver that moves the bio itself to
/// another device, as md's raid0 does, loses its link here; its own entry is of the upper device.)
#[inline(always)]
pub fn covers(entry: &Bio, sector: u64) -> bool {
    sector.wrapping_sub(entry.sector) <= (entry.bytes >> 9) as u64
}
