//! The flush machine: which requests a device's cache flush serves.
//!
//! A request that asks for a flush is not sent as it is: the block layer keeps it in a list and sends one request of
//! its own, the queue's `flush_rq`, for all that wait (block/blk-flush.c). That request has no bio, is issued by a
//! worker, and bears the tag of the first asker; sector or tag would link it to the wrong ones. When it is issued,
//! `fq->flush_queue[flush_running_idx]` holds exactly those that it serves (155,166 of 155,166): each of them is at
//! the device from then on.

use crate::access::{Access, Pointer, Probe};
use crate::alone;
use crate::late;
use crate::layout::offset;
use crate::local::Local;
use blkkin_probe_abi::counters::{FLUSH_OVERFLOW, FLUSHES_SERVED};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::REQUEST_SERVED;
use blkkin_probe_abi::settings::Program;

/// Requests of one flush that are marked: one for each task that waits. More than these keep an unknown issue time, and that
/// is counted.
const SERVED_MAX: usize = 256;

/// Marks the requests that `rq`, a flush, serves, as issued `now`. `hctx` is its hardware queue.
#[inline(always)]
pub fn serve(rq: u64, hctx: u64, now: u64) {
    if offset!(hctx_fq) == ABSENT || offset!(fq_running_bit) == ABSENT {
        return;
    }
    // Where a request hangs in the list: `flush.list` until 81ada09cc25e (6.6), `queuelist` since.
    let link = if offset!(rq_flush_list) != ABSENT { offset!(rq_flush_list) } else { offset!(rq_queuelist) };
    // SAFETY: reads by helper take any address.
    unsafe {
        let fq: Pointer = Probe::read(hctx as Pointer, offset!(hctx_fq));
        if Probe::read::<u64>(fq, offset!(fq_flush_rq)) != rq {
            return;
        }
        let bit = offset!(fq_running_bit);
        let running = Probe::read::<u8>(fq, bit / 8) >> (bit % 8) & 1;
        // struct list_head flush_queue[2]
        let head = fq as u64 + offset!(fq_flush_queue) as u64 + running as u64 * 16;
        let mut entry: u64 = Probe::read(head as Pointer, 0);
        let mut turn = 0;
        while turn < SERVED_MAX {
            if entry == head || entry == 0 {
                return;
            }
            mark_served(entry.wrapping_sub(link as u64), now);
            entry = Probe::read(entry as Pointer, 0);
            turn += 1;
        }
        if entry == head {
            return;
        }
    }
    if let Some(local) = Local::of(Program::RequestIssue) {
        local.count(FLUSH_OVERFLOW);
    }
}

/// A global function for the verifier: checked once, not at each turn.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mark_served(rq: u64, now: u64) -> u64 {
    let Some(local) = Local::of(Program::RequestIssue) else { return 0 };
    if let Some(flight) = alone::find(local, rq) {
        local.count(FLUSHES_SERVED);
        let carrier = &mut flight.bio.carrier;
        if carrier.issue_ns == 0 {
            carrier.issue_ns = now;
            carrier.flags |= REQUEST_SERVED;
        }
        return 1;
    }
    let Some(entry) = late::known::<Probe>(local, Program::RequestIssue, rq as Pointer, rq) else { return 0 };
    local.count(FLUSHES_SERVED);
    if entry.issue_ns != 0 {
        return 0;
    }
    entry.issue_ns = now;
    entry.flags |= REQUEST_SERVED;
    1
}
