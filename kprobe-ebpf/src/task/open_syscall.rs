//! Open system call of a task: its record in the task's state, and the write of that record to the
//! ring.

use super::attributes;
use super::page_writes;
use super::storage::TaskState;
use super::wait;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::ring;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::context::ContextHead;
use blkkin_probe_abi::counters::*;
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

/// Writes the record of a system call whose exit was missed.
#[inline(always)]
pub fn abandon(percpu: &mut PerCpuState, state: &mut TaskState) {
    if state.is_excluded() {
        state.span = 0;
        return;
    }
    state.record.header.flags |= SYSCALL_NO_EXIT;
    state.sleeps = 0;
    // SAFETY: the clock has no preconditions.
    write(percpu, state, unsafe { bpf_ktime_get_ns() });
    page_writes::end(state);
    state.span = 0;
}

#[inline(always)]
pub fn write(percpu: &mut PerCpuState, state: &mut TaskState, now: u64) {
    wait::write(percpu, state, now);
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
}
