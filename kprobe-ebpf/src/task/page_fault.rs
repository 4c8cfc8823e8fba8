//! Page faults of a task outside system calls: a fault that reads from a device is a root, and the
//! parent of the bios that the task queues inside it.
//!
//! *In*: three hooks. mm_filemap_fault names the file page that a fault did not find in the page
//! table (`begin`). Before Linux 6.12 exceptions:page_fault_user replaces it, which names the address
//! (`begin_any`); the file is then that of the first bio's first page. block_bio_queue makes a span
//! of the fault (`on_bio`). The perf event of major faults fires in the task when such a fault has
//! ended (`end`).
//! *Out*: a `FaultRecord` for each major fault, and for each other fault that queued bios: it found
//! its own page in memory and started a read-ahead. Its end has no hook; it is written when the
//! task enters a system call, faults again or exits (`end_unseen`), with the last bio as its end.
//!
//! *Invariant*: a bio belongs to a fault only if it was queued before that fault ended. A stale
//! span claims nothing. The kernel counts each fault of a task when it ends (min_flt and maj_flt,
//! mm_account_fault in mm/memory.c), so an unchanged sum proves that the fault still lasts, also
//! when the kernel repeats it with another lock. The bit in_user_fault proves that the task is
//! inside a fault of its user mode (handle_mm_fault; kernels with CONFIG_MEMCG, since 6.12 with
//! CONFIG_MEMCG_V1). Without that bit a fault begins at mm_filemap_fault only.
//!
//! A fault inside a system call (copy_to_user) is part of that call: nothing here applies while one
//! is open.
//!
//! *Cost* (Linux 6.18, busy machine, the kernel's BPF statistics less the 51 ns of an empty program):
//! mm_filemap_fault 80 ns for a task that is not traced, 200 ns for a traced one. Faults that the
//! kernel maps together with a neighbouring page do not get there.
//!
//! *Rejected*: exceptions:page_fault_user as the begin on every kernel. It fires for every fault of
//! every task, of which one in thousands reads. A perf event of minor faults as their end, for the
//! same reason.

use super::thread_context;
use super::{TaskState, current, state, traced};
use crate::file::{inode, page};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use crate::runtime::settings::setting;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::context::ContextHead;
use blkkin_probe_abi::counters::{FAULTS_DROPPED, FAULTS_FILTERED, FAULTS_FIRED};
use blkkin_probe_abi::fault::*;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::{FileId, Header, SYSCALL_HAS_CONTEXT};
use blkkin_probe_abi::settings::{ORIGIN_SYSCALLS, Program, TASK_ACTIVE};

/// Task flags of threads without a user mode: of the kernel, of io_uring and of vhost
/// (include/linux/sched.h).
const NO_USER_MODE: u32 = 0x0020_0000 | 0x0000_0010 | 0x0000_4000;

/// Handles mm_filemap_fault(mapping, index), which the kernel repeats with a fault.
#[inline(always)]
pub fn begin<R: KernelRead>(mapping: Pointer, index: u64) {
    let task = current();
    let Some(state) = state(task) else { return };
    if !may_fault(task, state) || user_fault_bit(task) == Some(false) {
        return;
    }
    let ended = faults_ended(task);
    if state.fault.begin_ns != 0 && state.faults_before == ended {
        return;
    }
    if state.span != 0 {
        end_unseen(Program::FaultBegin as u32);
    }
    // SAFETY: the clock has no preconditions.
    reset(state, unsafe { bpf_ktime_get_ns() }, ended, FAULT_HAS_FILE | FAULT_HAS_PAGE);
    // SAFETY: `mapping` is of the kind that R reads.
    state.fault.file = unsafe { file_of::<R>(mapping) };
    state.fault.page = index;
}

/// Handles page_fault_user(address), where the kernel has no mm_filemap_fault: every fault of a user
/// mode begins here, and the file is unknown until the fault queues a bio.
#[inline(always)]
pub fn begin_any(address: u64) {
    let task = current();
    let Some(state) = state(task) else { return };
    if !may_fault(task, state) {
        return;
    }
    if state.span != 0 {
        end_unseen(Program::FaultBegin as u32);
    }
    // SAFETY: the clock has no preconditions.
    reset(state, unsafe { bpf_ktime_get_ns() }, faults_ended(task), FAULT_HAS_ADDRESS);
    state.fault.address = address;
}

/// Handles a bio of a task without an open system call: opens the span of the page fault that
/// queues it, if there is one. A global function, since its caller has no stack to spare.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn on_bio(bio: u64) -> u64 {
    let task = current();
    let Some(state) = state(task) else { return 0 };
    if !may_fault(task, state) {
        return 0;
    }
    let ended = faults_ended(task);
    let begun = state.fault.begin_ns != 0 && state.faults_before == ended;
    if state.span != 0 && !begun {
        end_unseen(Program::BioQueue as u32);
    }
    if !user_fault_bit(task).unwrap_or(begun) {
        return 0;
    }
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    if !begun {
        reset(state, now, ended, FAULT_BEGIN_UNSEEN);
    }
    if state.span == 0 {
        let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
        state.fault.span = percpu.next_span_id(Program::BioQueue);
        state.fault.task_version = state.version;
        state.span = state.fault.span;
        state.span_start_ns = state.fault.begin_ns;
        state.bios = 0;
        if state.fault.header.flags & FAULT_HAS_FILE == 0 {
            read_file(state, bio as Pointer);
        }
    }
    state.fault.end_ns = now;
    0
}

/// Handles the perf event of major faults, in the task that faulted, after the kernel has counted
/// the fault. `address` is the accessed address.
#[inline(always)]
pub fn end(address: u64) {
    let Some(percpu) = PerCpuState::of(Program::FaultEnd) else { return };
    let Some(state) = traced(percpu, Program::FaultEnd) else { return };
    let task = current();
    if !may_fault(task, state) {
        return;
    }
    let before = faults_ended(task).wrapping_sub(1);
    let begun = state.fault.begin_ns != 0 && state.faults_before == before;
    if state.span != 0 && !begun {
        end_unseen(Program::FaultEnd as u32);
    }
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    if !begun {
        reset(state, now, before, FAULT_BEGIN_UNSEEN);
    }
    if state.span == 0 {
        state.fault.span = percpu.next_span_id(Program::FaultEnd);
        state.fault.task_version = state.version;
        state.bios = 0;
    }
    state.fault.address = address;
    state.fault.end_ns = now;
    state.fault.header.flags |= FAULT_MAJOR | FAULT_HAS_ADDRESS;
    read_context(percpu, task, state);
    if is_filtered(state) {
        percpu.count(FAULTS_FILTERED);
        close(state);
    } else {
        write(percpu, state, now);
    }
}

/// Writes the record of the open page fault, whose end was not seen. `slot` is the slot of the
/// calling program. A global function: its callers have no stack to spare.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn end_unseen(slot: u32) -> u64 {
    let Some(state) = state(current()) else { return 0 };
    let Some(percpu) = PerCpuState::by_slot(slot) else { return 0 };
    if state.span == 0 || state.span != state.fault.span {
        return 0;
    }
    state.fault.header.flags |= FAULT_END_UNSEEN;
    // SAFETY: the clock has no preconditions.
    write(percpu, state, unsafe { bpf_ktime_get_ns() });
    0
}

/// Returns whether a page fault of the current task may be recorded now.
#[inline(always)]
fn may_fault(task: Pointer, state: &TaskState) -> bool {
    // SAFETY: `task` is typed.
    let flags: u32 = unsafe { DirectLoad::read(task, offset!(task_flags)) };
    setting!(kernel_origin) != ORIGIN_SYSCALLS
        && offset!(task_min_flt) != ABSENT
        && state.flags & TASK_ACTIVE != 0
        && !state.in_syscall()
        && flags & NO_USER_MODE == 0
}

/// Returns whether the current task is inside a page fault of its user mode; none if this kernel has
/// no such bit.
#[inline(always)]
fn user_fault_bit(task: Pointer) -> Option<bool> {
    let bit = offset!(task_in_user_fault_bit);
    if bit == ABSENT {
        return None;
    }
    // SAFETY: `task` is typed.
    let byte: u8 = unsafe { DirectLoad::read(task, bit / 8) };
    Some(byte >> (bit % 8) & 1 != 0)
}

/// Returns whether the current task is inside a page fault of its user mode.
#[inline(always)]
pub fn is_open(task: Pointer, state: &TaskState) -> bool {
    let begun = || state.fault.begin_ns != 0 && state.faults_before == faults_ended(task);
    may_fault(task, state) && user_fault_bit(task).unwrap_or_else(begun)
}

/// Returns the span of the open page fault, or 0 if it has none so far.
#[inline(always)]
pub fn open_span(task: Pointer, state: &TaskState) -> u64 {
    if state.faults_before == faults_ended(task) { state.span } else { 0 }
}

/// Returns the number of page faults of the current task that have ended.
#[inline(always)]
fn faults_ended(task: Pointer) -> u64 {
    // SAFETY: `task` is typed.
    unsafe {
        let minor: u64 = DirectLoad::read(task, offset!(task_min_flt));
        let major: u64 = DirectLoad::read(task, offset!(task_maj_flt));
        minor.wrapping_add(major)
    }
}

/// Reads the identity of the file with this mapping.
///
/// # Safety
/// `mapping` is a `struct address_space` of the kind that `R` reads.
#[inline(always)]
pub unsafe fn file_of<R: KernelRead>(mapping: Pointer) -> FileId {
    // SAFETY: by the contract.
    unsafe { inode::identity::<R>(R::read(mapping, offset!(mapping_host))) }
}

/// Reads the file from the first page of a bio. Memory without a file (swap) and pages of a file
/// system's own have none.
#[inline(always)]
fn read_file(state: &mut TaskState, bio: Pointer) {
    if offset!(bio_io_vec) == ABSENT || offset!(page_compound_head) == ABSENT {
        return;
    }
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let vector: Pointer = ProbeRead::read(bio, offset!(bio_io_vec));
        let Some(inode) = page::inode(page::folio(ProbeRead::read(vector, offset!(bvec_page)))) else {
            return;
        };
        if inode::file_type::<ProbeRead>(inode) != inode::S_IFREG {
            return;
        }
        state.fault.file = inode::identity::<ProbeRead>(inode);
        state.fault.header.flags |= FAULT_HAS_FILE;
    }
}

/// Begins the record of a page fault.
#[inline(always)]
fn reset(state: &mut TaskState, begin_ns: u64, ended: u64, flags: u16) {
    state.faults_before = ended;
    let fault = &mut state.fault;
    fault.header.flags = flags;
    fault.span = 0;
    fault.begin_ns = begin_ns;
    fault.address = 0;
    fault.file = FileId { dev: 0, generation: 0, ino: 0, name: 0 };
    fault.page = 0;
}

/// Copies the thread's context into the record. The thread is inside the fault, so it cannot change
/// it meanwhile. No system call is open, so its head and flags are free.
#[inline(always)]
fn read_context(percpu: &mut PerCpuState, task: Pointer, state: &mut TaskState) {
    state.record.header.flags = 0;
    state.context_fault = 0;
    thread_context::read_at_entry(percpu, task, state);
    if state.record.header.flags & SYSCALL_HAS_CONTEXT != 0 {
        state.fault.head = state.head;
        state.fault.header.flags |= FAULT_HAS_CONTEXT;
    }
}

/// Returns whether a filter drops this fault, like a system call without bios.
#[inline(always)]
fn is_filtered(state: &TaskState) -> bool {
    let fault = &state.fault;
    let fast = setting!(slower_than_ns) != 0 && fault.end_ns - fault.begin_ns < setting!(slower_than_ns);
    state.bios == 0
        && (setting!(block_only) != 0
            || ((fast || setting!(errors_only) != 0) && !thread_context::keeps_sampled(state)))
}

/// Writes the record, and closes the fault.
#[inline(always)]
fn write(percpu: &mut PerCpuState, state: &mut TaskState, now: u64) {
    let flags = state.fault.header.flags;
    if flags & FAULT_HAS_CONTEXT == 0 {
        state.fault.head = ContextHead::default();
    }
    state.fault.header =
        Header { tag: TAG_FAULT, sampling: 0, flags, len: size_of::<FaultRecord>() as u32, time_ns: now };
    state.fault.task = state.task;
    state.fault.bios = state.bios;
    state.fault.reserved = 0;
    ring::put_counted(percpu, FAULTS_FIRED, FAULTS_DROPPED, &state.fault);
    close(state);
}

#[inline(always)]
fn close(state: &mut TaskState) {
    state.span = 0;
    state.span_start_ns = 0;
    state.fault.begin_ns = 0;
    state.fault.span = 0;
}
