//! Open writes: how many traced system calls are open that may write pages of a file.
//!
//! *In*: the entry and end of write calls. *Out*: a number by inode, for the origin of a bio's
//! pages. *Invariant*: a call is counted from before its first byte reaches a page until its record
//! is written. So 0 at the time when a bio is queued means: the records of all calls that wrote into
//! its pages are in the rings already.
//!
//! The counters are an array without keys: inodes that share a counter can make the number too
//! large, never too small. The consumer then waits longer for calls that do not concern it.

use super::storage::TaskState;
use crate::file::inode;
use crate::file::view::FileView;
use crate::runtime::atomic::fetch_add;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::in_flight::set_of;
use blkkin_probe_abi::record::SYSCALL_WRITES_PAGE_CACHE;
use blkkin_probe_abi::settings::SyscallShape;

/// Number of counters. 1,000 inodes with open writes collide in 3 % of all pairs of calls.
const COUNTERS: usize = 16_384;

#[btf_map]
static OPEN_WRITES: Array<u64, COUNTERS> = Array::new();

/// O_DIRECT (include/uapi/asm-generic/fcntl.h; arm64 has its own).
const O_DIRECT: u32 = if cfg!(bpf_target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };

/// O_APPEND, with which pwrite ignores its offset (pwrite(2), section BUGS).
const O_APPEND: u32 = 0o2_000;

/// Returns the address of the inode whose pages a write to this file may change, if the record of
/// the call will have the range. 0 for direct I/O, which bypasses the page cache.
#[inline(always)]
pub fn inode(file: &FileView, shape: SyscallShape) -> u64 {
    if !shape.has(SyscallShape::WRITES) {
        return 0;
    }
    let bypass = if shape.has(SyscallShape::POSITION) { O_DIRECT } else { O_DIRECT | O_APPEND };
    if file.flags & bypass == 0 && file.file_type == inode::S_IFREG { file.inode } else { 0 }
}

/// Returns whether reads of this file go through the page cache.
#[inline(always)]
pub fn is_cached(file: &FileView) -> bool {
    file.flags & O_DIRECT == 0 && file.file_type == inode::S_IFREG
}

/// Counts the write call that the task enters.
#[inline(always)]
pub fn begin(state: &mut TaskState, inode: u64) {
    let counter = set_of(inode, COUNTERS);
    state.record.header.flags |= SYSCALL_WRITES_PAGE_CACHE;
    state.open_write = counter + 1;
    add(counter, 1);
}

/// Ends the count of the task's call, if it is counted.
#[inline(always)]
pub fn end(state: &mut TaskState) {
    if state.open_write != 0 {
        add(state.open_write - 1, u64::MAX);
        state.open_write = 0;
    }
}

/// Returns the number of open calls that may write pages of this inode.
#[inline(always)]
pub fn open(inode: u64) -> u32 {
    match OPEN_WRITES.get_ptr_mut(set_of(inode, COUNTERS)) {
        // SAFETY: a word of the map.
        Some(counter) => unsafe { core::ptr::read_volatile(counter) as u32 },
        None => 0,
    }
}

#[inline(always)]
fn add(counter: u32, by: u64) {
    if let Some(counter) = OPEN_WRITES.get_ptr_mut(counter) {
        // SAFETY: a word of the map.
        unsafe { fetch_add(counter, by) };
    }
}
