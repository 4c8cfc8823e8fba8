//! Requests of io_uring: from the submission queue entry that the kernel accepted to the completion
//! queue entry that it posts last.
//!
//! *In*: io_uring_submit_req (io_uring_submit_sqe before 6.3), io_uring_queue_async_work and
//! io_uring_complete. *Out*: an entry of `SUBMISSIONS`, and its record at the completion.
//!
//! At the submission the kernel has prepared the request: operation, offset and length are in it,
//! but not yet the file, which the kernel looks up when it issues the request. At the completion the
//! request still owns its file.
//!
//! *Completions without a request*: io_uring_complete passes NULL for the intermediate entries of a
//! multishot request. The request itself comes with its last entry. Files and disks have none: they
//! cannot be polled (io_read_mshot, io_uring/rw.c).
//!
//! *An end that is not seen*: a request that asked for no entry on success (IOSQE_CQE_SKIP_SUCCESS),
//! and, since 6.2, one whose entry did not fit into the queue. When the kernel uses its memory for
//! another request, its record is written with ASYNC_NO_END.

use super::{AsyncIo, SUBMISSIONS, clear_file, end, end_unseen};
use crate::file::view::FileView;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::settings::setting;
use crate::runtime::table::{self, ClaimCounters};
use crate::task::{self, TaskState, open_syscall, page_writes, sampling};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::deferred::{NO_RULES, sampled_verdict};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{Program, SyscallShape, TASK_ACTIVE};

/// `IORING_SETUP_SQPOLL` (include/uapi/linux/io_uring.h).
const SETUP_SQPOLL: u32 = 1 << 1;
/// `IOSQE_FIXED_FILE` (include/uapi/linux/io_uring.h).
const IOSQE_FIXED_FILE: u8 = 1;
/// The flags of an sqe are the lowest bits of a request's flags (`REQ_F_FIXED_FILE_BIT` and the
/// following ones, include/linux/io_uring_types.h).
const SQE_FLAGS: u32 = 0x7f;
/// Operations whose request is a `struct io_rw`: READV, WRITEV, READ_FIXED, WRITE_FIXED, READ, WRITE,
/// READ_MULTISHOT, READV_FIXED, WRITEV_FIXED.
const READ_WRITE: u64 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 22 | 1 << 23 | 1 << 49 | 1 << 60 | 1 << 61;
/// The writes among these: WRITEV, WRITE_FIXED, WRITE, WRITEV_FIXED.
const WRITE: u64 = 1 << 2 | 1 << 5 | 1 << 23 | 1 << 61;

/// Handles io_uring_submit_req(req).
#[inline(always)]
pub fn submit<R: KernelRead>(req: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::AsyncSubmit) else { return };
    let address = percpu.address(req);
    // Also before an operation that is not traced: its completion must not end another one's entry.
    if let Some(unfinished) = table::find(&SUBMISSIONS, address) {
        end_unseen(percpu, unfinished);
    }
    // SAFETY: `req` is of the kind that R reads.
    let opcode: u8 = unsafe { R::read(req, offset!(io_kiocb_opcode)) };
    if opcode >= 64 || setting!(async_operations) >> opcode & 1 == 0 {
        return;
    }
    let Some(state) = task::submitter(percpu, Program::AsyncSubmit) else { return };
    // SAFETY: as above.
    if state.flags & TASK_ACTIVE == 0 || (state.span == 0 && unsafe { !is_polled_by_kernel::<R>(req) }) {
        return;
    }
    let counters = ClaimCounters { stale: ASYNC_UNTRACKED, full: ASYNC_UNTRACKED };
    let Some(entry) = table::claim(&SUBMISSIONS, address, percpu, counters) else { return };
    percpu.count(ASYNC_SUBMITTED);
    // SAFETY: as above.
    unsafe { fill::<R>(percpu, entry, req, opcode) };
    place(entry, state);
    if sampling::is_on() {
        sample(percpu, entry, state);
    }
    // SAFETY: the clock has no preconditions.
    entry.start_ns = unsafe { bpf_ktime_get_ns() };
}

/// Returns whether a thread of the kernel polls the ring of a request. Otherwise the request is
/// submitted by a call, which is not traced if it has no span.
///
/// # Safety
/// `req` is of the kind that `R` reads.
#[inline(always)]
unsafe fn is_polled_by_kernel<R: KernelRead>(req: Pointer) -> bool {
    // SAFETY: by the contract.
    unsafe {
        let ring: Pointer = R::read(req, offset!(io_kiocb_ctx));
        R::read::<u32>(ring, offset!(io_ring_flags)) & SETUP_SQPOLL != 0
    }
}

/// Stores what the request is.
///
/// # Safety
/// `req` is of the kind that `R` reads.
#[inline(always)]
unsafe fn fill<R: KernelRead>(percpu: &mut PerCpuState, entry: &mut AsyncIo, req: Pointer, opcode: u8) {
    // SAFETY: by the contract.
    unsafe {
        let ring: Pointer = R::read(req, offset!(io_kiocb_ctx));
        entry.ring_flags = R::read(ring, offset!(io_ring_flags));
        entry.context = percpu.address(ring);
        entry.user_data = R::read(req, offset!(io_kiocb_user_data));
        entry.fd = R::read(req, offset!(io_kiocb_fd));
        entry.sqe_flags = (R::read::<u32>(req, offset!(io_kiocb_flags)) & SQE_FLAGS) as u8;
        (entry.flags, entry.offset, entry.length) = (0, 0, 0);
        if READ_WRITE >> opcode & 1 != 0 && offset!(io_rw_pos) != ABSENT && offset!(io_rw_len) != ABSENT {
            entry.offset = R::read(req, offset!(io_rw_pos));
            entry.length = R::read(req, offset!(io_rw_len));
            entry.flags = ASYNC_HAS_OFFSET | ASYNC_HAS_LENGTH;
        }
    }
    if entry.sqe_flags & IOSQE_FIXED_FILE == 0 {
        entry.flags |= ASYNC_HAS_FD;
    }
    entry.span = percpu.next_span_id(Program::AsyncSubmit);
    entry.queued_ns = 0;
    entry.in_flight = 0;
    entry.bios = 0;
    clear_file(entry);
    entry.result = 0;
    entry.opcode = opcode;
    entry.interface = ASYNC_IO_URING;
    entry.verdict = sampled_verdict(0) as u8;
}

/// Stores the submitter. The system call counts it like a bio; one that is recorded only with
/// bios counts it at its first bio.
#[inline(always)]
fn place(entry: &mut AsyncIo, state: &mut TaskState) {
    entry.parent = state.span;
    entry.root = if state.span != 0 { state.span } else { entry.span };
    entry.task = state.task;
    entry.task_version = state.version;
    if state.span != 0 && setting!(block_only) == 0 {
        state.bios += 1;
    }
}

/// Decides about the submission: with its call, or as a root of its own.
#[inline(always)]
fn sample(percpu: &mut PerCpuState, entry: &mut AsyncIo, state: &mut TaskState) {
    let verdict = match state.span {
        0 => sampling::of(entry.span),
        // Not a call's: of a page fault that has no end yet.
        _ if !state.in_syscall() => return,
        _ => (!state.is_excluded()).then_some(state.verdict as u64),
    };
    let Some(verdict) = verdict else {
        entry.flags |= ASYNC_UNSAMPLED;
        percpu.count(CALLS_UNSAMPLED);
        return;
    };
    entry.verdict = verdict as u8;
    if !deferred::is_on() || verdict & NO_RULES != 0 {
        return;
    }
    entry.flags |= ASYNC_DEFERRED;
    let deferred = match state.span {
        0 => {
            let how = deferred::AS_ROOT | verdict;
            deferred::begin_part(entry.span, how, deferred::now(), percpu.slot() as u64) != 0
        }
        _ => open_syscall::begin_part(percpu, state),
    };
    if !deferred {
        entry.flags |= ASYNC_UNSAMPLED;
        percpu.count(CALLS_UNSAMPLED);
    }
}

/// Handles io_uring_queue_async_work(req): a worker will execute it.
#[inline(always)]
pub fn queue(req: Pointer) {
    if setting!(async_io) == 0 {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::AsyncQueue) else { return };
    let Some(entry) = table::find(&SUBMISSIONS, percpu.address(req)) else { return };
    // SAFETY: the clock has no preconditions.
    entry.queued_ns = unsafe { bpf_ktime_get_ns() };
}

/// Returns whether the completed request wrote bytes into the page cache of a regular file.
#[inline(always)]
fn writes_page_cache(entry: &AsyncIo, file: &FileView) -> bool {
    WRITE >> entry.opcode & 1 != 0
        && entry.result > 0
        && entry.flags & ASYNC_HAS_OFFSET != 0
        && page_writes::inode(file, SyscallShape(SyscallShape::WRITES | SyscallShape::POSITION)) != 0
}

/// Handles io_uring_complete(ring, req, …). `req` is NULL for an entry without a request. To the
/// verifier it has no type, because the tracepoint declares it as `void *`.
#[inline(always)]
pub fn complete(req: Pointer) {
    if req.is_null() {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::AsyncComplete) else { return };
    let Some(entry) = table::find(&SUBMISSIONS, percpu.address(req)) else { return };
    // SAFETY: bpf_probe_read_kernel takes any address.
    let same = unsafe {
        ProbeRead::read::<u64>(req, offset!(io_kiocb_user_data)) == entry.user_data
            && ProbeRead::read::<u8>(req, offset!(io_kiocb_opcode)) == entry.opcode
    };
    if !same {
        return end_unseen(percpu, entry);
    }
    if entry.flags & ASYNC_UNSAMPLED != 0 {
        return table::release(entry);
    }
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        entry.result = ProbeRead::read(req, offset!(io_kiocb_result));
        let file: Pointer = ProbeRead::read(req, offset!(io_kiocb_file));
        if !file.is_null() {
            let file = FileView::untyped(percpu, file);
            if writes_page_cache(entry, &file) {
                // `kiocb.ki_pos` is behind the last byte, also of a write at the file's own position or at
                // its end.
                entry.offset = ProbeRead::read::<i64>(req, offset!(io_rw_pos)) - entry.result as i64;
                entry.flags |= ASYNC_WRITES_PAGE_CACHE;
            }
            entry.file = file.named(percpu, now);
            entry.flags |= ASYNC_HAS_FILE;
        }
    }
    entry.flags |= ASYNC_HAS_RESULT;
    end(percpu, entry, now, entry.result < 0);
}
