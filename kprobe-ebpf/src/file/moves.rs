//! Count of moves on this machine: system calls of any task that rename a file or directory, or
//! change a mount.
//!
//! *In*: entry and exit of these calls. *Out*: [`count`], which has grown whenever a directory above
//! a file may have another name.
//!
//! *Invariant*: the count grows at the *exit* of a call. A path that was read before the move took
//! effect is read again by every call that starts after the move has returned. A call that runs at
//! the same time as the move gets the path before or after it.
//!
//! *Not counted*: moves without such a call. Where a rename by io_uring was seen
//! ([`on_async_work`]), or the loader has found a file server in the kernel, no path is taken for
//! unchanged. The file's own dentry is compared in any case (`name.rs`).
//!
//! *Rejected*: the kernel's own count, `rename_lock`. Its address is hidden without
//! CONFIG_KALLSYMS_ALL, and reading it costs 20 ns per call.

use crate::runtime::atomic::fetch_add;
use crate::runtime::layout::offset;
use crate::runtime::read::{KernelRead, Pointer};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;

/// Word 0: completed moves. Word 1: moves in progress. Word 2: nonzero if there may be unseen moves;
/// the loader sets it, too.
#[btf_map]
static MOVES: Array<[u64; 3], 1> = Array::new();

/// Notes the entry of a call that moves.
#[inline(always)]
pub fn begin() {
    add(1, 1);
}

/// Notes its exit.
#[inline(always)]
pub fn end() {
    add(0, 1);
    add(1, u64::MAX);
}

/// Returns whether a call that moves is in progress.
#[inline(always)]
pub fn in_progress() -> bool {
    word(1) != 0
}

/// IORING_OP_RENAMEAT (include/uapi/linux/io_uring.h).
const RENAMEAT: u8 = 35;

/// Handles io_uring_queue_async_work(request, ..). A rename always takes this way, to a worker
/// thread (REQ_F_FORCE_ASYNC), and its end is seen only at the price of a hook for every request.
/// So from the first one on no path is taken for unchanged.
#[inline(always)]
pub fn on_async_work<R: KernelRead>(request: Pointer) {
    // SAFETY: `request` is of the kind that R reads.
    let operation: u8 = unsafe { R::read(request, offset!(io_kiocb_opcode)) };
    if operation == RENAMEAT && word(2) == 0 {
        add(2, 1);
    }
}

/// Returns the number of completed moves; none if there may be unseen ones.
#[inline(always)]
pub fn count() -> Option<u64> {
    let words = MOVES.get_ptr_mut(0)?;
    // SAFETY: words of a map value, read whole.
    unsafe {
        if core::ptr::read_volatile(&raw const (*words)[2]) != 0 {
            return None;
        }
        Some(core::ptr::read_volatile(&raw const (*words)[0]))
    }
}

#[inline(always)]
fn word(index: usize) -> u64 {
    // SAFETY: a word of a map value, read whole.
    MOVES.get_ptr_mut(0).map_or(0, |words| unsafe { core::ptr::read_volatile(&raw const (*words)[index]) })
}

#[inline(always)]
fn add(index: usize, amount: u64) {
    if let Some(words) = MOVES.get_ptr_mut(0) {
        // SAFETY: a word of a map value.
        unsafe { fetch_add(&raw mut (*words)[index], amount) };
    }
}
