//! Capture of a system call's arguments: the files of its descriptors, their positions, and its
//! path arguments.

use crate::file::view::FileView;
use crate::file::{self, FdLookup, excluded};
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, Pointer, ProbeRead};
use crate::task::{TaskState, page_writes};
use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::SyscallShape;

/// Returns the argument at `index`; 0 beyond the sixth.
#[inline(always)]
fn arg(record: &SyscallRecord, index: u32) -> u64 {
    let mut index = index as u64;
    // SAFETY: changes nothing (but is an instruction: the kernel rejects line information without
    // one). It hides the origin of the index from the compiler. Otherwise the compiler would
    // compute the address from bits that the verifier cannot bound, and drop the test that bounds
    // them.
    unsafe { core::arch::asm!("{0} = {0}", inout(reg) index, options(nomem, nostack, preserves_flags)) };
    if index > 5 {
        return 0;
    }
    record.args[index as usize]
}

/// Records identity and position of the primary descriptor's file, and of the second one's.
#[inline(always)]
pub fn record_file(percpu: &mut PerCpuState, task: Pointer, state: &mut TaskState, shape: SyscallShape) {
    let position = shape.has(SyscallShape::POSITION);
    let fd = arg(&state.record, shape.fd() - 1) as u32;
    state.record.fd = fd as i32;
    let Some(found) = inspect_fd(percpu, task, fd, shape) else { return };
    if found.writable_inode != 0 {
        page_writes::begin(state, found.writable_inode);
    }
    if found.reads_page_cache {
        state.record.header.flags |= SYSCALL_READS_PAGE_CACHE;
    }
    state.file = found.address;
    state.record.file = found.id;
    state.record.header.flags |= SYSCALL_HAS_FILE;
    if position {
        state.record.position_before = found.position;
        state.record.header.flags |= SYSCALL_HAS_POSITION_BEFORE;
    }
    if shape.second_fd() != 0 {
        let fd = arg(&state.record, shape.second_fd() - 1) as u32;
        let writes = if shape.has(SyscallShape::WRITES_SECOND) { SECOND_WRITE } else { 0 };
        let Some(found) = inspect_fd(percpu, task, fd, SyscallShape(writes)) else { return };
        if found.writable_inode != 0 {
            page_writes::begin(state, found.writable_inode);
        }
        state.second_file = found.address;
        let second = SecondFile {
            file: found.id,
            position_before: found.position,
            position_after: -1,
            fd: fd as i32,
            reserved: 0,
        };
        // SAFETY: the tail is larger than a SecondFile, and aligned to 8.
        unsafe { (&raw mut state.tail).cast::<SecondFile>().write(second) };
        state.record.header.flags |= SYSCALL_HAS_SECOND;
    }
}

/// Returns whether the paths of all files of the call are excluded.
#[inline(always)]
pub fn has_excluded_files(state: &TaskState, shape: SyscallShape) -> bool {
    let flags = state.record.header.flags;
    if flags & SYSCALL_HAS_FILE == 0 || !excluded::is_excluded(state.record.file.name) {
        return false;
    }
    if shape.second_fd() == 0 {
        return true;
    }
    // SAFETY: as in `record_file`, which filled it in.
    let second = unsafe { &*(&raw const state.tail).cast::<SecondFile>() };
    flags & SYSCALL_HAS_SECOND != 0 && excluded::is_excluded(second.file.name)
}

/// Shape of a write to the second descriptor.
const SECOND_WRITE: u32 = SyscallShape::WRITES | SyscallShape::POSITION;

struct OpenFile {
    address: u64,
    id: FileId,
    position: i64,
    /// Address of the inode whose page cache a write may change; 0 for none.
    writable_inode: u64,
    /// A read of this file goes through the page cache.
    reads_page_cache: bool,
}

/// Returns the file that `fd` names now, and emits its path if needed.
#[inline(always)]
fn inspect_fd(percpu: &mut PerCpuState, task: Pointer, fd: u32, shape: SyscallShape) -> Option<OpenFile> {
    let view = FileView::of_fd(percpu, task, fd)?;
    let writable_inode = page_writes::inode(&view, shape);
    let reads_page_cache = shape.has(SyscallShape::READS) && page_writes::is_cached(&view);
    let (address, position) = (view.address, view.position);
    Some(OpenFile { address, position, id: view.named(percpu, 0), writable_inode, reads_page_cache })
}

/// Copies the path arguments into the tail of the record.
#[inline(always)]
pub fn copy_paths(state: &mut TaskState, shape: SyscallShape) {
    let first = copy_path(state, arg(&state.record, shape.path() - 1), 0);
    state.record.path_len[0] = first as u16;
    if shape.second_path() != 0 {
        let second = copy_path(state, arg(&state.record, shape.second_path() - 1), first);
        state.record.path_len[1] = second as u16;
    }
}

/// Copies one path argument to offset `at`, and returns its length without NUL. It requests one
/// byte more than it keeps, to detect truncation.
#[inline(always)]
fn copy_path(state: &mut TaskState, from: u64, at: usize) -> usize {
    const COPIED_MAX: usize = PATH_ARG_MAX + 2;
    if from == 0 {
        return 0;
    }
    let at = if at > PATH_ARG_MAX { return 0 } else { at };
    // SAFETY: `at + COPIED_MAX` is inside the tail; bpf_probe_read_user_str takes any user address.
    let copied = unsafe {
        let to = (&raw mut state.tail).cast::<u8>().add(at);
        bpf_probe_read_user_str(to.cast(), COPIED_MAX as u32, from as *const _)
    };
    if copied <= 0 || copied > COPIED_MAX as i64 {
        state.record.header.flags |= SYSCALL_PATH_FAULT;
        return 0;
    }
    if copied as usize == COPIED_MAX {
        state.record.header.flags |= SYSCALL_PATH_TRUNCATED;
        return PATH_ARG_MAX;
    }
    copied as usize - 1
}

/// Records the file that a system call opened, and emits its path.
#[inline(always)]
pub fn record_opened_file(percpu: &mut PerCpuState, task: Pointer, state: &mut TaskState, fd: u32, now: u64) {
    let Some(view) = FileView::of_fd(percpu, task, fd) else { return };
    state.record.fd = fd as i32;
    state.record.file = view.named(percpu, now);
    state.record.header.flags |= SYSCALL_HAS_FILE;
}

/// Returns the position of the file that `fd` named at entry, if it still names it. While a system
/// call is open the kernel holds its file, so an equal address is the same file.
#[inline(always)]
pub fn position_now(percpu: &mut PerCpuState, task: Pointer, fd: u32, file: u64) -> Option<i64> {
    // SAFETY: each pointer is read by the way it was found.
    unsafe {
        match file::lookup_fd(task, fd) {
            FdLookup::Typed(now) if percpu.address(now) == file => Some(file::position::<DirectLoad>(now)),
            FdLookup::Untyped(now) if now as u64 == file => Some(file::position::<ProbeRead>(now)),
            _ => None,
        }
    }
}
