//! Flush machine: the requests that a device's cache flush serves.
//!
//! The block layer does not send a request that needs a flush as it is. It queues the request in a
//! list and sends one request of its own, the queue's `flush_rq`, for all that wait
//! (block/blk-flush.c). That request has no bio, is issued by a worker, and carries the tag of the
//! first waiting request; its sector or tag would link it to the wrong requests.
//!
//! When it is issued, `fq->flush_queue[flush_running_idx]` holds exactly the requests that it
//! serves (155,166 of 155,166). Each of them is at the device from then on.

use super::{legacy_request, single_bio};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use blkkin_probe_abi::counters::{FLUSH_OVERFLOW, FLUSHES_SERVED};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::REQUEST_SERVED_BY_FLUSH;
use blkkin_probe_abi::settings::Program;

/// Maximum requests of one flush that are marked: one for each waiting task. Further requests keep
/// an unknown issue time, and are counted.
const SERVED_MAX: usize = 256;

/// Marks the requests that the flush `rq` serves as issued at `now`. `hctx` is its hardware queue.
#[inline(always)]
pub fn mark_served_requests(rq: u64, hctx: u64, now: u64) {
    if offset!(hctx_fq) == ABSENT || offset!(fq_running_bit) == ABSENT {
        return;
    }
    // List link of a waiting request: `flush.list` until 81ada09cc25e (6.6), `queuelist` since.
    let link = if offset!(rq_flush_list) != ABSENT { offset!(rq_flush_list) } else { offset!(rq_queuelist) };
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let fq: Pointer = ProbeRead::read(hctx as Pointer, offset!(hctx_fq));
        if ProbeRead::read::<u64>(fq, offset!(fq_flush_rq)) != rq {
            return;
        }
        let bit = offset!(fq_running_bit);
        let running = ProbeRead::read::<u8>(fq, bit / 8) >> (bit % 8) & 1;
        // struct list_head flush_queue[2]
        let head = fq as u64 + offset!(fq_flush_queue) as u64 + running as u64 * 16;
        let mut entry: u64 = ProbeRead::read(head as Pointer, 0);
        let mut step = 0;
        while step < SERVED_MAX {
            if entry == head || entry == 0 {
                return;
            }
            mark_served(entry.wrapping_sub(link as u64), now);
            entry = ProbeRead::read(entry as Pointer, 0);
            step += 1;
        }
        if entry == head {
            return;
        }
    }
    if let Some(percpu) = PerCpuState::of(Program::RequestIssue) {
        percpu.count(FLUSH_OVERFLOW);
    }
}

/// Marks one request as served by a flush. A global function, which the verifier checks once
/// instead of at each iteration.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mark_served(rq: u64, now: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::RequestIssue) else { return 0 };
    if let Some(single) = single_bio::find(percpu, rq) {
        percpu.count(FLUSHES_SERVED);
        let request_part = &mut single.bio.request_part;
        if request_part.issue_ns == 0 {
            request_part.issue_ns = now;
            request_part.flags |= REQUEST_SERVED_BY_FLUSH;
        }
        return 1;
    }
    let Some(entry) = legacy_request::find::<ProbeRead>(percpu, Program::RequestIssue, rq as Pointer, rq)
    else {
        return 0;
    };
    percpu.count(FLUSHES_SERVED);
    if entry.issue_ns != 0 {
        return 0;
    }
    entry.issue_ns = now;
    entry.flags |= REQUEST_SERVED_BY_FLUSH;
    1
}
