//! What a thread says of its work besides its span: the attributes behind its context's head (OTEP 4947), as bytes.
//!
//! *In*: a head that was read ([`context`](crate::context)) and says that so many bytes are behind it. *Out*: these bytes behind the head in
//! the call's record, all of them or none. User space takes them apart.
//!
//! *When*: at the call's entry, as the head: they are of the moment of submission. At its return where they could not be read at entry, or
//! where it was not known yet where they are to lie: behind path arguments, which are read at return too where they could not be at entry.
//! Either way nobody but the thread changes them, and it is in the call. Of a call whose return is not seen nothing is read later: the
//! thread may be elsewhere by then.
//!
//! *All or none*: an entry may stand for an earlier one of the same key, so the first half of them may say what is no longer so.
//!
//! *Cost*: of a head without attributes a comparison at entry and one at return. Of one with, one read of the process's memory into where
//! they are written from, so that nothing is copied within the kernel. The room makes a followed task's state 612 bytes larger. *Rejected*: task
//! storage of their own (nothing for tasks without, two more lookups and a copy a call, some 80 ns, for those with); a record of their
//! own in the ring (whoever reads would have to hold it until the call ends, and it is written for calls that a filter leaves out).

use crate::local::Local;
use crate::task::{PATHS, TaskState};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use blkkin_probe_abi::context::{ATTRIBUTES_MAX, HEAD_BYTES, Head};
use blkkin_probe_abi::counters::{ATTRIBUTES_CUT, ATTRIBUTES_UNREAD};
use blkkin_probe_abi::record::*;

/// Reads what the head says, at the call's entry.
#[inline(always)]
pub fn note(state: &mut TaskState) {
    if state.head.attributes != 0 && state.record.header.flags & CALL_PATH_FAULT == 0 {
        let at = head_at(own_tail(state));
        read(state, at);
    }
}

/// At the call's end, with the head at `at` in the tail: how many bytes are behind it.
#[inline(always)]
pub fn behind(local: &mut Local, state: &mut TaskState, at: u64) -> u64 {
    let bytes = state.head.attributes as u64;
    if bytes == 0 {
        return 0;
    }
    if bytes > ATTRIBUTES_MAX as u64 {
        local.count(ATTRIBUTES_CUT);
        return 0;
    }
    let flags = state.record.header.flags;
    if flags & (CALL_HAS_ATTRIBUTES | CALL_NO_EXIT) == 0 {
        read(state, at);
    }
    if state.record.header.flags & CALL_HAS_ATTRIBUTES == 0 {
        local.count(ATTRIBUTES_UNREAD);
        return 0;
    }
    bytes
}

/// Bytes of what the record has before its context: paths, or a second file.
#[inline(always)]
pub fn own_tail(state: &TaskState) -> u64 {
    if state.record.header.flags & CALL_HAS_SECOND != 0 {
        return size_of::<SecondFile>() as u64;
    }
    let own = state.record.path_len[0] as u64 + state.record.path_len[1] as u64;
    if own > PATHS as u64 { PATHS as u64 } else { own }
}

/// Where the head is behind so many: at the next multiple of 8.
#[inline(always)]
pub fn head_at(own: u64) -> u64 {
    (own + 7) & !7
}

/// Reads them behind the head, which is at `at` in the tail, if they are not too many.
#[inline(always)]
fn read(state: &mut TaskState, at: u64) {
    let (mut bytes, mut at) = (state.head.attributes as u64, at);
    // SAFETY: changes nothing. It hides from the compiler where both come from, or it would drop or move the tests that bound them for the
    // verifier.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) bytes, options(nomem, nostack, preserves_flags));
        core::arch::asm!("{0} = {0}", inout(reg) at, options(nomem, nostack, preserves_flags));
    }
    // What bounds `at` is what the verifier derives by itself from a sum of at most PATHS, rounded: 7 more than it can be. With PATHS here,
    // Linux 6.12 follows the branch that cannot be, where it holds a number that is 528 and above 528 at once, and then refuses the
    // program for what that number is added to (kernel/bpf/verifier.c, adjust_ptr_min_max_vals, "bounds derived from e.g. dead branches").
    if bytes == 0 || bytes > ATTRIBUTES_MAX as u64 || at > PATHS as u64 + 7 {
        return;
    }
    // SAFETY: behind the largest `at` there is room for a head and all that is read; the helper takes any user address.
    let read = unsafe {
        let to = (&raw mut state.tail).byte_add(at as usize + size_of::<Head>());
        let from = state.head_at.wrapping_add(HEAD_BYTES as u64);
        bpf_probe_read_user(to.cast(), bytes as u32, from as *const _)
    };
    if read == 0 {
        state.record.header.flags |= CALL_HAS_ATTRIBUTES;
    }
}
