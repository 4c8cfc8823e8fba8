//! Passthrough requests: requests without a queued bio (SG_IO, NVMe passthrough, a driver's own
//! commands to its device).
//!
//! *In*: a request at its first event. *Out*: the task that sent it, and the parent system call, if
//! any. *Invariant*: a passthrough request is a child of a system call only if that call's task
//! provably sent it.
//!
//! *Submitter.* blk_execute_rq and blk_execute_rq_nowait (block/blk-mq.c) announce the request by
//! block_io_start in the sending task. Its allocation could sleep, so the context is a task and not
//! an interrupt.
//! Kernels before 6.5 have no such hook. There the first event is the issue, possibly in a task
//! that merely runs the queue. But blk_execute_rq waits on a completion on its own stack, and the
//! request points at it (`end_io_data`). If that pointer is within the stack of the issuing task,
//! that task is the submitter. Otherwise the submitter is unknown: the driver's worker issued the
//! request, or its sender does not wait in the kernel (`/dev/sg`).
//!
//! *Bios*: they map memory and never passed block_bio_queue. Table entries at their addresses
//! belong to other bios, so no lookup uses them.
//!
//! *Rejected*: the task inside an ioctl on that device at issue time, because there may be two; the
//! waiter in the completion's list, because it may not wait yet.

use super::device::device_passes;
use super::in_flight::REQUESTS;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::setting;
use crate::runtime::table;
use crate::task::{self, open_syscall};
use blkkin_probe_abi::counters::{REQUESTS_FOREIGN, REQUESTS_UNSAMPLED};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::{REQUEST_DEFERRED, REQUEST_NO_PARENT};
use blkkin_probe_abi::settings::{ORIGIN_ALL, ORIGIN_TASKS, Program, TASK_ACTIVE};

/// Mask of the operation without its lowest bit, the direction: passthrough operations are equal in
/// both directions (REQ_OP_DRV_IN and REQ_OP_DRV_OUT, include/linux/blk_types.h).
const DIRECTION_MASK: u32 = 0xfe;
/// Minimum bytes of a task's kernel stack (THREAD_SIZE, arch/x86/include/asm/page_64_types.h and
/// arch/arm64/include/asm/memory.h).
const STACK_BYTES: u64 = 16 << 10;

/// Task that submitted a request without a bio: id and version; 0 if unknown.
pub type Submitter = (u64, u16);

/// Unknown submitter.
pub const UNKNOWN: Submitter = (0, 0);

/// Returns whether this is a passthrough request.
#[inline(always)]
pub fn is_passthrough(opf: u32) -> bool {
    opf & DIRECTION_MASK == offset!(op_driver_in)
}

/// Returns the submitter of a request that block_io_start announces in the current task; none if
/// the request is not traced.
#[inline(always)]
pub fn submitter(percpu: &mut PerCpuState, opf: u32, disk: u32) -> Option<Submitter> {
    let (passthrough, origin) = (is_passthrough(opf), setting!(kernel_origin));
    if !(passthrough || origin == ORIGIN_ALL) || !device_passes(disk, disk) {
        return None;
    }
    if let Some(state) = task::submitter(percpu, Program::RequestStart) {
        if state.is_excluded() {
            return None;
        }
        let in_syscall = passthrough && state.in_syscall();
        let of_task = passthrough && origin == ORIGIN_TASKS && state.flags & TASK_ACTIVE != 0;
        if !in_syscall {
            if origin != ORIGIN_ALL && !of_task {
                return None;
            }
            percpu.count(REQUESTS_FOREIGN);
        }
        return Some((state.task, state.version));
    }
    if origin != ORIGIN_ALL {
        return None;
    }
    percpu.count(REQUESTS_FOREIGN);
    Some(UNKNOWN)
}

/// Returns the submitter of a passthrough request whose first event is its issue; none if the
/// request is not traced.
///
/// # Safety
/// `rq` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn legacy_submitter<R: KernelRead>(
    percpu: &mut PerCpuState,
    rq: Pointer,
    disk: u32,
) -> Option<Submitter> {
    if !device_passes(disk, disk) {
        return None;
    }
    // SAFETY: by the contract.
    if unsafe { current_task_waits::<R>(rq) } {
        if let Some(state) = task::state(task::current()) {
            if state.is_excluded() {
                return None;
            }
            if state.in_syscall() {
                return Some((state.task, state.version));
            }
        }
    }
    if setting!(kernel_origin) != ORIGIN_ALL {
        return None;
    }
    percpu.count(REQUESTS_FOREIGN);
    Some(UNKNOWN)
}

/// Returns whether the current task waits for this request, or is about to.
#[inline(always)]
unsafe fn current_task_waits<R: KernelRead>(rq: Pointer) -> bool {
    if offset!(task_stack) == ABSENT || offset!(rq_end_io_data) == ABSENT {
        return false;
    }
    // SAFETY: by the caller's contract; the current task is typed.
    let (stack, completion): (u64, u64) = unsafe {
        (DirectLoad::read(task::current(), offset!(task_stack)), R::read(rq, offset!(rq_end_io_data)))
    };
    completion.wrapping_sub(stack) < STACK_BYTES
}

/// Makes the passthrough request at `address`, which the current task submitted, a child of the
/// task's open system call, if any. The call waits for it as for a bio.
#[inline(always)]
pub fn attach_to_syscall(percpu: &mut PerCpuState, address: u64) {
    let Some(state) = task::state(task::current()) else { return };
    if !state.in_syscall() {
        return;
    }
    if let Some(entry) = table::find(&REQUESTS, address) {
        if deferred::is_on() && state.is_deferred() {
            if !open_syscall::begin_part(percpu, state) {
                percpu.count(REQUESTS_UNSAMPLED);
                return table::release(entry);
            }
            entry.flags |= REQUEST_DEFERRED;
        }
        (entry.parent, entry.root) = (state.span, state.span);
        entry.flags &= !REQUEST_NO_PARENT;
        state.bios += 1;
    }
}
