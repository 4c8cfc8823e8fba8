//! Thread attributes: the attributes after the head of a thread's context record (OTEP 4947), as
//! bytes.
//!
//! *In*: the head that [`thread_context`](super::thread_context) read, with its number of attribute
//! bytes. *Out*: these bytes after the head in the system call's record, all or none. User space
//! decodes them.
//!
//! *When*: at the entry of the system call, like the head, so they describe the moment of
//! submission. They are read at return if they were unreadable at entry, or if their position was
//! still unknown: they follow path arguments, which are read at return too if they were unreadable
//! at entry. In both cases only the thread itself changes them, and it is inside the system call. A
//! system call without a seen return gets no late read: the thread may be elsewhere by then.
//!
//! *All or none*: a later entry may override an earlier one of the same key, so the first half may
//! be outdated.
//!
//! *Cost*: for a head without attributes one comparison at entry and one at return. With
//! attributes, one read of the process's memory into the buffer that the record is written from, so
//! nothing is copied within the kernel. The buffer adds 612 bytes to a traced task's state.
//! *Rejected*: separate task storage (free for tasks without attributes, but two lookups and a copy
//! per system call, some 80 ns, for those with); a separate ring record (the reader would have to
//! keep it until the system call ends, and it would be written for filtered system calls).

use super::storage::{PATHS, TaskState};
use crate::runtime::percpu::PerCpuState;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use blkkin_probe_abi::context::{ATTRIBUTES_MAX, ContextHead, HEAD_BYTES};
use blkkin_probe_abi::counters::{ATTRIBUTES_TOO_LONG, ATTRIBUTES_UNREAD};
use blkkin_probe_abi::record::*;

/// Reads the attributes at the entry of the system call.
#[inline(always)]
pub fn read_at_entry(state: &mut TaskState) {
    if state.head.attribute_bytes != 0 && state.record.header.flags & SYSCALL_PATH_FAULT == 0 {
        let at = head_offset(tail_before_context(state));
        read(state, at);
    }
}

/// Adds the attributes at the end of the system call, with the head at offset `at` of the tail.
/// Returns their number of bytes.
#[inline(always)]
pub fn append(percpu: &mut PerCpuState, state: &mut TaskState, at: u64) -> u64 {
    let bytes = state.head.attribute_bytes as u64;
    if bytes == 0 {
        return 0;
    }
    if bytes > ATTRIBUTES_MAX as u64 {
        percpu.count(ATTRIBUTES_TOO_LONG);
        return 0;
    }
    let flags = state.record.header.flags;
    if flags & (SYSCALL_HAS_ATTRIBUTES | SYSCALL_NO_EXIT) == 0 {
        read(state, at);
    }
    if state.record.header.flags & SYSCALL_HAS_ATTRIBUTES == 0 {
        percpu.count(ATTRIBUTES_UNREAD);
        return 0;
    }
    bytes
}

/// Returns the bytes of the record's tail before the context: paths, or a second file.
#[inline(always)]
pub fn tail_before_context(state: &TaskState) -> u64 {
    if state.record.header.flags & SYSCALL_HAS_SECOND != 0 {
        return size_of::<SecondFile>() as u64;
    }
    let own = state.record.path_len[0] as u64 + state.record.path_len[1] as u64;
    if own > PATHS as u64 { PATHS as u64 } else { own }
}

/// Returns whether the record may have a tail other than a context head without attributes.
#[inline(always)]
pub fn may_have_other_tail(state: &TaskState) -> bool {
    let has_context = state.record.header.flags & SYSCALL_HAS_CONTEXT != 0;
    tail_before_context(state) != 0 || (has_context && state.head.attribute_bytes != 0)
}

/// Returns the offset of the head after `own` bytes of tail: the next multiple of 8.
#[inline(always)]
pub fn head_offset(own: u64) -> u64 {
    (own + 7) & !7
}

/// Reads the attributes after the head, which is at offset `at` of the tail, unless they are too
/// long.
#[inline(always)]
fn read(state: &mut TaskState, at: u64) {
    let (mut bytes, mut at) = (state.head.attribute_bytes as u64, at);
    // SAFETY: changes nothing. It hides the origin of both values from the compiler, which would
    // otherwise drop or move the tests that bound them for the verifier.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) bytes, options(nomem, nostack, preserves_flags));
        core::arch::asm!("{0} = {0}", inout(reg) at, options(nomem, nostack, preserves_flags));
    }
    // The bound of `at` is the one that the verifier derives from a rounded sum of at most PATHS: 7
    // more than possible. With PATHS here, Linux 6.12 follows the impossible branch, where it holds
    // a number that is 528 and above 528 at once. It then rejects the program for the addition of
    // that number (kernel/bpf/verifier.c, adjust_ptr_min_max_vals, "bounds derived from e.g. dead
    // branches").
    if bytes == 0 || bytes > ATTRIBUTES_MAX as u64 || at > PATHS as u64 + 7 {
        return;
    }
    // SAFETY: after the largest `at` there is room for a head and all the bytes read;
    // bpf_probe_read_user takes any user address.
    let read = unsafe {
        let to = (&raw mut state.tail).byte_add(at as usize + size_of::<ContextHead>());
        let from = state.head_address.wrapping_add(HEAD_BYTES as u64);
        bpf_probe_read_user(to.cast(), bytes as u32, from as *const _)
    };
    if read == 0 {
        state.record.header.flags |= SYSCALL_HAS_ATTRIBUTES;
    }
}
