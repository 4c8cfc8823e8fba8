//! Open system call of a task: its record in the task's state, and the write of that record to the
//! ring.

use super::attributes;
use super::page_writes;
use super::sleep;
use super::storage::TaskState;
use super::wait;
use crate::runtime::deferred;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::ring;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::context::ContextHead;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::deferred::{
    KEEP_SYSCALLS, SLOW_AT, VERDICT_DROP, VERDICT_LARGE, combined, sampled_verdict, sampling_of,
};
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::SyscallShape;

/// Opens a system call that a path filter excludes, or head sampling: it has a span, so that its bios
/// are known to be its own, and no record. `counter` counts it.
#[inline(always)]
pub fn exclude(percpu: &mut PerCpuState, state: &mut TaskState, span: u64, counter: usize) {
    page_writes::end(state);
    state.shape |= SyscallShape::EXCLUDED;
    state.bios = 0;
    state.iocb = 0;
    state.span = span;
    percpu.count(counter);
}

/// Begins a part of the open call's deferred operation. Returns false if there is no room: the call is dropped then.
#[inline(always)]
pub fn begin_part(percpu: &mut PerCpuState, state: &mut TaskState) -> bool {
    let how = deferred::FOR_ROOT | state.verdict as u64;
    if deferred::begin_part(state.span, how, state.record.enter_ns, percpu.slot() as u64) != 0 {
        state.deferred = 1;
        return true;
    }
    exclude(percpu, state, state.span, CALLS_UNSAMPLED);
    false
}

/// Returns the verdict about the open call, which ends with this one: DROP, and it was counted; or
/// [`deferred::UNDECIDED`]; else its record has the verdict.
#[inline(always)]
pub fn close(percpu: &mut PerCpuState, state: &mut TaskState, verdict: u64) -> u64 {
    let exceeded = verdict & SLOW_AT;
    let mut verdict = combined(state.verdict as u64, verdict);
    if state.deferred != 0 {
        verdict = deferred::close_root(state.span, verdict | exceeded, percpu.slot() as u64);
        if verdict == deferred::UNDECIDED {
            return verdict;
        }
    } else {
        deferred::count_kept(percpu, verdict);
    }
    if verdict == VERDICT_DROP {
        percpu.count(CALLS_UNSAMPLED);
    }
    state.record.header.sampling = sampling_of(verdict);
    verdict
}

/// Writes the record of a system call whose exit was missed. One that did not return has failed.
#[inline(always)]
pub fn abandon(percpu: &mut PerCpuState, state: &mut TaskState) {
    if state.is_excluded() {
        state.span = 0;
        return;
    }
    state.record.header.flags |= SYSCALL_NO_EXIT;
    state.sleeps = 0;
    // The sleeps of what followed the missed exit are among them.
    sleep::discard(state);
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let mut closed = sampled_verdict(0);
    if deferred::is_on() && state.is_deferred() {
        let rule = KEEP_SYSCALLS + state.record.number as u32;
        let verdict = deferred::verdict_of_call(rule, true, now - state.record.enter_ns);
        closed = close(percpu, state, verdict);
    }
    if closed != VERDICT_DROP {
        write(percpu, state, now, closed == deferred::UNDECIDED);
    }
    page_writes::end(state);
    state.span = 0;
}

/// Writes the record of a system call, with those of its waits and sleeps before it; or stores all until its operation ends.
/// A record with a tail of any length has no room there: the operation is kept.
#[inline(always)]
pub fn write(percpu: &mut PerCpuState, state: &mut TaskState, now: u64, is_deferred: bool) {
    let (mut operation, mut stores) = (None, false);
    if deferred::is_on() && is_deferred {
        let Some(entry) = deferred::operation(state.span) else { return percpu.count(CALLS_UNSAMPLED) };
        stores = !attributes::may_have_other_tail(state) && deferred::has_room(entry);
        if !stores {
            deferred::keep(entry, VERDICT_LARGE);
        }
        state.record.header.sampling = deferred::sampling_without_room(entry);
        operation = Some(entry);
    }
    let mut stored = if stores { operation.as_deref_mut() } else { None };
    wait::write(percpu, state, now, stored.as_deref_mut());
    sleep::write(percpu, state, now, stored);
    let flags = state.record.header.flags;
    if flags & SYSCALL_PATH_TRUNCATED != 0 {
        percpu.count(SYSCALLS_TRUNCATED);
    }
    let own_tail = attributes::tail_before_context(state);
    let (mut tail, mut attributes_len) = (own_tail, 0);
    if flags & SYSCALL_HAS_CONTEXT != 0 {
        let at = attributes::head_offset(own_tail);
        attributes_len = attributes::append(percpu, state, at);
        // SAFETY: after the paths there is room for a head; the tail is aligned to 8.
        unsafe { (&raw mut state.tail).byte_add(at as usize).cast::<ContextHead>().write(state.head) };
        tail = at + size_of::<ContextHead>() as u64 + attributes_len;
    }
    let record = &mut state.record;
    let len = size_of::<SyscallRecord>() as u64 + tail;
    record.header.tag = TAG_SYSCALL;
    record.header.len = len as u32;
    record.header.time_ns = now;
    record.span = state.span;
    record.task = state.task;
    record.bios = state.bios;
    record.sleeps = state.sleeps;
    if let (true, Some(operation)) = (stores, operation.as_deref_mut()) {
        if tail == 0 {
            deferred::put(percpu, operation, TAG_SYSCALL, record);
        } else {
            // SAFETY: the tail lies directly behind the record in the task's state.
            let record = unsafe { &*(&raw const *record).cast::<SyscallWithContext>() };
            deferred::put(percpu, operation, TAG_SYSCALL, record);
        }
        return deferred::leave(percpu, operation, state.span);
    }
    // SAFETY: the tail lies directly behind the record in the task's state.
    unsafe {
        if tail == 0 {
            ring::put(percpu, TAG_SYSCALL, record);
        } else if own_tail | attributes_len == 0 {
            ring::put(percpu, TAG_SYSCALL, &*(&raw const *record).cast::<SyscallWithContext>());
        } else {
            ring::write(percpu, TAG_SYSCALL, (&raw const *record).cast(), len);
        }
    }
    if let Some(operation) = operation {
        deferred::leave(percpu, operation, state.span);
    }
}
