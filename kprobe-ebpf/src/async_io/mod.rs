//! Asynchronous I/O: each submission to io_uring or libaio is a span, from its submission to its
//! completion, and the parent of its bios.
//!
//! *In*: io_uring's tracepoints (`uring`), the bios of io_submit (`libaio`), and any bio whose kiocb
//! or worker is that of a submission. *Out*: one record at the completion.
//!
//! *Identity*: a submission is known by the address of its kiocb, which is also the address of the
//! `io_kiocb` or `aio_kiocb` around it. A direct I/O bio leads to its kiocb (`block::stacked`),
//! whichever task submits it: the caller, the poll thread of the ring, a worker, or the task work of
//! another call. A bio of the page cache has no kiocb. In a worker of io_uring it belongs to the
//! request that the worker executes ([`of_worker`]). In the caller itself it stays a child of the
//! call, because no record shows which request of a chain the kernel is issuing.
//!
//! *Why the match is exact*: the entry also has the address of the ring (or of the program's iocb),
//! and the memory at the kiocb must refer to it. So an entry whose completion was missed does not match
//! another object at its address.
//!
//! *Counts*: the call counts a submission like a bio of its own, so that a reader knows when the
//! trace is complete; the submission counts its bios.
//!
//! *Rejected*: bios matched by file and offset. Two reads of one block may be in flight together.

pub mod libaio;
pub mod uring;

use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use crate::runtime::settings::setting;
use crate::runtime::table;
use crate::task;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_ringbuf_submit};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::deferred::{VERDICT_DROP, VERDICT_LARGE, combined, sampling_of};
pub use blkkin_probe_abi::in_flight::{ASYNC_SETS, AsyncIo, Set};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;

#[btf_map]
pub static SUBMISSIONS: Array<Set<AsyncIo>, ASYNC_SETS> = Array::new();

/// The bio belongs to a submission.
pub const OF_SUBMISSION: u64 = 1;
/// The bio is the first one of a submission that its call has not counted yet.
pub const OF_UNCOUNTED: u64 = 2;
/// The bio has a kiocb that no record explains; its address is in the slot's walk.
pub const OF_UNKNOWN_KIOCB: u64 = 3;
/// The bio belongs to a submission that head sampling drops.
pub const OF_UNSAMPLED: u64 = 5;

/// Stores span and root of the io_uring request whose kiocb is at this address in the slot's walk, for the
/// caller of `stacked::upper`, and counts the bio. Returns 0 if there is none.
#[inline(always)]
pub fn of_kiocb(percpu: &mut PerCpuState, kiocb: u64) -> u64 {
    let Some(entry) = table::find(&SUBMISSIONS, kiocb) else { return 0 };
    if entry.interface != ASYNC_IO_URING
        || percpu.read(kiocb as Pointer, offset!(io_kiocb_ctx)) != entry.context
    {
        return 0;
    }
    if entry.flags & ASYNC_UNSAMPLED != 0 {
        return OF_UNSAMPLED;
    }
    entry.bios += 1;
    let uncounted = entry.bios == 1 && setting!(block_only) != 0;
    // A bio outside the call cannot be counted by it, so the submission is a root.
    if uncounted && task::state(task::current()).is_none_or(|state| state.span != entry.root) {
        if deferred::is_on() && entry.flags & ASYNC_DEFERRED != 0 && entry.root != entry.span {
            move_to_own_root(percpu, entry);
        }
        (entry.parent, entry.root) = (0, entry.span);
    }
    percpu.walk.status = (entry.flags & ASYNC_DEFERRED != 0) as u32;
    (percpu.walk.span, percpu.walk.parent) = (entry.span, entry.root);
    if uncounted { OF_UNCOUNTED } else { OF_SUBMISSION }
}

/// Lets a submission that was deferred with its call be an operation of its own.
#[inline(always)]
fn move_to_own_root(percpu: &mut PerCpuState, entry: &mut AsyncIo) {
    let slot = percpu.slot() as u64;
    let how = deferred::AS_ROOT | entry.verdict as u64;
    if deferred::begin_part(entry.span, how, entry.start_ns, slot) == 0 {
        // Its bios find no entry, and are dropped with it.
        percpu.count(CALLS_UNSAMPLED);
        entry.flags |= ASYNC_UNSAMPLED;
    }
    deferred::end_part(percpu, entry.root);
}

/// Returns whether the current task is a worker of io_uring that may execute a traced request.
#[inline(always)]
pub fn in_worker() -> bool {
    if setting!(async_io) == 0 || offset!(task_worker) == ABSENT || offset!(io_worker_work) == ABSENT {
        return false;
    }
    // SAFETY: the current task is typed.
    unsafe {
        DirectLoad::read::<u32>(task::current(), offset!(task_flags)) & task::metadata::PF_IO_WORKER != 0
    }
}

/// Finds the submission that the current worker of io_uring executes, as [`of_kiocb`] does:
/// `task->worker_private` is its `struct io_worker`, whose `cur_work` is part of the request while
/// the worker executes it (io_assign_current_work, io_uring/io-wq.c).
#[inline(always)]
pub fn of_worker(percpu: &mut PerCpuState) -> u64 {
    // SAFETY: the current task is typed; the rest is read by bpf_probe_read_kernel.
    unsafe {
        let worker: Pointer = DirectLoad::read(task::current(), offset!(task_worker));
        let worker = percpu.address(worker);
        if worker == 0 {
            return 0;
        }
        let work = ProbeRead::read::<u64>(worker as Pointer, offset!(io_worker_work));
        if work == 0 {
            return 0;
        }
        of_kiocb(percpu, work.wrapping_sub(offset!(io_kiocb_work) as u64))
    }
}

/// Removes the file of an entry, word by word: a call of memset takes another 32 B of stack.
#[inline(always)]
fn clear_file(entry: &mut AsyncIo) {
    let words = (&raw mut entry.file).cast::<[u64; 3]>();
    // SAFETY: a FileId has three words.
    unsafe {
        (&raw mut (*words)[0]).write_volatile(0);
        (&raw mut (*words)[1]).write_volatile(0);
        (&raw mut (*words)[2]).write_volatile(0);
    }
}

/// Stores the name of the file of the submission at this position of the table.
#[inline(always)]
pub fn set_file_name(position: u32, name: u64) {
    if let Some(entry) = table::at(&SUBMISSIONS, position) {
        entry.file.name = name;
    }
}

/// Ends an entry whose completion was not seen.
#[inline(always)]
fn end_unseen(percpu: &mut PerCpuState, entry: &mut AsyncIo) {
    if entry.flags & ASYNC_UNSAMPLED != 0 {
        return table::release(entry);
    }
    entry.flags |= ASYNC_NO_END;
    // SAFETY: the clock has no preconditions.
    end(percpu, entry, unsafe { bpf_ktime_get_ns() }, false);
}

/// Writes the record of a submission and releases its entry. The record is built in the ring: some
/// callers have no stack for it (Linux 6.1 sums the stacks of nested calls).
#[inline(always)]
fn end(percpu: &mut PerCpuState, entry: &mut AsyncIo, now: u64, failed: bool) {
    if deferred::is_on() && entry.flags & ASYNC_UNSAMPLED != 0 {
        return table::release(entry);
    }
    let is_filtered = setting!(block_only) != 0 && entry.bios == 0;
    if deferred::is_on() && entry.flags & ASYNC_DEFERRED != 0 {
        // The time of an end that was not seen is not that of the submission.
        let seen = entry.flags & ASYNC_NO_END == 0;
        let verdict = if seen && !is_filtered {
            let rule = deferred::rule_of_submission(entry.interface, entry.opcode);
            deferred::verdict(rule, failed, now - entry.start_ns)
        } else {
            deferred::verdict_without_time(failed)
        };
        let Some(operation) = deferred::operation(entry.root) else {
            // Its operation lost its place to another one.
            percpu.count(CALLS_UNSAMPLED);
            return table::release(entry);
        };
        let root = entry.root;
        if !is_filtered {
            deferred::keep(operation, verdict);
            if let Some(room) = deferred::room(operation) {
                // SAFETY: a record of the table has as many words as the largest record.
                unsafe { fill(room.cast(), entry, now, 0) };
                table::release(entry);
                return deferred::leave(percpu, operation, root);
            }
        }
        deferred::leave(percpu, operation, root);
    }
    if is_filtered {
        table::release(entry);
        percpu.count(ASYNC_FILTERED);
        return;
    }
    percpu.count(ASYNC_FIRED);
    match ring::reserve::<AsyncIoRecord>() {
        // SAFETY: the room has the size of the record.
        Some(record) => unsafe {
            fill(record, entry, now, sampling_without_room(entry));
            table::release(entry);
            bpf_ringbuf_submit(record.cast(), ring::NO_WAKEUP);
        },
        None => {
            table::release(entry);
            percpu.count(ASYNC_DROPPED);
        }
    }
}

/// Returns the field `sampling` of a record that is written at once. A deferred one has found no room.
#[inline(always)]
fn sampling_without_room(entry: &AsyncIo) -> u8 {
    let large = if entry.flags & ASYNC_DEFERRED != 0 { VERDICT_LARGE } else { VERDICT_DROP };
    if entry.parent == 0 { sampling_of(combined(entry.verdict as u64, large)) } else { 0 }
}

/// Writes each word of a record.
///
/// # Safety
/// `record` has room for it.
#[inline(always)]
unsafe fn fill(record: *mut AsyncIoRecord, entry: &AsyncIo, now: u64, sampling: u8) {
    // SAFETY: by the contract.
    unsafe {
        macro_rules! put {
            ($($field:ident $(. $part:ident)?: $value:expr,)*) => {
                $((&raw mut (*record).$field $(.$part)?).write_volatile($value);)*
            };
        }
        put! {
            header.tag: TAG_ASYNC_IO,
            header.sampling: sampling,
            header.flags: entry.flags & !ASYNC_DEFERRED,
            header.len: size_of::<AsyncIoRecord>() as u32,
            header.time_ns: now,
            span: entry.span,
            parent: entry.parent,
            task: entry.task,
            start_ns: entry.start_ns,
            queued_ns: entry.queued_ns,
            user_data: entry.user_data,
            offset: entry.offset,
            file.dev: entry.file.dev,
            file.generation: entry.file.generation,
            file.ino: entry.file.ino,
            file.name: entry.file.name,
            length: entry.length,
            result: entry.result,
            fd: entry.fd,
            bios: entry.bios,
            ring_flags: entry.ring_flags,
            task_version: entry.task_version,
            opcode: entry.opcode,
            sqe_flags: entry.sqe_flags,
        }
        // The interface and the zeros behind it are one word.
        (&raw mut (*record).interface).cast::<u64>().write_volatile(entry.interface as u64);
    }
}
