//! Request start on kernels before 6.5, which have no block_io_start (5a80bd075f3b). There a
//! request's first event is its insertion or issue, possibly in another task and after other bios
//! merged into it.
//!
//! *Owner*: those kernels have block_getrq, which fires in the submitter right after the allocation
//! of a request, with the bio that it was allocated for. The hook marks that bio. At the request's
//! first event, the first marked bio in its list is the originating bio: merged bios were never
//! marked, and merged requests have theirs later in the list.
//!
//! *Start time*: the queue time of the originating bio, which includes the wait for a free request.
//!
//! *Passthrough* requests have no such bio: their first event is the issue, and `passthrough` finds
//! their submitter.

use super::in_flight::{self, BioRef, REQUESTS, Request};
use super::new_request::{self, NewRequest, OriginatingBio};
use super::{device, passthrough};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer};
use crate::runtime::settings::setting;
use crate::runtime::table;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::record::{BIO_ALLOCATED_REQUEST, BIO_SPLIT};
use blkkin_probe_abi::settings::Program;

/// Maximum bios searched. The originating bio is the first one unless others were merged in front
/// of it.
const BIOS_SEARCHED_MAX: usize = 64;

/// Handles block_getrq(bio).
#[inline(always)]
pub fn on_getrq<R: KernelRead>(bio: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::RequestStart) else { return };
    // SAFETY: `bio` is of the kind that R reads.
    if let Some((entry, _)) = in_flight::find_origin(unsafe { in_flight::bio_ref::<R>(percpu, bio) }) {
        entry.flags |= BIO_ALLOCATED_REQUEST;
    }
}

/// Returns the entry of a request that is inserted or issued, as seen by `program`. Where
/// block_io_start announces requests and clears stale entries, that is the table's entry. Elsewhere
/// an entry of another originating bio is stale.
#[inline(always)]
pub fn find<R: KernelRead>(
    percpu: &mut PerCpuState,
    program: Program,
    rq: Pointer,
    address: u64,
) -> Option<&'static mut Request> {
    let found = table::find(&REQUESTS, address);
    if setting!(legacy_request_start) == 0 {
        return found;
    }
    // SAFETY: `rq` is of the kind that R reads.
    if passthrough::is_passthrough(unsafe { R::read(rq, offset!(rq_cmd_flags)) }) {
        // The request is issued again; or the entry is stale, if it belongs to a request that is no
        // passthrough.
        return match found {
            Some(entry) if !passthrough::is_passthrough(entry.opf) => {
                in_flight::release_stale_request(percpu, entry);
                None
            }
            found => found,
        };
    }
    // SAFETY: as above.
    if unsafe { R::read::<Pointer>(rq, offset!(rq_bio)) }.is_null() {
        // Inside the flush machine's sequence a request's bios are completed and detached.
        return found;
    }
    // SAFETY: as above.
    let originating = unsafe { originating_bio::<R>(percpu, rq) }
        .and_then(in_flight::find_origin)
        .map_or(0, |(bio, _)| bio.span);
    match found {
        Some(entry) if originating != 0 && entry.parent == originating => Some(entry),
        Some(_) if originating == 0 => {
            if let Some(left_over) = table::find(&REQUESTS, address) {
                in_flight::release_stale_request(percpu, left_over);
            }
            None
        }
        _ => start::<R>(percpu, program, rq, address),
    }
}

/// Creates the entry of a request at its first event, in `program`; none on kernels with
/// block_io_start.
#[inline(always)]
pub fn start<R: KernelRead>(
    percpu: &mut PerCpuState,
    program: Program,
    rq: Pointer,
    address: u64,
) -> Option<&'static mut Request> {
    if setting!(legacy_request_start) == 0 {
        return None;
    }
    // SAFETY: `rq` is of the kind that R reads.
    let (bio_ref, disk) = unsafe { (originating_bio::<R>(percpu, rq)?, device::disk_of::<R>(rq)) };
    let (bio, clone) = in_flight::find_origin(bio_ref)?;
    if clone {
        bio.flags |= BIO_SPLIT;
    }
    let (start_ns, opf) = (bio.queue_ns, bio.opf);
    // Other bios may have merged by now: the bio keeps its own entry.
    let originating = Some(OriginatingBio { bio, whole: 0 });
    let new = NewRequest { originating, submitter: passthrough::UNKNOWN, disk, start_ns, opf };
    new_request::insert::<R>(percpu, program, rq, address, new);
    table::find(&REQUESTS, address)
}

/// Creates the entry of a passthrough request at its issue; none on kernels with block_io_start.
#[inline(always)]
pub fn start_passthrough<R: KernelRead>(
    percpu: &mut PerCpuState,
    rq: Pointer,
    address: u64,
) -> Option<&'static mut Request> {
    if setting!(legacy_request_start) == 0 {
        return None;
    }
    // SAFETY: `rq` is of the kind that R reads; the clock has no preconditions.
    let new = unsafe {
        let opf = R::read(rq, offset!(rq_cmd_flags));
        if !passthrough::is_passthrough(opf) {
            return None;
        }
        let disk = device::disk_of::<R>(rq);
        let submitter = passthrough::legacy_submitter::<R>(percpu, rq, disk)?;
        NewRequest { originating: None, submitter, disk, start_ns: bpf_ktime_get_ns(), opf }
    };
    let find = new.submitter.0 != 0;
    if !new_request::insert::<R>(percpu, Program::RequestIssue, rq, address, new) {
        return None;
    }
    if find {
        passthrough::attach_to_syscall(percpu, address);
    }
    table::find(&REQUESTS, address)
}

/// Returns the bio that `rq` was allocated for.
#[inline(always)]
unsafe fn originating_bio<R: KernelRead>(percpu: &mut PerCpuState, rq: Pointer) -> Option<BioRef> {
    // SAFETY: by the caller's contract: `rq` is of the kind that R reads.
    unsafe {
        let mut bio: Pointer = R::read(rq, offset!(rq_bio));
        let mut step = 0;
        while step < BIOS_SEARCHED_MAX {
            if bio.is_null() {
                return None;
            }
            let bio_ref = in_flight::bio_ref::<R>(percpu, bio);
            if is_originating_bio(bio_ref.bio, bio_ref.end_io, bio_ref.private, bio_ref.sector) != 0 {
                return Some(bio_ref);
            }
            bio = R::read(bio, offset!(bio_next));
            step += 1;
        }
    }
    None
}

/// Returns a value other than 0 if a request was allocated for this bio. A global function, which
/// the verifier checks once instead of at each iteration.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn is_originating_bio(bio: u64, end_io: u64, private: u64, sector: u64) -> u64 {
    match in_flight::find_origin(BioRef { bio, end_io, private, sector }) {
        Some((entry, _)) => u64::from(entry.flags & BIO_ALLOCATED_REQUEST),
        None => 0,
    }
}
