//! Single-bio requests: requests that carry exactly one whole bio, which is nearly all of direct
//! I/O.
//!
//! The state of such a request is part of its bio's entry, which the submitter has just written; a
//! table of 16 B per request maps the request to that bio. So the completion, often on another CPU,
//! touches few cache lines, and writes one record for both.
//!
//! *Invariant*: only proven cases count as single-bio. At block_io_start the request's only bio is
//! the originating bio, with all the bytes that it was queued with. At completion it still is, and
//! the completion covers all of it. Any other event (a merge of a bio or request, the flush
//! machine, a partial completion) [separates](separate) the two, and `request` continues with a
//! normal request entry. A bio's entry that holds a request matches no other lookup.
//!
//! *Rejected*: copying the bio's entry into the request's: 50 ns at block_io_start, because the
//! request's entry is cold in the cache there.

use super::in_flight::{self, BIOS, Bio, REQUEST_CLAIMS, REQUEST_SETS};
use super::new_request::{self, NewRequest};
use crate::async_io::libaio;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer};
use crate::runtime::ring;
use crate::runtime::table::{self, ClaimCounters};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::in_flight::Set;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// Table from a request's address to the address of its single bio.
#[btf_map]
static SINGLE_BIO_REQUESTS: Array<Set<u64>, REQUEST_SETS> = Array::new();

/// Single-bio request: the table entry with its bio's address, and the bio's entry.
pub struct SingleBioRequest {
    bio_address: &'static mut u64,
    pub bio: &'static mut Bio,
}

impl SingleBioRequest {
    /// Returns whether this is the address of the request's bio.
    #[inline(always)]
    pub fn carries(&self, bio: u64) -> bool {
        *self.bio_address == bio
    }
}

/// Starts a request that carries its whole originating bio.
///
/// # Safety
/// `rq` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn start<R: KernelRead>(percpu: &mut PerCpuState, rq: Pointer, address: u64, new: NewRequest) {
    let Some(originating) = new.originating else { return };
    let Some(bio_address) = table::claim(&SINGLE_BIO_REQUESTS, address, percpu, REQUEST_CLAIMS) else {
        return;
    };
    *bio_address = originating.whole;
    percpu.count(REQUESTS_STARTED);
    let request_part = &mut originating.bio.request_part;
    request_part.rq = address;
    request_part.span = percpu.next_span_id(Program::RequestStart);
    request_part.start_ns = new.start_ns;
    request_part.issue_ns = 0;
    // SAFETY: by the contract.
    request_part.sector = unsafe { R::read(rq, offset!(rq_sector)) };
    request_part.opf = new.opf;
    request_part.disk = new.disk;
    request_part.tag = -1;
    request_part.flags = new_request::plug_flag(new.opf);
}

/// Returns the single-bio request at `address`.
#[inline(always)]
pub fn find(percpu: &mut PerCpuState, address: u64) -> Option<SingleBioRequest> {
    let bio_address = table::find(&SINGLE_BIO_REQUESTS, address)?;
    if let Some(bio) = table::find(&BIOS, *bio_address) {
        if bio.request_part.rq == address {
            return Some(SingleBioRequest { bio_address, bio });
        }
    }
    // The bio's entry was reused: the end of both was missed.
    table::release(bio_address);
    percpu.count(REQUESTS_STALE);
    None
}

/// Discards an entry at this address, whose end was missed. It must not match the new request.
#[inline(always)]
pub fn discard(percpu: &mut PerCpuState, address: u64) {
    if let Some(bio_address) = table::find(&SINGLE_BIO_REQUESTS, address) {
        table::release(bio_address);
        percpu.count(REQUESTS_STALE);
    }
}

/// Ends a request that was merged into another one and is freed.
#[inline(always)]
pub fn merge(percpu: &mut PerCpuState, single: SingleBioRequest) {
    single.bio.request = single.bio.request_part.span;
    single.bio.request_part.rq = 0;
    table::release(single.bio_address);
    percpu.count(REQUESTS_MERGED);
}

/// Separates request and bio into two entries. `bytes` is the request's size, including merges.
#[inline(always)]
pub fn separate(percpu: &mut PerCpuState, single: SingleBioRequest, bytes: u32) {
    let SingleBioRequest { bio_address, bio } = single;
    let request_part = &bio.request_part;
    // The request was counted as started, so if the table is full its end will be missed.
    let counters = ClaimCounters { stale: REQUESTS_STALE, full: REQUESTS_STALE };
    let entry = in_flight::claim_request(percpu, request_part.rq, counters);
    if let Some(entry) = entry {
        entry.span = request_part.span;
        entry.parent = bio.span;
        entry.root = bio.root;
        entry.task = bio.task;
        entry.task_version = bio.task_version;
        entry.start_ns = request_part.start_ns;
        entry.insert_ns = 0;
        entry.issue_ns = request_part.issue_ns;
        entry.sector = request_part.sector;
        entry.bytes = bytes;
        entry.opf = request_part.opf;
        entry.dev = request_part.disk;
        entry.status = 0;
        entry.bios = 0;
        entry.tag = request_part.tag;
        entry.flags = request_part.flags | in_flight::defer_request(percpu, bio);
    }
    bio.request = request_part.span;
    bio.request_part.rq = 0;
    table::release(bio_address);
}

/// Ends both, and writes their record.
#[inline(always)]
pub fn end(percpu: &mut PerCpuState, single: SingleBioRequest, status: u32, now: u64) {
    let SingleBioRequest { bio_address, bio } = single;
    let request_part = &bio.request_part;
    let issued = if request_part.issue_ns == 0 { REQUEST_NEVER_ISSUED } else { 0 };
    let record = BioRequestRecord {
        header: Header {
            tag: TAG_BIO_REQUEST,
            sampling: 0,
            flags: request_part.flags | issued,
            len: size_of::<BioRequestRecord>() as u32,
            time_ns: now,
        },
        bio: bio.span,
        parent: bio.parent,
        root: bio.root,
        task: bio.task,
        queue_ns: bio.queue_ns,
        request: request_part.span,
        start_ns: request_part.start_ns,
        issue_ns: request_part.issue_ns,
        sector: bio.sector,
        disk_sector: request_part.sector,
        dev: bio.dev,
        disk: request_part.disk,
        bytes: bio.bytes,
        bio_opf: bio.opf,
        request_opf: request_part.opf,
        status: status & 0xff,
        tag: request_part.tag,
        task_version: bio.task_version,
        bio_flags: bio.flags & !BIO_DEFERRED | BIO_FIRST,
    };
    let iocb = bio.iocb;
    let is_deferred = deferred::is_on() && bio.flags & BIO_DEFERRED != 0;
    table::release(bio_address);
    in_flight::release_bio(bio);
    if is_deferred {
        deferred::end_with(percpu, record.root, TAG_BIO_REQUEST, &record, record.status != 0);
    } else {
        ring::put(percpu, TAG_BIO_REQUEST, &record);
    }
    if iocb != 0 {
        libaio::end_bio_of_iocb(iocb as u64, record.parent, record.header.time_ns, percpu.slot() as u64);
    }
}
