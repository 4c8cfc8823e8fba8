//! Bios: from block_bio_queue, in the submitting task, to the completion of the last byte.
//!
//! Submission may sleep (submit_bio_noacct begins with might_sleep), so the current task is the
//! submitter and never a task that an interrupt stopped. The one exception is a bio that
//! blk-throttle delayed: it passes this hook in the kernel worker that releases it, and then
//! belongs to no traced task.

use super::device::{self, device_passes};
use super::in_flight::{self, BIOS, Bio};
use super::{loop_file, pages, single_bio, stacked};
use crate::async_io;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer};
use crate::runtime::ring;
use crate::runtime::settings::setting;
use crate::runtime::table::{self, ClaimCounters};
use crate::task::{self, TaskState, open_syscall, page_fault, sampling};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{
    ORIGIN_ALL, ORIGIN_PAGES, ORIGIN_SYSCALLS, ORIGIN_TASKS, Program, SyscallShape, TASK_ACTIVE,
};

/// Operation bits of `bi_opf`, and some operations (REQ_OP_*, include/linux/blk_types.h).
const OP_MASK: u32 = 0xff;
const OP_WRITE: u32 = 1;
const OP_DISCARD: u32 = 3;
const OP_SECURE_ERASE: u32 = 5;
const OP_WRITE_ZEROES: u32 = 9;

/// Handles submit_bio_noacct_nocheck(bio): the kernel announces a bio once there, and the bio has a
/// flag from then until it ends.
#[inline(always)]
pub fn submit<R: KernelRead>(bio: Pointer) {
    // SAFETY: `bio` is of the kind that R reads.
    let flags: u16 = unsafe { R::read(bio, offset!(bio_flags)) };
    if flags >> (offset!(bio_traced_bit) & 15) & 1 == 0 {
        queue::<R>(bio);
    }
}

/// Handles block_bio_queue(bio).
#[inline(always)]
pub fn queue<R: KernelRead>(bio: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return };
    let mut state = task::submitter(percpu, Program::BioQueue);
    if state.as_ref().is_some_and(|state| !state.in_syscall()) {
        page_fault::on_bio(percpu.address(bio));
    }
    let (mut span, mut task, mut version, mut active) = (0, 0, 0, false);
    percpu.pages.reason = 0;
    if let Some(state) = &state {
        (span, task, version) = (state.span, state.task, state.version);
        active = state.flags & TASK_ACTIVE != 0;
        percpu.pages.reason = state.writeback_reason as u16;
    }
    let address = percpu.address(bio);
    // SAFETY: `bio` is of the kind that R reads.
    let (dev, disk) = unsafe { device::devices::<R>(bio) };
    if !device_passes(dev, disk) {
        return forget(percpu, address);
    }
    percpu.disk = disk;
    let origin = setting!(kernel_origin);
    // A program that is not recorded submits for itself, as if inside a call: no path leads from its bio
    // to a submission or to a loop device's request.
    let of_other_program = span == 0 && !active && origin != ORIGIN_ALL && task::submits_for_itself();
    let shape = match state.as_deref() {
        _ if of_other_program => SyscallShape::TRACED,
        state => state.map_or(0, shape_of_open_part),
    };
    // SAFETY: as above.
    let upper = unsafe { stacked::upper::<R>(percpu, bio, shape) };
    let unsampled = sampling::is_on() && upper == async_io::OF_UNSAMPLED;
    let lower = upper != 0 && !unsampled;
    let end_io: Pointer = unsafe { R::read(bio, offset!(bio_end_io)) };
    // SAFETY: as above.
    let op = unsafe { R::read::<u32>(bio, offset!(bio_opf)) } & OP_MASK;
    let writes = op == OP_WRITE;
    let rule = if of_other_program && !writes && !lower { 0 } else { pages::rule(percpu.address(end_io)) };
    let kind = if rule != 0 { pages::find_pages(address, rule as u64) } else { 0 };
    // A worker's write-back may carry the pages of a traced task, and its discards may be of blocks that
    // one has freed.
    let discards = (op == OP_DISCARD || op == OP_SECURE_ERASE) && !task::is_program();
    let of_a_worker =
        (kind != 0 && writes && origin != ORIGIN_SYSCALLS) || (discards && origin < ORIGIN_SYSCALLS);
    let of_active_task = active && (origin == ORIGIN_TASKS || (origin == ORIGIN_PAGES && kind != 0));
    let of_this_task = span != 0 || origin == ORIGIN_ALL || of_active_task;
    // A log's record, which an excluded call writes, may be what another call waits for.
    let excluded = shape & SyscallShape::EXCLUDED != 0 || unsampled;
    let wanted = if excluded { kind == PAGES_LOG as u64 } else { of_this_task || of_a_worker };
    // SAFETY: as above.
    let bytes: u32 = unsafe { R::read(bio, offset!(bio_size)) };
    let writes_file = sampling::is_on() && writes && kind == PAGES_FILE as u64;
    if !wanted && !lower {
        if writes_file && excluded {
            percpu.pages.dev = dev;
            pages::emit_unsampled(percpu, address, bytes);
        }
        return forget(percpu, address);
    }
    let of_call = state.as_deref().is_some_and(TaskState::is_deferred);
    if excluded || (deferred::is_on() && of_call && kind == PAGES_LOG as u64 && !lower) {
        span = 0;
    }
    let mut is_deferred = 0;
    if deferred::is_on() && if lower { percpu.walk.status != 0 } else { span != 0 && of_call } {
        if !defer(percpu, state.as_deref_mut(), lower) {
            end_of_iocb(percpu);
            if writes_file {
                percpu.pages.dev = dev;
                pages::emit_unsampled(percpu, address, bytes);
            }
            return forget(percpu, address);
        }
        is_deferred = BIO_DEFERRED | deferred::flags_of_disk(percpu.disk as u64) as u16;
    }
    if deferred::is_on() {
        forget(percpu, address);
    }
    let counters = ClaimCounters { stale: BIOS_STALE, full: BIOS_UNTRACKED };
    let Some(entry) = table::claim(&BIOS, address, percpu, counters) else {
        end_of_iocb(percpu);
        if is_deferred != 0 {
            deferred::end_part(percpu, if lower { percpu.walk.parent } else { span });
        }
        return;
    };
    percpu.count(BIOS_QUEUED);
    let mut part = 0;
    if let Some(state) = state {
        part = open_part(state);
        // In a call that submits, a bio of a submission that no call has counted yet.
        let first = upper == async_io::OF_UNCOUNTED && span == percpu.walk.parent;
        if span != 0 && (!lower || first) {
            state.bios += 1;
        }
    }
    let own = percpu.next_span_id(Program::BioQueue);
    let root;
    if lower {
        let flags = if upper == stacked::OF_UPPER_IO { BIO_LOWER } else { 0 };
        (entry.parent, root, entry.flags) = (percpu.walk.span, percpu.walk.parent, flags);
    } else if span != 0 {
        (entry.parent, root, entry.flags) = (span, span, part);
    } else {
        let other = if !active && task::is_program() { BIO_OF_OTHER } else { 0 };
        (entry.parent, root, entry.flags) = (0, own, BIO_KERNEL_ORIGIN | other);
    }
    entry.flags |= is_deferred;
    in_flight::set_ids(entry, own, root);
    // SAFETY: as above.
    unsafe {
        entry.task = task;
        entry.task_version = version;
        entry.request = 0;
        entry.done = 0;
        entry.iocb = percpu.walk.bios as u32;
        entry.request_part.rq = 0;
        entry.status = 0;
        entry.dev = dev;
        entry.sector = R::read(bio, offset!(bio_sector));
        entry.bytes = bytes;
        entry.opf = R::read(bio, offset!(bio_opf));
        entry.queue_ns = bpf_ktime_get_ns();
    }
    if kind != 0 {
        percpu.pages.dev = dev;
        let ids = [own, entry.root];
        if entry.flags & BIO_OF_OTHER != 0 {
            percpu.pages.header.flags |= PAGES_OF_OTHER;
        }
        percpu.walk.status = (is_deferred != 0) as u32;
        entry.flags |= pages::emit(percpu, address, ids, (entry.bytes, writes), entry.queue_ns);
    }
    let of_loop = loop_file::is_loop(percpu.disk) && is_deferred == 0;
    if of_loop && entry.flags & BIO_OF_OTHER == 0 && entry.bytes != 0 {
        let clears = matches!(op, OP_DISCARD | OP_SECURE_ERASE | OP_WRITE_ZEROES);
        if writes || clears {
            loop_file::emit_loop_range(address, own, entry.root, writes as u64, entry.queue_ns);
        }
    }
    // Last, with little left to remember: the verifier repeats it for each state that can reach it.
    if (lower || kind != 0 || discards) && task == 0 {
        if let Some(worker) = task::kernel_worker(percpu, Program::BioQueue) {
            (entry.task, entry.task_version) = (worker.task, worker.version);
        }
    }
}

/// Lets the bio be a part of its deferred operation: that of the part above it, or of the call that the task is
/// inside. Returns false if there is no room, and the operation is dropped.
#[inline(always)]
fn defer(percpu: &mut PerCpuState, state: Option<&mut TaskState>, lower: bool) -> bool {
    if lower {
        async_io::libaio::defer_new_part(percpu, state);
        return deferred::begin_part(percpu.walk.parent, deferred::FIND, 0, percpu.slot() as u64) != 0;
    }
    state.is_some_and(|state| open_syscall::begin_part(percpu, state))
}

/// Ends a bio for its iocb, which would wait for it: no end of it will be seen.
#[inline(always)]
fn end_of_iocb(percpu: &mut PerCpuState) {
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    async_io::libaio::end_bio_of_iocb(percpu.walk.bios, percpu.walk.span, now, percpu.slot() as u64);
}

/// Returns the rules of the system call that the task is inside, or only TRACED inside a page fault or
/// a commit, which the rules of an earlier call do not concern; 0 for none.
#[inline(always)]
fn shape_of_open_part(state: &TaskState) -> u32 {
    match (state.span, state.span_start_ns) {
        (0, _) => 0,
        (_, 0) => state.shape | SyscallShape::TRACED,
        _ => SyscallShape::TRACED,
    }
}

/// Returns the flag for a bio of the task's open span: of a page fault, of a journal commit, or 0 for
/// a system call.
#[inline(always)]
fn open_part(state: &TaskState) -> u16 {
    match state.span_start_ns {
        0 => 0,
        _ if state.fault.span == state.span => BIO_IN_FAULT,
        _ => BIO_IN_COMMIT,
    }
}

/// Releases the entry of an earlier bio at the address of one that is not recorded: its end was
/// missed, and its entry must not match the new bio.
#[inline(always)]
fn forget(percpu: &mut PerCpuState, address: u64) {
    if let Some(left_over) = table::find(&BIOS, address) {
        let (flags, root) = (left_over.flags, left_over.root);
        in_flight::release_bio(left_over);
        percpu.count(BIOS_STALE);
        if deferred::is_on() && flags & BIO_DEFERRED != 0 {
            deferred::end_part(percpu, root);
        }
    }
}

/// Handles block_bio_complete(queue, bio). It fires for bios that no request completed (bio-based
/// device, or rejected before allocation), and for parents of splits, whose last part may have
/// ended them already.
#[inline(always)]
pub fn complete<R: KernelRead>(bio: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::BioComplete) else { return };
    let address = percpu.address(bio);
    let Some(entry) = table::find(&BIOS, address) else { return };
    // SAFETY: `bio` is of the kind that R reads.
    let (status, sector): (u8, u64) =
        unsafe { (R::read(bio, offset!(bio_status)), R::read(bio, offset!(bio_sector))) };
    if !in_flight::covers(entry, sector) {
        return;
    }
    if entry.request_part.rq != 0 {
        // The bio ended before its request did.
        if let Some(single) = single_bio::find(percpu, entry.request_part.rq) {
            let bytes = single.bio.bytes;
            single_bio::separate(percpu, single, bytes);
        }
    }
    if entry.status == 0 {
        entry.status = status as u32;
    }
    if entry.request == 0 {
        entry.flags |= BIO_NO_REQUEST;
    }
    // SAFETY: the clock has no preconditions.
    end(percpu, entry, unsafe { bpf_ktime_get_ns() });
}

/// Writes the bio's record and releases its entry.
#[inline(always)]
pub fn end(percpu: &mut PerCpuState, entry: &mut Bio, now: u64) {
    let record = BioRecord {
        header: Header {
            tag: TAG_BIO,
            sampling: 0,
            flags: entry.flags & !BIO_DEFERRED,
            len: size_of::<BioRecord>() as u32,
            time_ns: now,
        },
        span: entry.span,
        parent: entry.parent,
        root: entry.root,
        task: entry.task,
        request: entry.request,
        queue_ns: entry.queue_ns,
        sector: entry.sector,
        dev: entry.dev,
        bytes: entry.bytes,
        opf: entry.opf,
        status: entry.status,
        task_version: entry.task_version,
        reserved: [0; 3],
    };
    let iocb = entry.iocb;
    let is_deferred = deferred::is_on() && entry.flags & BIO_DEFERRED != 0;
    in_flight::release_bio(entry);
    if is_deferred {
        deferred::end_with(percpu, record.root, TAG_BIO, &record, record.status != 0);
    } else {
        ring::put(percpu, TAG_BIO, &record);
    }
    if iocb != 0 {
        async_io::libaio::end_bio_of_iocb(
            iocb as u64,
            record.parent,
            record.header.time_ns,
            percpu.slot() as u64,
        );
    }
}
