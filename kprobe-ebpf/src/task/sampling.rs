//! Head sampling: whether the root of a trace is recorded.
//!
//! *In*: the root's id, and the ratio, which user space may change at any time. *Out*: the record's
//! `sampling`, or that the root is left out. *Invariant*: [`is_sampled`]. A root that is recorded for
//! another reason (its program samples the trace, or its trace is unknown) has the ratio 1.
//!
//! A call that is left out is open like one that a path filter excludes: its bios are not recorded,
//! and are not taken for those of the kernel. A submission that is left out keeps its entry for the
//! same reason: a worker may queue its bios.
//!
//! *Rejected*: a decision at the end, by duration or error. The bios and requests of the call have
//! crossed the ring by then, and they are most of the cost.

use super::storage::TaskState;
use super::thread_context;
use crate::runtime::settings::setting;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::head_sampling::{SAMPLING_MAX, is_sampled};
use blkkin_probe_abi::record::SYSCALL_HAS_CONTEXT;

#[btf_map]
static HEAD_SAMPLING: Array<u64, 1> = Array::new();

/// Returns whether roots are sampled. Without the option its code is dead to the verifier.
#[inline(always)]
pub fn is_on() -> bool {
    setting!(head_sampling) != 0
}

/// Returns the `sampling` of the root with this id; none if it is left out.
#[inline(always)]
pub fn of(id: u64) -> Option<u8> {
    // SAFETY: a word of the map.
    let sampling = HEAD_SAMPLING.get_ptr_mut(0).map_or(0, |word| unsafe { core::ptr::read_volatile(word) });
    let sampling = if sampling > SAMPLING_MAX as u64 { SAMPLING_MAX } else { sampling as u8 };
    is_sampled(id, sampling).then_some(sampling)
}

/// Decides about the call that the task enters, whose span is `span`, by the trace of its thread's
/// context if it has one. The context was read. Returns false if the call is left out.
#[inline(always)]
pub fn samples(state: &mut TaskState, span: u64) -> bool {
    let mut id = span;
    if state.record.header.flags & SYSCALL_HAS_CONTEXT != 0 {
        if thread_context::keeps_sampled(state) {
            return true;
        }
        let [first, last] = halves(&state.head.trace);
        // A thread may publish attributes without a span.
        if first | last != 0 {
            id = last;
        }
    } else if state.context_fault != 0 {
        // The trace is known at the return only.
        return true;
    }
    match of(id) {
        Some(sampling) => {
            state.record.header.sampling = sampling;
            true
        }
        None => false,
    }
}

/// Returns the first and the last 64 bits of a trace id.
#[inline(always)]
fn halves(trace: &[u8; 16]) -> [u64; 2] {
    // SAFETY: the trace id is the first field of its head, which is aligned to 8.
    let words = unsafe { (&raw const *trace).cast::<[u64; 2]>().read() };
    [u64::from_be(words[0]), u64::from_be(words[1])]
}
