//! Head sampling: whether the root of a trace is recorded.
//!
//! *In*: the root's id, and the ratio, which user space may change at any time. *Out*: the verdict about the
//! root, or that it is dropped. *Invariant*: [`is_sampled`]. A root that is recorded for
//! another reason (its program samples the trace, or its trace is unknown) has the ratio 1.
//! While the trace is [`PAUSED`] no root is sampled.
//!
//! Where operations are [deferred](crate::runtime::deferred), a root that is not sampled is not dropped: its end decides.
//!
//! A call that is dropped is open like one that a path filter excludes: its bios are not recorded,
//! and are not taken for those of the kernel. A submission that is dropped keeps its entry for the
//! same reason: a worker may queue its bios.

use super::storage::TaskState;
use super::thread_context;
use crate::runtime::deferred;
use crate::runtime::settings::setting;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::deferred::{NO_RULES, SAMPLED_ONLY, VERDICT_DROP, sampled_verdict};
use blkkin_probe_abi::head_sampling::{PAUSED, SAMPLING_MAX, is_sampled};
use blkkin_probe_abi::record::SYSCALL_HAS_CONTEXT;

#[btf_map]
static HEAD_SAMPLING: Array<u64, 1> = Array::new();

/// Returns whether roots are sampled. Without the option its code is dead to the verifier.
#[inline(always)]
pub fn is_on() -> bool {
    setting!(head_sampling) != 0
}

/// Returns whether no operation that begins now is deferred.
#[inline(always)]
fn is_suspended(word: u64) -> bool {
    deferred::is_on() && word & SAMPLED_ONLY != 0
}

#[inline(always)]
fn word() -> u64 {
    // SAFETY: a word of the map.
    HEAD_SAMPLING.get_ptr_mut(0).map_or(0, |word| unsafe { core::ptr::read_volatile(word) })
}

/// Returns the verdict about the root with this id before it ends: sampled by the ratio, or dropped. None if
/// the root is dropped now.
#[inline(always)]
pub fn of(id: u64) -> Option<u64> {
    let word = word();
    if word & PAUSED != 0 {
        return None;
    }
    let sampling = word & 0xff;
    let sampling = if sampling > SAMPLING_MAX as u64 { SAMPLING_MAX } else { sampling as u8 };
    let suspended = is_suspended(word);
    if is_sampled(id, sampling) {
        return Some(sampled_verdict(sampling) | if suspended { NO_RULES } else { 0 });
    }
    (deferred::is_on() && !suspended).then_some(VERDICT_DROP)
}

/// Decides about the call that the task enters, whose span is `span`, by the trace of its thread's
/// context if it has one. The context was read. Returns false if the call is dropped.
#[inline(always)]
pub fn decide(state: &mut TaskState, span: u64) -> bool {
    let mut id = span;
    let word = word();
    if word & PAUSED != 0 {
        return false;
    }
    if is_suspended(word) {
        state.verdict |= NO_RULES as u32;
    }
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
        Some(verdict) => {
            state.verdict = verdict as u32;
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
