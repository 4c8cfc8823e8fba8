//! Pages that a task makes dirty by a store into a shared mapping.
//!
//! *In*: writeback_dirty_folio, which fires when a folio of a regular file goes from clean to dirty.
//! *Out*: a `DirtyRecord` if the current task is inside a page fault of its user mode: the store
//! that faulted made the folio writable (page_mkwrite).
//!
//! *Limits*: a store into a page that is writable already makes no fault and has no record: the
//! first store after each write-back is the only one. The folio may be larger than a page. Stores by
//! the kernel inside a system call (a read into the mapping) are not recorded.
//!
//! *Cost* (measured as in `page_fault`): 50 ns for each folio that a task which is not traced makes
//! dirty, 200 ns with a record.
//!
//! *Rejected*: page_mkwrite itself. It has no tracepoint, and the file systems implement it each in
//! its own way.

use crate::file::inode;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer};
use crate::runtime::ring;
use crate::task::{self, page_fault};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::{DIRTY_DROPPED, DIRTY_FIRED};
use blkkin_probe_abi::fault::{DirtyRecord, TAG_DIRTY};
use blkkin_probe_abi::record::{BioPagesRecord, Header};
use blkkin_probe_abi::settings::Program;

/// Handles writeback_dirty_folio(folio, mapping).
#[inline(always)]
pub fn folio<R: KernelRead>(folio: Pointer, mapping: Pointer) {
    if folio.is_null() || mapping.is_null() {
        return;
    }
    let task = task::current();
    // Most folios become dirty inside a write call.
    if !task::state(task).is_some_and(|state| page_fault::is_open(task, state)) {
        return;
    }
    // SAFETY: `mapping` is of the kind that R reads.
    let file_type = unsafe { inode::file_type::<R>(R::read(mapping, offset!(mapping_host))) };
    if file_type != inode::S_IFREG {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::Dirty) else { return };
    let Some(state) = task::traced(percpu, Program::Dirty) else { return };
    // SAFETY: both are of the kind that R reads; the clock has no preconditions. The record is built in the slot,
    // field by field, because with it on the stack this program exceeds 512 bytes on Linux 6.1. No bio needs the place.
    unsafe {
        const { assert!(size_of::<DirtyRecord>() <= size_of::<BioPagesRecord>()) };
        let record = (&raw mut percpu.pages).cast::<DirtyRecord>();
        let len = size_of::<DirtyRecord>() as u32;
        let time_ns = bpf_ktime_get_ns();
        (&raw mut (*record).header).write(Header { tag: TAG_DIRTY, sampling: 0, flags: 0, len, time_ns });
        (&raw mut (*record).span).write(page_fault::open_span(task, state));
        (&raw mut (*record).task).write(state.task);
        (&raw mut (*record).file).write(page_fault::file_of::<R>(mapping));
        (&raw mut (*record).page).write(R::read(folio, offset!(folio_index)));
        (&raw mut (*record).pages).write(pages::<R>(folio));
        (&raw mut (*record).task_version).write(state.version);
        (&raw mut (*record).reserved).write(0);
        ring::put_counted(percpu, DIRTY_FIRED, DIRTY_DROPPED, &*record);
    }
}

/// Returns the number of pages of a folio. Only a folio with PG_head has the field.
///
/// # Safety
/// `folio` is of the kind that `R` reads.
#[inline(always)]
unsafe fn pages<R: KernelRead>(folio: Pointer) -> u32 {
    // SAFETY: by the contract.
    unsafe {
        let flags: u64 = R::read(folio, offset!(folio_flags));
        if flags >> (offset!(folio_head_bit) & 63) & 1 == 0 {
            return 1;
        }
        R::read(folio, offset!(folio_nr_pages))
    }
}
