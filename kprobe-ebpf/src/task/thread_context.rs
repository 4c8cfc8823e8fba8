//! Thread contexts: the span of its own that a thread works for when it makes a system call. The
//! thread publishes it by OpenTelemetry's thread context (OTEP 4947), a pointer in its thread-local
//! storage to a record.
//!
//! *In*: the TLS slots of processes, which user space has found (the tracer's context scanner).
//! *Out*: the record's head in the state of the open system call, and its attributes
//! ([`attributes`]).
//!
//! *Cost*. The slot is looked up once per thread: each task's state caches its address, with the
//! version of the slots and the thread pointer that it is valid for. A system call of a thread
//! whose process publishes nothing pays for two loads and two comparisons; other threads pay for
//! two reads of their memory.
//!
//! *Correctness*. Only the thread itself changes its slot and its record, and it is inside the
//! system call. So the values at entry are those at return, and a failed read at entry is retried
//! at return. (A probe's read takes no page fault, and a page of a healthy program may be swapped
//! out.)
//! A slot belongs to one address space. A forked child has a copy of its parent's memory, and
//! inherits its slot before it runs; from then on the slot is the child's own. A process loses its
//! slot when the defining library is unmapped, when it executes another program, and when its last
//! thread exits.
//!
//! *Rejected*: a child that uses its parent's slot until user space assigns one. It would also
//! require knowing whether the child has unmapped the library, and whether the parent had the slot
//! at the fork; and a parent that exits, whose child is reparented, breaks even that. Each of these
//! cases was once a wrong link.

use super::attributes;
use super::storage::{TaskState, current};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::setting;
use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{Array, HashMap};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::context::{ContextHead, HEAD_BYTES, TLS_CLAIMED, TLS_SLOTS_MAX, TLS_STATIC, TlsSlot};
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::SYSCALL_HAS_CONTEXT;
use blkkin_probe_abi::settings::CONTEXTS_KEEP_SAMPLED;

/// TLS slots by process id. User space writes them; here a child inherits its parent's, and a
/// process that unmaps its library, executes a program or exits loses its slot.
#[btf_map]
static TLS_SLOTS: HashMap<u32, TlsSlot, { TLS_SLOTS_MAX as usize }, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// Number of slots that user space added or changed, and number of slots removed here: their sum is
/// the version of the slots. Without slots it is 0, as in a new task's state.
#[btf_map]
static TLS_SLOTS_VERSION: Array<u64, 2> = Array::new();

/// Value of `valid` in a record that may be read.
const VALID: u8 = 1;
/// Sampled flag of the trace flags (W3C trace context).
const SAMPLED: u8 = 1;

/// Returns whether the thread may publish a context. False costs one comparison.
#[inline(always)]
pub fn may_exist(state: &TaskState) -> bool {
    setting!(contexts) != 0
        && version().is_some_and(|version| state.slots_version != version || state.publishes_context != 0)
}

/// Reads the thread's context at the entry of a system call.
#[inline(always)]
pub fn read_at_entry(percpu: &mut PerCpuState, task: Pointer, state: &mut TaskState) {
    if setting!(contexts) == 0 || offset!(task_thread_pointer) == ABSENT || offset!(mm_start_stack) == ABSENT
    {
        return;
    }
    let Some(version) = version() else { return };
    let fresh = state.slots_version == version;
    if fresh && state.publishes_context == 0 {
        return;
    }
    let thread = thread_pointer(task, state);
    // The slots changed, or the thread had no slot so far, or its thread-local storage has moved.
    if !fresh || state.tls_slot == 0 || state.thread_pointer != thread {
        let found = find_slot(thread);
        state.slots_version = version;
        state.publishes_context = (found != NO_SLOT) as u32;
        state.tls_slot = if found == SLOT_PENDING { 0 } else { found };
        state.thread_pointer = thread;
    }
    if state.tls_slot == 0 {
        return;
    }
    read(percpu, state);
    if state.context_fault != 0 {
        percpu.count(CONTEXTS_FAULTED);
        // The slot may no longer exist.
        state.slots_version = 0;
    } else if state.record.header.flags & SYSCALL_HAS_CONTEXT != 0 {
        attributes::read_at_entry(state);
    }
}

/// Retries at the return of a system call the read that failed at entry.
#[inline(always)]
pub fn read_at_return(percpu: &mut PerCpuState, state: &mut TaskState) {
    if setting!(contexts) == 0 || state.context_fault == 0 {
        return;
    }
    read(percpu, state);
    if state.context_fault != 0 {
        percpu.count(CONTEXTS_UNREAD);
    }
}

/// Returns whether the open system call is kept because the program samples its trace, if
/// configured.
#[inline(always)]
pub fn keeps_sampled(state: &TaskState) -> bool {
    setting!(contexts) & CONTEXTS_KEEP_SAMPLED != 0
        && state.record.header.flags & SYSCALL_HAS_CONTEXT != 0
        && state.head.flags & SAMPLED != 0
}

/// Resets the cached slot of a task that executes another program. Its thread pointer is still the
/// previous program's.
#[inline(always)]
pub fn reset_at_exec(task: Pointer, state: &mut TaskState) {
    state.slots_version = 0;
    state.publishes_context = 0;
    state.tls_slot = 0;
    if setting!(contexts) != 0 && offset!(task_thread_pointer) != ABSENT {
        // SAFETY: `task` is typed.
        unsafe {
            state.exec_thread_pointer = DirectLoad::read(task, offset!(task_thread_pointer));
            state.exec_sleeps = DirectLoad::read::<u64>(task, offset!(task_nvcsw)) as u32;
        }
    }
}

/// Returns the current thread pointer; 0 for none so far.
///
/// x86 clears the register at execve (start_thread_common, arch/x86/kernel/process_64.c), but the
/// task's copy of it only at the next context switch. Until then, or until the program sets its
/// own, the copy is the previous program's. A program that sets the same value again (without
/// address randomisation) is read once it has slept.
#[inline(always)]
fn thread_pointer(task: Pointer, state: &TaskState) -> u64 {
    // SAFETY: `task` is typed.
    unsafe {
        let thread: u64 = DirectLoad::read(task, offset!(task_thread_pointer));
        if thread == state.exec_thread_pointer
            && DirectLoad::read::<u64>(task, offset!(task_nvcsw)) as u32 == state.exec_sleeps
        {
            return 0;
        }
        thread
    }
}

/// Handles munmap(begin, bytes): it may unmap the library that defines the slots, which then no
/// longer exist. The state of this task does not matter, because it may unmap for the other
/// threads. Called at the entry of the system call, and again at its return: user space may have
/// found the library in between, while it was still mapped.
#[inline(always)]
pub fn on_munmap(begin: u64, bytes: u64) {
    if slots_exist() {
        remove_unmapped(begin, bytes);
    }
}

/// Returns whether any process may have a slot.
#[inline(always)]
pub fn slots_exist() -> bool {
    setting!(contexts) != 0 && version().is_some_and(|version| version != 0)
}

/// Reads the slot and the head that it points at.
#[inline(always)]
fn read(percpu: &mut PerCpuState, state: &mut TaskState) {
    state.context_fault = 0;
    // SAFETY: both reads write fields of the state; bpf_probe_read_user takes any user address.
    unsafe {
        if bpf_probe_read_user((&raw mut state.head_address).cast(), 8, state.tls_slot as *const _) != 0 {
            state.context_fault = 1;
            return;
        }
        if state.head_address == 0 {
            return;
        }
        let head = (&raw mut state.head).cast();
        if bpf_probe_read_user(head, HEAD_BYTES as u32, state.head_address as *const _) != 0 {
            state.context_fault = 1;
            return;
        }
    }
    if state.head.valid != VALID {
        return;
    }
    match classify(&state.head) {
        HeadIds::Span => {}
        // The flags belong to no trace.
        HeadIds::None if state.head.attribute_bytes != 0 => state.head.flags = 0,
        HeadIds::None => return,
        HeadIds::Partial => {
            percpu.count(CONTEXTS_INVALID);
            return;
        }
    }
    state.record.header.flags |= SYSCALL_HAS_CONTEXT;
}

/// Classifies the ids of a head. An all-zero trace or span id is invalid (W3C trace context). If
/// both are zero, the thread works for no span, and may still publish attributes (OTEP 4947,
/// *Thread-Local Context Record*).
#[inline(always)]
fn classify(head: &ContextHead) -> HeadIds {
    // SAFETY: a head is 4 words, aligned as such in a task's state.
    let words = unsafe { &*core::ptr::from_ref(head).cast::<[u64; 3]>() };
    let (trace, span) = (words[0] | words[1], words[2]);
    if trace | span == 0 {
        HeadIds::None
    } else if trace == 0 || span == 0 {
        HeadIds::Partial
    } else {
        HeadIds::Span
    }
}

enum HeadIds {
    Span,
    None,
    Partial,
}

#[inline(always)]
fn version() -> Option<u32> {
    let (updates, removals) = (TLS_SLOTS_VERSION.get_ptr(0)?, TLS_SLOTS_VERSION.get_ptr(1)?);
    // SAFETY: each is read whole.
    unsafe { Some((core::ptr::read_volatile(updates) + core::ptr::read_volatile(removals)) as u32) }
}

/// Result of [`find_slot`]: the process publishes nothing.
const NO_SLOT: u64 = 0;
/// Result of [`find_slot`]: the process publishes, but the thread has no slot yet, because it has
/// not needed the TLS block, or has no thread-local storage. (Not an address of a slot: no multiple
/// of 8.)
const SLOT_PENDING: u64 = 1;

/// Finds the current thread's slot. A global function for the verifier: it is called rarely and has
/// its own stack. It does not touch the task's state, which its caller holds.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_slot(thread: u64) -> u64 {
    let Some(slot) = tls_slot_of(current()) else { return NO_SLOT };
    if slot.kind == TLS_CLAIMED {
        return NO_SLOT;
    }
    // System calls of the loader before it has set the thread pointer.
    if thread == 0 {
        return SLOT_PENDING;
    }
    if slot.kind == TLS_STATIC {
        return thread.wrapping_add(slot.offset);
    }
    slot_in_tls_block(thread, slot).unwrap_or(SLOT_PENDING)
}

/// Returns the slot in the thread's TLS block of the module; none if the thread has not allocated
/// the block.
#[inline(always)]
fn slot_in_tls_block(thread: u64, slot: &TlsSlot) -> Option<u64> {
    let vector = read_user_word(thread.wrapping_add(slot.dtv_offset))?;
    let length = read_user_word(vector.wrapping_add(slot.dtv_length_offset))?;
    if slot.module > length {
        return None;
    }
    let entry = slot.module.wrapping_mul(slot.dtv_stride as u64);
    let block = read_user_word(vector.wrapping_add(entry))?;
    // glibc marks an absent block with -1 (TLS_DTV_UNALLOCATED, sysdeps/generic/dl-tls.h).
    if block == 0 || block == u64::MAX { None } else { Some(block.wrapping_add(slot.offset)) }
}

#[inline(always)]
fn read_user_word(address: u64) -> Option<u64> {
    let mut word = 0u64;
    // SAFETY: a word on the stack; bpf_probe_read_user takes any user address.
    let read = unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, address as *const _) };
    if read == 0 { Some(word) } else { None }
}

/// Returns the TLS slot of a task's process.
#[inline(always)]
fn tls_slot_of(task: Pointer) -> Option<&'static TlsSlot> {
    // SAFETY: typed from the task on. A slot entry is replaced as a whole, and lives until the
    // program has ended.
    unsafe {
        let mm: Pointer = DirectLoad::read(task, offset!(task_mm));
        if mm.is_null() {
            return None;
        }
        let (stack, code): (u64, u64) =
            (DirectLoad::read(mm, offset!(mm_start_stack)), DirectLoad::read(mm, offset!(mm_start_code)));
        let slot = TLS_SLOTS.get(DirectLoad::read::<u32>(task, offset!(task_tgid)))?;
        if slot.start_stack == stack && slot.start_code == code { Some(slot) } else { None }
    }
}

/// Handles the fork of a child that does not run yet and has a copy of the current task's memory.
#[inline(always)]
pub fn on_fork<R: KernelRead>(percpu: &mut PerCpuState, child: Pointer) {
    // SAFETY: `child` is of the kind that R reads.
    if slots_exist() && inherit_slot(unsafe { R::read(child, offset!(task_tgid)) }) != 0 {
        percpu.count(CONTEXTS_NO_ROOM);
    }
}

/// Copies the slot of the current process to the process of this id; returns 1 if the map has no
/// room for it. A slot that is only claimed is not copied: user space does not wait for a second
/// process.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn inherit_slot(child: u32) -> u32 {
    // SAFETY: the task is typed; a slot entry is replaced as a whole.
    let (process, slot) = unsafe {
        let process: u32 = DirectLoad::read(current(), offset!(task_tgid));
        (process, TLS_SLOTS.get(process))
    };
    match slot {
        Some(slot) if process != child && slot.kind != TLS_CLAIMED => {
            u32::from(TLS_SLOTS.insert(child, slot, 0).is_err())
        }
        _ => 0,
    }
}

/// Handles the exec of another program by the current task.
#[inline(always)]
pub fn on_exec() {
    if slots_exist() {
        remove_slot();
    }
}

/// Handles the exit of the current task: the slot of its process goes with the last thread (do_exit
/// decrements the count before this hook, kernel/exit.c).
#[inline(always)]
pub fn on_exit(task: Pointer) {
    if !slots_exist() {
        return;
    }
    // SAFETY: typed from the task on.
    let live: u32 = unsafe {
        let signal: Pointer = DirectLoad::read(task, offset!(task_signal));
        DirectLoad::read(signal, offset!(signal_live))
    };
    if live == 0 {
        remove_slot();
    }
}

/// Removes the slot of the current process.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn remove_slot() -> u32 {
    // SAFETY: the task is typed.
    let process: u32 = unsafe { DirectLoad::read(current(), offset!(task_tgid)) };
    TLS_SLOTS.remove(process).is_ok() as u32
}

/// Removes the slot of the current process if it is within the unmapped range; if the parent shares
/// its memory (vfork), also the parent's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn remove_unmapped(begin: u64, bytes: u64) -> u64 {
    let task = current();
    // SAFETY: `task` is typed; the version is a word of a map's value.
    unsafe {
        let parent: Pointer = DirectLoad::read(task, offset!(task_real_parent));
        let memory: [u64; 2] =
            [DirectLoad::read(task, offset!(task_mm)), DirectLoad::read(parent, offset!(task_mm))];
        let mut removed = remove_if_unmapped(DirectLoad::read(task, offset!(task_tgid)), begin, bytes);
        if memory[0] != 0 && memory[0] == memory[1] {
            removed |= remove_if_unmapped(DirectLoad::read(parent, offset!(task_tgid)), begin, bytes);
        }
        if !removed {
            return 0;
        }
        if let Some(removals) = TLS_SLOTS_VERSION.get_ptr_mut(1) {
            crate::runtime::atomic::fetch_add(removals, 1);
        }
    }
    1
}

/// Removes a process's slot if its anchor is within the range.
#[inline(always)]
fn remove_if_unmapped(process: u32, begin: u64, bytes: u64) -> bool {
    // SAFETY: a slot entry is replaced as a whole.
    let slot = unsafe { TLS_SLOTS.get(process) };
    let within = slot.is_some_and(|slot| slot.anchor != 0 && slot.anchor.wrapping_sub(begin) < bytes);
    within && TLS_SLOTS.remove(process).is_ok()
}
