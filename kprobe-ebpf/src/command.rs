//! A driver's commands: requests that no bio was queued for (SG_IO, NVMe passthrough, a driver's own questions to its device).
//!
//! *In*: a request at the hook where it is first seen. *Out*: an [`Asker`]: the call that it belongs to, or none.
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
use crate::filter::device_wanted;
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::task;
use blkkin_probe_abi::counters::REQUESTS_FOREIGN;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::settings::{ORIGIN_ALL, ORIGIN_TASKS, Program, TASK_ACTIVE};

/// All but the lowest bit of an operation, which says the direction: of a command it is the same both ways (REQ_OP_DRV_IN and
/// REQ_OP_DRV_OUT, include/linux/blk_types.h).
const EITHER_WAY: u32 = 0xfe;
/// Bytes of a task's stack in the kernel, at least (THREAD_SIZE, arch/x86/include/asm/page_64_types.h and
/// arch/arm64/include/asm/memory.h).
const STACK_BYTES: u64 = 16 << 10;

/// Who asked for a request of which no bio says it.
#[derive(Clone, Copy)]
pub struct Asker {
    /// The call; 0 for none.
    pub call: u64,
    /// The task; 0 where it is not known.
    pub task: u64,
    pub version: u16,
}

impl Asker {
    pub const NOBODY: Asker = Asker { call: 0, task: 0, version: 0 };
}

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
    let (mut asker, mut followed) = (Asker::NOBODY, false);
    if let Some(state) = task::submitter(local, Program::RequestStart) {
        (asker.task, asker.version) = (state.task, state.version);
        if command {
            asker.call = state.span;
            followed = state.flags & TASK_ACTIVE != 0;
        }
    }
    if asker.call == 0 {
        if origin != ORIGIN_ALL && !(followed && origin == ORIGIN_TASKS) {
            return None;
        }
        local.count(REQUESTS_FOREIGN);
    }
    Some(asker)
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
                return Some(Asker { call: state.span, task: state.task, version: state.version });
            }
        }
    }
    if setting!(kernel_origin) != ORIGIN_ALL {
        return None;
    }
    local.count(REQUESTS_FOREIGN);
    Some(Asker::NOBODY)
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

/// A request was begun for this call: it waits for it as for a bio.
#[inline(always)]
pub fn counted(asker: Asker) {
    if asker.call != 0 {
        if let Some(state) = task::state(task::current()) {
            state.bios += 1;
        }
    }
}
