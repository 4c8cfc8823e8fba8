//! Devices that lie on others: whose work a bio does.
//!
//! A driver that is given a bio or a request and makes bios of its own writes down for whom, where the end of its own bio will
//! look for it; and which driver made a bio is said by the function in which it ends. So from any bio a way leads upwards, by
//! pointers alone, whoever submits it and however late: [`Hop`]s, which `tracer/src/edges.rs` names with their sources.
//!
//! - *Device-mapper*: the clone of a bio lies in a `dm_target_io`, which knows its `dm_io`, which knows the bio that was asked
//!   for. What crypt makes of a clone, with pages of its own and in a worker, knows the clone.
//! - *md raid1 and raid10*: each mirror's bio knows the `r1bio` or `r10bio`, which knows the bio that was asked for, or md's own
//!   clone of it. *raid0* sends that clone itself.
//! - *loop with direct I/O*: its worker reads or writes the backing file with a kiocb that lies in the loop device's own
//!   request: `struct loop_cmd` follows `struct request`. A bio of direct I/O leads back to its kiocb, and from there
//!   the request is one subtraction away.
//!
//! What is found so is asked for by its address among those in flight: a bio that covers the sector it is at, or a request. A
//! way of several steps leads over bios that nobody announced (the front of a split, a clone that was mapped and not
//! submitted) to one that was.
//!
//! *Why that cannot be another's*: whoever waits for a bio's end keeps what that end will touch. The address of a request in
//! flight, plus less than the size of what its driver keeps behind it, lies in that request's memory; a kiocb that lies
//! there is the request's own.
//!
//! *Not by `bio_chain_endio` as the first step*: a chain also ties a bio to the one that follows it (blk_next_bio), which it
//! is no part of.
//!
//! *Not here*: a loop device without direct I/O, whose worker reads and dirties pages of the cache: what goes to the disk
//! is readahead and write-back, and asks for no request. A flush of a loop device, which is an fsync of its file. Both are
//! the kernel's own work.

use crate::access::{Access, Pointer, Probe};
use crate::alone;
use crate::block::{self, BIOS, REQUESTS};
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::table;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::settings::{HOP_TO_BIO, HOP_TO_KIOCB, HOPS_MAX, Program};

/// Steps of a way: crypt on the front of a split has three, and each level of devices begins at a bio that was announced.
const STEPS_MAX: usize = 5;

/// Whether `bio` does the work of something that is followed; its span and root are then left in the slot's `walk`, since the
/// stack of 512 bytes is nearly full where this is called. `in_call`: its submitter is inside a call; then it may be a driver's only
/// if it leads to a bio, since a worker is in none.
///
/// # Safety
/// `bio` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn is_below<A: Access>(local: &mut Local, bio: Pointer, in_call: bool) -> bool {
    if in_call && setting!(stacked) == 0 {
        return false;
    }
    // SAFETY: by the contract.
    let (end_io, private): (Pointer, Pointer) =
        unsafe { (A::read(bio, offset!(bio_end_io)), A::read(bio, offset!(bio_private))) };
    let (end_io, private) = (local.address(end_io), local.address(private));
    leads_up(end_io, in_call) && climb(local.address(bio), end_io, private) != 0
}

/// Whether there is a way from bios that end there.
#[inline(always)]
fn leads_up(end_io: u64, in_call: bool) -> bool {
    let mut leads = false;
    let mut i = 0;
    while i < HOPS_MAX {
        let of_interest = setting!(hops[i].to) == HOP_TO_BIO || !in_call;
        leads |= of_interest && setting!(hops[i].end_io) != 0 && setting!(hops[i].end_io) == end_io;
        i += 1;
    }
    leads
}

/// Follows the way from a bio to the first bio or request that is known: its span and root are left in the slot's walk. 0: it
/// leads to none. A global function for the verifier: checked once, by itself.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn climb(bio: u64, end_io: u64, private: u64) -> u64 {
    let Some(local) = Local::of(Program::BioQueue) else { return 0 };
    let (mut bio, mut end_io, mut private) = (bio, end_io, private);
    let mut step = 0;
    while step < STEPS_MAX {
        let (to, address) = match hop(bio, end_io, private) {
            Some(found) => found,
            None if step > 0 && end_io == setting!(bio_chain_endio) => (HOP_TO_BIO, private),
            None => return 0,
        };
        if address == 0 {
            return 0;
        }
        if to == HOP_TO_KIOCB {
            return of_request(local, address);
        }
        // SAFETY: reads by helper take any address.
        unsafe {
            if let Some(entry) = table::find(&BIOS, address) {
                let sector = Probe::read(address as Pointer, offset!(bio_sector));
                if entry.carrier.rq == 0 && block::covers(entry, sector) {
                    return found(local, entry.span, entry.root);
                }
                return 0;
            }
            bio = address;
            end_io = Probe::read(bio as Pointer, offset!(bio_end_io));
            private = Probe::read(bio as Pointer, offset!(bio_private));
        }
        step += 1;
    }
    0
}

/// One step: where to, and to which address.
#[inline(always)]
fn hop(bio: u64, end_io: u64, private: u64) -> Option<(u32, u64)> {
    if end_io == 0 {
        return None;
    }
    let mut i = 0;
    while i < HOPS_MAX {
        if setting!(hops[i].end_io) == end_io {
            let around = setting!(hops[i].around);
            let mut at = if around == ABSENT { private } else { bio.wrapping_sub(around as u64) };
            // SAFETY: reads by helper take any address.
            unsafe {
                if setting!(hops[i].first) != ABSENT {
                    at = Probe::read(at as Pointer, setting!(hops[i].first));
                }
                if setting!(hops[i].second) != ABSENT {
                    at = Probe::read(at as Pointer, setting!(hops[i].second));
                }
            }
            return Some((setting!(hops[i].to), at));
        }
        i += 1;
    }
    None
}

/// The loop device's request in which a kiocb lies.
#[inline(always)]
fn of_request(local: &mut Local, kiocb: u64) -> u64 {
    if offset!(loop_kiocb) == ABSENT {
        return 0;
    }
    let request = kiocb.wrapping_sub(offset!(loop_kiocb) as u64);
    if let Some(flight) = alone::find(local, request) {
        return found(local, flight.bio.carrier.span, flight.bio.root);
    }
    let Some(entry) = table::find(&REQUESTS, request) else { return 0 };
    found(local, entry.span, entry.root)
}

/// Leaves what a way led to where [`is_below`]'s caller reads it.
#[inline(always)]
fn found(local: &mut Local, span: u64, root: u64) -> u64 {
    (local.walk.span, local.walk.parent) = (span, root);
    1
}
