//! Block requests: from block_io_start, in the allocating task, over insertion and issue, to the
//! last completion.
//!
//! *Owner.* block_io_start fires right after the allocation of the request, whose first bio is then
//! the one that it was allocated for (635,121 of 635,121): that bio's span is the request's parent.
//! Bios that merge later are found at completion by walking rq→bio, which is still complete at
//! block_rq_complete. `passthrough` finds the owner of a request without such a bio.
//!
//! *Single bio.* `single_bio` tracks a request that carries exactly one whole bio, until any other
//! event happens to it.
//!
//! *End.* A completion is the last one if it covers the remaining bytes (`nr_bytes >= __data_len`)
//! and the request is not inside the flush machine's sequence (RQF_FLUSH_SEQ), where its data part
//! completes early. So write + FUA on a device without FUA, which completes twice, is one request.
//!
//! *Not here*: the flush machine's own request, which no block_io_start announces. It belongs to no
//! task; its time appears as the time of the requests that it serves (`flush`).

use super::in_flight::{self, BioRef, REQUESTS, Request};
use super::new_request::{self, NewRequest, OriginatingBio};
use super::{bio, device, flush, legacy_request, passthrough, single_bio};
use crate::runtime::atomic;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::{CompletionWalk, PerCpuState};
use crate::runtime::read::{KernelRead, Pointer};
use crate::runtime::ring;
use crate::runtime::table;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// Operation bits of `cmd_flags`, and a cache flush (REQ_OP_FLUSH, include/linux/blk_types.h).
pub const OP_MASK: u32 = 0xff;
pub const OP_FLUSH: u32 = 2;

/// Handles block_io_start(request).
#[inline(always)]
pub fn start<R: KernelRead>(rq: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::RequestStart) else { return };
    // SAFETY: `rq` is of the kind that R reads.
    let (first, mut disk, mut opf) = unsafe {
        (
            R::read::<Pointer>(rq, offset!(rq_bio)),
            device::disk_of::<R>(rq),
            R::read(rq, offset!(rq_cmd_flags)),
        )
    };
    let no_bio = first.is_null() || passthrough::is_passthrough(opf);
    // SAFETY: as above.
    let originating = if no_bio { None } else { unsafe { originating::<R>(percpu, first) } };
    let address = percpu.address(rq);
    let mut submitter = passthrough::UNKNOWN;
    if originating.is_none() {
        match passthrough::submitter(percpu, opf, disk) {
            Some(found) => {
                submitter = found;
                // A second read costs less than keeping both on a stack that is nearly full where a
                // task's metadata is read.
                // SAFETY: as above.
                (disk, opf) = unsafe { (device::disk_of::<R>(rq), R::read(rq, offset!(rq_cmd_flags))) };
            }
            None => {
                // The end of an earlier request at this address was missed. Its entry must not
                // match the new request.
                single_bio::discard(percpu, address);
                if let Some(left_over) = table::find(&REQUESTS, address) {
                    in_flight::release_stale_request(percpu, left_over);
                }
                return;
            }
        }
    }
    // SAFETY: the clock has no preconditions.
    let start_ns = unsafe { bpf_ktime_get_ns() };
    let new = NewRequest { originating, submitter, disk, start_ns, opf };
    if new.carries_whole_bio() {
        // SAFETY: as above.
        unsafe { single_bio::start::<R>(percpu, rq, address, new) };
    } else {
        single_bio::discard(percpu, address);
        let inserted = new_request::insert::<R>(percpu, Program::RequestStart, rq, address, new);
        if inserted && passthrough::is_passthrough(opf) {
            passthrough::attach_to_syscall(percpu, address);
        }
    }
}

/// Returns the bio that a request was just allocated for.
#[inline(always)]
unsafe fn originating<R: KernelRead>(percpu: &mut PerCpuState, first: Pointer) -> Option<OriginatingBio> {
    let address = percpu.address(first);
    // SAFETY: by the caller's contract.
    unsafe {
        if let Some(bio) = in_flight::find_entry(address, R::read(first, offset!(bio_sector))) {
            let size: u32 = R::read(first, offset!(bio_size));
            let whole = if size == bio.bytes && bio.done == 0 { address } else { 0 };
            return Some(OriginatingBio { bio, whole });
        }
        let bio = in_flight::find_split_origin(in_flight::bio_ref::<R>(percpu, first))?;
        bio.flags |= BIO_SPLIT;
        Some(OriginatingBio { bio, whole: 0 })
    }
}

/// Handles block_rq_insert(request): the request enters the scheduler's queue or, without a
/// scheduler, the software queue of a busy device. A scheduler merges bios into queued requests, so
/// request and bio have separate entries from here on.
#[inline(always)]
pub fn insert<R: KernelRead>(rq: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::RequestInsert) else { return };
    let address = percpu.address(rq);
    if let Some(single) = single_bio::find(percpu, address) {
        // SAFETY: `rq` is of the kind that R reads.
        let bytes = unsafe { R::read(rq, offset!(rq_data_len)) };
        single_bio::separate(percpu, single, bytes);
    }
    let Some(entry) = legacy_request::find::<R>(percpu, Program::RequestInsert, rq, address) else { return };
    if entry.insert_ns == 0 && entry.issue_ns == 0 {
        // SAFETY: the clock has no preconditions.
        entry.insert_ns = unsafe { bpf_ktime_get_ns() };
    }
}

/// Handles block_rq_issue(request).
#[inline(always)]
pub fn issue<R: KernelRead>(rq: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::RequestIssue) else { return };
    let address = percpu.address(rq);
    if let Some(single) = single_bio::find(percpu, address) {
        let request_part = &mut single.bio.request_part;
        if mark_issued(request_part.issue_ns, &mut request_part.flags) {
            // SAFETY: `rq` is of the kind that R reads.
            unsafe {
                request_part.sector = R::read(rq, offset!(rq_sector));
                request_part.tag = R::read(rq, offset!(rq_tag));
                if request_part.issue_ns == 0 {
                    request_part.issue_ns = bpf_ktime_get_ns();
                }
            }
        }
        return;
    }
    let known = legacy_request::find::<R>(percpu, Program::RequestIssue, rq, address);
    let Some(entry) = known.or_else(|| legacy_request::start_passthrough::<R>(percpu, rq, address)) else {
        // SAFETY: `rq` is of the kind that R reads; the clock has no preconditions.
        unsafe {
            if R::read::<u32>(rq, offset!(rq_cmd_flags)) & OP_MASK == OP_FLUSH {
                let hctx: Pointer = R::read(rq, offset!(rq_hctx));
                flush::mark_served_requests(address, percpu.address(hctx), bpf_ktime_get_ns());
            }
        }
        return;
    };
    if !mark_issued(entry.issue_ns, &mut entry.flags) {
        return;
    }
    // SAFETY: `rq` is of the kind that R reads.
    unsafe {
        entry.sector = R::read(rq, offset!(rq_sector));
        entry.bytes = R::read(rq, offset!(rq_data_len));
        entry.tag = R::read(rq, offset!(rq_tag));
        if entry.issue_ns == 0 {
            entry.issue_ns = bpf_ktime_get_ns();
        }
    }
}

/// Returns whether this is the request's first issue, and marks it as issued.
#[inline(always)]
fn mark_issued(issue_ns: u64, flags: &mut u16) -> bool {
    // The issue of a request's data after its flush is no reissue.
    if issue_ns != 0 && (*flags & REQUEST_SERVED_BY_FLUSH == 0 || *flags & REQUEST_ISSUED != 0) {
        *flags |= REQUEST_REQUEUED;
        return false;
    }
    *flags |= REQUEST_ISSUED;
    true
}

/// Handles block_rq_merge(request): the request was merged into another one and is freed; its bios
/// continue in that one.
#[inline(always)]
pub fn merge(rq: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::RequestMerge) else { return };
    let address = percpu.address(rq);
    if let Some(single) = single_bio::find(percpu, address) {
        return single_bio::merge(percpu, single);
    }
    if let Some(entry) = table::find(&REQUESTS, address) {
        let (flags, root) = (entry.flags, entry.root);
        table::release(entry);
        percpu.count(REQUESTS_MERGED);
        if deferred::is_on() && flags & REQUEST_DEFERRED != 0 {
            deferred::end_part(percpu, root);
        }
    }
}

/// Handles block_rq_complete(request, status, bytes).
#[inline(always)]
pub fn complete<R: KernelRead>(rq: Pointer, status: u32, bytes: u32) {
    let Some(percpu) = PerCpuState::of(Program::RequestComplete) else { return };
    let address = percpu.address(rq);
    // SAFETY: `rq` is of the kind that R reads.
    let (left, in_sequence) = unsafe {
        let flags: u32 = R::read(rq, offset!(rq_flags));
        let left: u32 = R::read(rq, offset!(rq_data_len));
        (left, flags >> (offset!(rqf_flush_seq_bit) & 31) & 1 != 0)
    };
    if let Some(single) = single_bio::find(percpu, address) {
        // SAFETY: as above; the clock has no preconditions.
        let (first, now) = unsafe { (R::read(rq, offset!(rq_bio)), bpf_ktime_get_ns()) };
        let whole = bytes == left && bytes == single.bio.bytes;
        if whole && !in_sequence && single.carries(percpu.address(first)) {
            return single_bio::end(percpu, single, status, now);
        }
        single_bio::separate(percpu, single, left);
    }
    let known = table::find(&REQUESTS, address);
    let mut entry =
        known.or_else(|| legacy_request::start::<R>(percpu, Program::RequestComplete, rq, address));
    // A request that is not recorded does not pay for the clock.
    // SAFETY: the clock has no preconditions.
    let now = if entry.is_some() { unsafe { bpf_ktime_get_ns() } } else { 0 };
    percpu.walk = CompletionWalk::new(bytes, status, in_sequence, now);
    let opf = match &mut entry {
        Some(entry) => {
            if entry.status == 0 {
                entry.status = status & 0xff;
            }
            // Without a branch: the verifier would repeat the walk for each side.
            entry.flags |= REQUEST_FLUSH_SEQUENCE * in_sequence as u16;
            (percpu.walk.span, percpu.walk.parent) = (entry.span, entry.parent);
            entry.opf
        }
        // SAFETY: as above.
        None => unsafe { R::read(rq, offset!(rq_cmd_flags)) },
    };
    // A request that was started for an untraced bio may carry traced bios that merged into it.
    if !passthrough::is_passthrough(opf) {
        // SAFETY: as above.
        unsafe { walk_bios::<R>(percpu, rq) };
    }
    let Some(entry) = entry else { return };
    if in_sequence || bytes < left {
        return;
    }
    entry.bios += percpu.walk.bios as u16;
    if entry.issue_ns == 0 {
        entry.flags |= REQUEST_NEVER_ISSUED;
    }
    end(percpu, entry, now);
}

/// Walks the bios that this completion covers, and credits each with its part.
#[inline(always)]
unsafe fn walk_bios<R: KernelRead>(percpu: &mut PerCpuState, rq: Pointer) {
    // SAFETY: by the caller's contract.
    unsafe {
        let mut bio: Pointer = R::read(rq, offset!(rq_bio));
        let mut step = 0;
        while step < WALK_MAX {
            if bio.is_null() {
                return;
            }
            let size: u32 = R::read(bio, offset!(bio_size));
            let bio_ref = in_flight::bio_ref::<R>(percpu, bio);
            if credit_bio(bio_ref.bio, bio_ref.end_io, bio_ref.private, bio_ref.sector, size as u64) == 0 {
                return;
            }
            bio = R::read(bio, offset!(bio_next));
            step += 1;
        }
        if bio.is_null() {
            return;
        }
    }
    percpu.count(WALK_OVERFLOW);
}

/// Credits a bio with its part of the completion, and ends the bio when all its bytes are done.
/// Returns 0 when the completion covers no further bio.
///
/// A global function: it takes only numbers, and the verifier checks it once instead of at each of
/// the walk's 256 iterations (inlined: over 1 M instructions). Its further inputs are in the
/// program's slot.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn credit_bio(bio: u64, end_io: u64, private: u64, sector: u64, size: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::RequestComplete) else { return 0 };
    let part = if size > percpu.walk.budget { percpu.walk.budget } else { size };
    if part == 0 && size != 0 {
        return 0;
    }
    percpu.walk.budget -= part;
    let Some((found, clone)) = in_flight::find_origin(BioRef { bio, end_io, private, sector }) else {
        return 1;
    };
    percpu.walk.bios += 1;
    // For a bio that several requests carried, the last request decides.
    if found.span == percpu.walk.parent {
        found.flags |= BIO_FIRST;
    } else {
        found.flags &= !BIO_FIRST;
    }
    if clone {
        found.flags |= BIO_SPLIT;
    }
    found.request = percpu.walk.span;
    if percpu.walk.status != 0 {
        found.status = percpu.walk.status;
    }
    let bytes = found.bytes as u64;
    // The addition comes last: it publishes the writes above. The CPU that completes the sum ends
    // the entry, which may then belong to another bio. Parts of a split end on several CPUs.
    // SAFETY: a word of the table.
    let before = unsafe { atomic::fetch_add(&raw mut found.done, part) };
    if percpu.walk.in_sequence == 0 && before + part >= bytes {
        // SAFETY: the clock has no preconditions.
        let now = if percpu.walk.now == 0 { unsafe { bpf_ktime_get_ns() } } else { percpu.walk.now };
        bio::end(percpu, found, now);
    }
    1
}

#[inline(always)]
fn end(percpu: &mut PerCpuState, entry: &mut Request, now: u64) {
    let record = RequestRecord {
        header: Header {
            tag: TAG_REQUEST,
            sampling: 0,
            flags: entry.flags & !REQUEST_DEFERRED,
            len: size_of::<RequestRecord>() as u32,
            time_ns: now,
        },
        span: entry.span,
        parent: entry.parent,
        root: entry.root,
        task: entry.task,
        start_ns: entry.start_ns,
        insert_ns: entry.insert_ns,
        issue_ns: entry.issue_ns,
        sector: entry.sector,
        dev: entry.dev,
        bytes: entry.bytes,
        opf: entry.opf,
        status: entry.status,
        task_version: entry.task_version,
        bios: entry.bios,
        tag: entry.tag,
    };
    let is_deferred = deferred::is_on() && entry.flags & REQUEST_DEFERRED != 0;
    table::release(entry);
    if is_deferred {
        deferred::end_with(percpu, record.root, TAG_REQUEST, &record, record.status != 0);
    } else {
        ring::put(percpu, TAG_REQUEST, &record);
    }
}
