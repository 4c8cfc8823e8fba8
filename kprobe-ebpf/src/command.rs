//! A driver's commands: requests that no bio was queued for (SG_IO, NVMe passthrough, a driver's own questions to its device).
//!
//! *In*: a request at the hook where it is first seen. *Out*: the task that sent it, and the call that it is below; or none.
//! *Invariant*: a command is below a call only where it is proved that the call's task sent it.
//!
//! *Whose it is.* blk_execute_rq and blk_execute_rq_nowait (block/blk-mq.c) announce a command by block_io_start in the task that
//! sends it; its request was waited for, so that is a task and no interrupt. Before 6.5, which has no such hook, a
//! command is first seen at its issue, by then perhaps in a task that only happens to run the queue. But blk_execute_rq waits on a
//! completion on its own stack, and the request knows it (`end_io_data`): where that lies on the stack of the task that issues, it
//! is that task's own. Elsewhere it is nobody's: the driver's worker issued it, or its sender does not wait
//! in the kernel (`/dev/sg`).
//!
//! *Its bios* are mapped memory that never passed block_bio_queue: what the table has at their addresses is another's, and is not
//! looked at.
//!
//! *Rejected*: the task inside an ioctl on that device at the time of the issue: two may be. The waiter in the completion's list:
//! it may not wait yet.

use crate::access::{Access, Direct, Pointer};
use crate::block::REQUESTS;
use crate::filter::device_wanted;
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::{table, task};
use blkkin_probe_abi::counters::REQUESTS_FOREIGN;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::REQUEST_NO_PARENT;
use blkkin_probe_abi::settings::{ORIGIN_ALL, ORIGIN_TASKS, Program, TASK_ACTIVE};

/// All but the lowest bit of an operation, which says the direction: of a command it is the same both ways (REQ_OP_DRV_IN and
/// REQ_OP_DRV_OUT, include/linux/blk_types.h).
const EITHER_WAY: u32 = 0xfe;
/// Bytes of a task's stack in the kernel, at least (THREAD_SIZE, arch/x86/include/asm/page_64_types.h and
/// arch/arm64/include/asm/memory.h).
const STACK_BYTES: u64 = 16 << 10;

/// The task that asked for a request of which no bio says it, by id and version; 0 where it is not known.
pub type Asker = (u64, u16);

/// No task that is known.
pub const NOBODY: Asker = (0, 0);

/// Whether this is a driver's command.
#[inline(always)]
pub fn is(opf: u32) -> bool {
    opf & EITHER_WAY == offset!(op_driver_in)
}

/// Who asks for what block_io_start announces in the current task; none if it is not wanted.
#[inline(always)]
pub fn asker(local: &mut Local, opf: u32, disk: u32) -> Option<Asker> {
    let (command, origin) = (is(opf), setting!(kernel_origin));
    if !(command || origin == ORIGIN_ALL) || !device_wanted(disk, disk) {
        return None;
    }
    if let Some(state) = task::submitter(local, Program::RequestStart) {
        let in_call = command && state.span != 0;
        let of_task = command && origin == ORIGIN_TASKS && state.flags & TASK_ACTIVE != 0;
        if !in_call {
            if origin != ORIGIN_ALL && !of_task {
                return None;
            }
            local.count(REQUESTS_FOREIGN);
        }
        return Some((state.task, state.version));
    }
    if origin != ORIGIN_ALL {
        return None;
    }
    local.count(REQUESTS_FOREIGN);
    Some(NOBODY)
}

/// Who asked for a command that is first seen now, at its issue; none if it is not wanted.
///
/// # Safety
/// `rq` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn late_asker<A: Access>(local: &mut Local, rq: Pointer, disk: u32) -> Option<Asker> {
    if !device_wanted(disk, disk) {
        return None;
    }
    // SAFETY: by the contract.
    if unsafe { is_waited_for_here::<A>(rq) } {
        if let Some(state) = task::state(task::current()) {
            if state.span != 0 {
                return Some((state.task, state.version));
            }
        }
    }
    if setting!(kernel_origin) != ORIGIN_ALL {
        return None;
    }
    local.count(REQUESTS_FOREIGN);
    Some(NOBODY)
}

/// Whether the current task waits for this request, or is about to.
#[inline(always)]
unsafe fn is_waited_for_here<A: Access>(rq: Pointer) -> bool {
    if offset!(task_stack) == ABSENT || offset!(rq_end_io_data) == ABSENT {
        return false;
    }
    // SAFETY: by the caller's contract; the current task is typed.
    let (stack, waits): (u64, u64) =
        unsafe { (Direct::read(task::current(), offset!(task_stack)), A::read(rq, offset!(rq_end_io_data))) };
    waits.wrapping_sub(stack) < STACK_BYTES
}

/// The request at `address` was begun, a command of the current task's: it is below the call that is open there, if one is,
/// which waits for it as for a bio.
#[inline(always)]
pub fn attach(address: u64) {
    let Some(state) = task::state(task::current()) else { return };
    if state.span == 0 {
        return;
    }
    if let Some(entry) = table::find(&REQUESTS, address) {
        (entry.parent, entry.root) = (state.span, state.span);
        entry.flags &= !REQUEST_NO_PARENT;
        state.bios += 1;
    }
}
