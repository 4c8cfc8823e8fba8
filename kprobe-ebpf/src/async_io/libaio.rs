//! iocbs of libaio: from the first bio of an iocb to the end of its last one.
//!
//! *In*: bios of direct I/O that io_submit queues, their ends, and the return of io_submit. *Out*: an
//! entry of `SUBMISSIONS` at the first bio, and its record at the end.
//!
//! The kernel has no tracepoint where it accepts or completes an iocb. A direct I/O bio leads to its
//! `aio_kiocb`, which has the program's number and the address of its iocb. The kernel completes the
//! iocb when its last bio has ended and the submitter queues no more; the entry counts in the same
//! way: one for the submitter, until it begins another iocb or returns, and one for each bio.
//!
//! *The same kiocb?* The kernel may use the memory of a completed iocb again, in the same call. So an
//! entry matches only in its own call, and with the same address of the program's iocb.
//!
//! *Not seen*: iocbs without a bio of their own. A buffered read or write is complete before
//! io_submit returns, and its bios belong to the call. A write that needs work after its last bio
//! (O_DSYNC, blocks that were allocated before) completes later than its span ends.
//!
//! *Rejected*: the iocbs in the memory of the program at io_submit: 57 ns for each, also for those
//! that the kernel refuses, and no way from there to a bio.

use super::{AsyncIo, OF_SUBMISSION, OF_UNCOUNTED, SUBMISSIONS, clear_file, end, end_unseen};
use crate::file::view::FileView;
use crate::runtime::atomic::fetch_add;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::Pointer;
use crate::runtime::settings::setting;
use crate::runtime::table::{self, ClaimCounters};
use crate::task::{self, TaskState, open_syscall};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_user};
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::deferred::NO_RULES;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// First fields of `struct iocb` (include/uapi/linux/aio_abi.h).
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
}

/// In the slot's walk: the submission is deferred, and is no part of its call's operation yet.
const NEW_PART: u32 = 2;

/// Lets the submission that [`submission_of_iocb`] has created be a part of the operation of its call. If there
/// is no room, it is dropped with the call.
#[inline(always)]
pub fn defer_new_part(percpu: &mut PerCpuState, state: Option<&mut TaskState>) {
    let Some(state) = state else { return };
    if percpu.walk.status != NEW_PART || open_syscall::begin_part(percpu, state) {
        return;
    }
    if let Some(entry) = table::at(&SUBMISSIONS, percpu.walk.bios as u32) {
        table::release(entry);
        percpu.count(CALLS_UNSAMPLED);
    }
}

/// Finds or creates the submission of a bio with this kiocb, inside io_submit. It stores span, root
/// and position of the entry in the slot's walk, and a file without known name in its `naming`, and
/// counts the bio. Returns one of `OF_*`, or 0. A global function, because the caller has no stack to
/// spare.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn submission_of_iocb(kiocb: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    if offset!(aio_obj) == ABSENT || offset!(aio_data) == ABSENT || offset!(aio_pos) == ABSENT {
        return 0;
    }
    let Some(state) = task::state(task::current()) else { return 0 };
    let user_iocb = percpu.read(kiocb as Pointer, offset!(aio_obj));
    if let Some(last) = table::at(&SUBMISSIONS, state.iocb) {
        if last.context != user_iocb {
            finish_submitting(percpu, state);
        }
    }
    if let Some(entry) = table::find(&SUBMISSIONS, kiocb) {
        if entry.interface != ASYNC_LIBAIO || entry.context != user_iocb || entry.parent != state.span {
            entry.queued_ns = 0;
            end_unseen(percpu, entry);
        }
    }
    if table::find(&SUBMISSIONS, kiocb).is_none() && !begin(percpu, state, kiocb, user_iocb) {
        return 0;
    }
    let Some(entry) = table::find(&SUBMISSIONS, kiocb) else { return 0 };
    (percpu.walk.span, percpu.walk.parent) = (entry.span, entry.root);
    percpu.walk.bios = state.iocb as u64;
    if percpu.walk.status != NEW_PART {
        percpu.walk.status = (entry.flags & ASYNC_DEFERRED != 0) as u32;
    }
    entry.bios += 1;
    // SAFETY: a word of a map's value.
    unsafe { fetch_add(&raw mut entry.in_flight, 1) };
    if entry.bios == 1 && setting!(block_only) != 0 { OF_UNCOUNTED } else { OF_SUBMISSION }
}

/// Creates the entry of an iocb, which the task submits from now on. Returns false if the table is
/// full, and for the kiocb of a file system (overlayfs, FUSE), which is no `aio_kiocb`.
#[inline(always)]
fn begin(percpu: &mut PerCpuState, state: &mut TaskState, kiocb: u64, user_iocb: u64) -> bool {
    finish_submitting(percpu, state);
    let user_data = percpu.read(kiocb as Pointer, offset!(aio_data));
    if !read_iocb(percpu, user_iocb, user_data) {
        return false;
    }
    let counters = ClaimCounters { stale: ASYNC_UNTRACKED, full: ASYNC_UNTRACKED };
    let Some(entry) = table::claim(&SUBMISSIONS, kiocb, percpu, counters) else { return false };
    percpu.count(ASYNC_SUBMITTED);
    entry.flags = ASYNC_HAS_OFFSET;
    entry.context = user_iocb;
    entry.user_data = user_data;
    entry.offset = percpu.read(kiocb as Pointer, offset!(aio_pos)) as i64;
    entry.span = percpu.next_span_id(Program::BioQueue);
    (entry.parent, entry.root) = (state.span, state.span);
    (entry.task, entry.task_version) = (state.task, state.version);
    (entry.queued_ns, entry.ring_flags, entry.sqe_flags, entry.bios) = (0, 0, 0, 0);
    entry.in_flight = 1;
    entry.interface = ASYNC_LIBAIO;
    entry.verdict = state.verdict as u8;
    fill_from_program(percpu, entry);
    fill_file(percpu, entry, kiocb);
    // SAFETY: the clock has no preconditions.
    entry.start_ns = unsafe { bpf_ktime_get_ns() };
    state.iocb = table::position(&SUBMISSIONS, kiocb);
    if setting!(block_only) == 0 {
        state.bios += 1;
    }
    // SAFETY: a field of the entry. It is read again because a register is less than the stack has left.
    if deferred::is_on() && unsafe { core::ptr::read_volatile(&entry.verdict) } & NO_RULES as u8 == 0 {
        // The caller lets it be a part of the call's operation, which takes stack.
        entry.flags |= ASYNC_DEFERRED;
        percpu.walk.status = NEW_PART;
    }
    true
}

/// Reads the program's iocb into the slot's buffer. The kernel has just read it, so it is resident.
/// Returns false if it is not there, or is not the one with this number.
#[inline(always)]
fn read_iocb(percpu: &mut PerCpuState, user_iocb: u64, user_data: u64) -> bool {
    let buffer = (&raw mut percpu.task).cast::<Iocb>();
    // SAFETY: the slot's buffer is larger than an Iocb and aligned; the helper takes any address.
    unsafe {
        bpf_probe_read_user(buffer.cast(), size_of::<Iocb>() as u32, user_iocb as *const _) == 0
            && (*buffer).data == user_data
    }
}

/// Stores operation, descriptor and length, which only the program's iocb has.
#[inline(always)]
fn fill_from_program(percpu: &mut PerCpuState, entry: &mut AsyncIo) {
    // SAFETY: `read_iocb` has filled in the buffer.
    let iocb = unsafe { &*(&raw mut percpu.task).cast::<Iocb>() };
    entry.opcode = iocb.opcode as u8;
    entry.fd = iocb.fd as i32;
    entry.length = iocb.bytes as u32;
    entry.flags |= ASYNC_HAS_LENGTH | ASYNC_HAS_FD;
}

#[inline(always)]
fn fill_file(percpu: &mut PerCpuState, entry: &mut AsyncIo, kiocb: u64) {
    clear_file(entry);
    let file = percpu.read(kiocb as Pointer, offset!(aio_file));
    if file == 0 {
        return;
    }
    // An unknown name is found by `upper`, whose stack has room for the walk.
    entry.file = FileView::untyped(percpu, file as Pointer).known(percpu);
    entry.flags |= ASYNC_HAS_FILE;
}

/// Ends the submission of the iocb that the task began last, if any: it queues no more bios for it.
#[inline(always)]
pub fn finish_submitting(percpu: &mut PerCpuState, state: &mut TaskState) {
    let position = state.iocb;
    if position == 0 {
        return;
    }
    state.iocb = 0;
    if let Some(entry) = table::at(&SUBMISSIONS, position) {
        if entry.interface == ASYNC_LIBAIO && entry.parent == state.span {
            let last_end = entry.queued_ns;
            release(percpu, entry, last_end);
        }
    }
}

/// Ends a bio of the iocb at this position of the table. `slot` is the caller's slot number. A global
/// function, because the callers have no stack to spare.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn end_bio_of_iocb(position: u64, span: u64, now: u64, slot: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    if let Some(entry) = table::at(&SUBMISSIONS, position as u32) {
        if entry.span == span {
            entry.queued_ns = now;
            release(percpu, entry, now);
        }
    }
    0
}

/// Ends one of the parts that the entry counts. The last one ends the submission, at `end_ns`.
#[inline(always)]
fn release(percpu: &mut PerCpuState, entry: &mut AsyncIo, end_ns: u64) {
    // SAFETY: a word of a map's value.
    if unsafe { fetch_add(&raw mut entry.in_flight, u64::MAX) } == 1 {
        // The end of a bio may have been stored after `end_ns` was read.
        // SAFETY: a word of a map's value.
        let last_end = unsafe { core::ptr::read_volatile(&raw const entry.queued_ns) };
        entry.queued_ns = 0;
        end(percpu, entry, if last_end > end_ns { last_end } else { end_ns }, false);
    }
}
