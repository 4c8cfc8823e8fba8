//! Requests that carry one bio, whole, and nothing else: nearly all of direct I/O.
//!
//! What is known of such a request is kept in its bio's entry, which its submitter has just written; a table of 16 B a
//! request says which bio that is. So the completion, often on another CPU, fetches few cache lines, and writes one record
//! for both.
//!
//! *Invariant*: only what is proved counts as alone. At block_io_start the request's one bio is that very bio, with all the
//! bytes that it was queued with; at its completion it still is, and the completion covers all of it. As soon as anything
//! else happens (a bio or a request is merged in, the flush machine takes it, a part completes) the two [`part`], and
//! request.rs does what it does with any other request. A bio's entry that is a request's answers to nobody else.
//!
//! *Rejected*: the bio's entry copied into the request's: 50 ns at block_io_start, as the request's entry is cold there.

use crate::access::{Access, Pointer};
use crate::block::{BIOS, Bio, REQUEST_SETS, REQUESTS};
use crate::layout::offset;
use crate::local::Local;
use crate::request::{self, Begun};
use crate::ring;
use crate::table::{self, Claim};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::flight::Set;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// The address of the bio that is alone in the request of an address.
#[btf_map]
static FLIGHTS: Array<Set<u64>, REQUEST_SETS> = Array::new();

/// Such a request: where its bio's address is, and its bio.
pub struct Flight {
    at: &'static mut u64,
    pub bio: &'static mut Bio,
}

impl Flight {
    /// Whether this is the address of its bio.
    #[inline(always)]
    pub fn is_of(&self, bio: u64) -> bool {
        *self.at == bio
    }
}

/// A request was made for a bio that it has all of.
///
/// # Safety
/// `rq` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn begin<A: Access>(local: &mut Local, rq: Pointer, address: u64, begun: Begun) {
    let Some(owner) = begun.owner else { return };
    let at = match table::claim(&FLIGHTS, address) {
        Claim::Fresh(at) => at,
        Claim::Stale(at) => {
            local.count(REQUESTS_STALE);
            at
        }
        Claim::Full => {
            local.count(REQUESTS_UNTRACKED);
            return;
        }
    };
    *at = owner.whole;
    local.count(REQUESTS_STARTED);
    let carrier = &mut owner.bio.carrier;
    carrier.rq = address;
    carrier.span = local.mint(Program::RequestStart);
    carrier.start_ns = begun.start_ns;
    carrier.issue_ns = 0;
    // SAFETY: by the contract.
    carrier.sector = unsafe { A::read(rq, offset!(rq_sector)) };
    carrier.opf = begun.opf;
    carrier.disk = begun.disk;
    carrier.tag = -1;
    carrier.flags = request::plugged(begun.opf);
}

/// The request at `address`, if it is such.
#[inline(always)]
pub fn find(local: &mut Local, address: u64) -> Option<Flight> {
    let at = table::find(&FLIGHTS, address)?;
    if let Some(bio) = table::find(&BIOS, *at) {
        if bio.carrier.rq == address {
            return Some(Flight { at, bio });
        }
    }
    // Its bio's entry is another's by now: the end of both was not seen.
    table::release(at);
    local.count(REQUESTS_STALE);
    None
}

/// What lived at this address ended unseen; it must not claim what lives there now.
#[inline(always)]
pub fn forget(local: &mut Local, address: u64) {
    if let Some(at) = table::find(&FLIGHTS, address) {
        table::release(at);
        local.count(REQUESTS_STALE);
    }
}

/// The request was merged into another and is freed.
#[inline(always)]
pub fn merge(local: &mut Local, flight: Flight) {
    flight.bio.request = flight.bio.carrier.span;
    flight.bio.carrier.rq = 0;
    table::release(flight.at);
    local.count(REQUESTS_MERGED);
}

/// The two are known apart from now on; the request has `bytes`, with what was merged.
#[inline(always)]
pub fn part(local: &mut Local, flight: Flight, bytes: u32) {
    let Flight { at, bio } = flight;
    let carrier = &bio.carrier;
    let entry = match table::claim(&REQUESTS, carrier.rq) {
        Claim::Fresh(entry) => Some(entry),
        Claim::Stale(entry) => {
            local.count(REQUESTS_STALE);
            Some(entry)
        }
        Claim::Full => {
            // It began and its end will not be seen.
            local.count(REQUESTS_STALE);
            None
        }
    };
    if let Some(entry) = entry {
        entry.span = carrier.span;
        entry.parent = bio.span;
        entry.root = bio.root;
        entry.task = bio.task;
        entry.task_version = bio.task_version;
        entry.start_ns = carrier.start_ns;
        entry.insert_ns = 0;
        entry.issue_ns = carrier.issue_ns;
        entry.sector = carrier.sector;
        entry.bytes = bytes;
        entry.opf = carrier.opf;
        entry.dev = carrier.disk;
        entry.status = 0;
        entry.bios = 0;
        entry.tag = carrier.tag;
        entry.flags = carrier.flags;
    }
    bio.request = carrier.span;
    bio.carrier.rq = 0;
    table::release(at);
}

/// Both end.
#[inline(always)]
pub fn end(local: &mut Local, flight: Flight, status: u32, now: u64) {
    let Flight { at, bio } = flight;
    let carrier = &bio.carrier;
    let issued = if carrier.issue_ns == 0 { REQUEST_NEVER_ISSUED } else { 0 };
    let record = PairRecord {
        header: Header {
            tag: TAG_PAIR,
            reserved: 0,
            flags: carrier.flags | issued,
            len: size_of::<PairRecord>() as u32,
            time_ns: now,
        },
        bio: bio.span,
        parent: bio.parent,
        root: bio.root,
        task: bio.task,
        queue_ns: bio.queue_ns,
        request: carrier.span,
        start_ns: carrier.start_ns,
        issue_ns: carrier.issue_ns,
        sector: bio.sector,
        disk_sector: carrier.sector,
        dev: bio.dev,
        disk: carrier.disk,
        bytes: bio.bytes,
        bio_opf: bio.opf,
        request_opf: carrier.opf,
        status: status & 0xff,
        tag: carrier.tag,
        task_version: bio.task_version,
        bio_flags: bio.flags | BIO_FIRST,
    };
    table::release(at);
    table::release(bio);
    ring::put(local, TAG_PAIR, &record);
}
