//! Which span of its own a program works for when it calls: what its thread publishes by OpenTelemetry's thread context
//! (OTEP 4947), a pointer in its thread-local storage to a record.
//!
//! *In*: the places of processes, which user space has found (`tracer/src/context`). *Out*: the record's head beside the open call, and
//! what is behind it ([`attributes`](crate::attributes)).
//!
//! *Cost*. Where it is, is looked up once a thread: each task's state remembers the slot's address, and for which version of
//! the places and which thread pointer it holds. A thread of a process that publishes nothing pays for two loads and two
//! comparisons a call; another one for two reads of its memory.
//!
//! *True*. A thread is the only one that changes its slot and its record, and it is in the call: so what is there at entry is
//! there at return too, and what could not be read at entry is read then (the kernel does not take a fault for a probe, and a page of
//! a healthy program may be swapped out). A place is of one address space. Who is forked has a copy of his parent's memory and is given
//! its place with it, before he runs: from then on it is his own. It is taken from a process when the library that has it is unmapped, when it
//! executes another program, and when its last thread ends.
//!
//! *Rejected*: a child that looks into its parent's place until user space has given it one. Whether the child has unmapped what that lies in, and
//! whether the parent had it when the child was forked, must then be known besides; and a parent that ends, whose child becomes another's, makes
//! even that not enough. Each of these was a wrong link once.

use crate::access::{Access, Direct, Pointer};
use crate::attributes;
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::task::{self, TaskState};
use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{Array, HashMap};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::context::{HEAD_BYTES, Head, PLACE_CLAIMED, PLACE_STATIC, PLACES_MAX, Place};
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::CALL_HAS_CONTEXT;
use blkkin_probe_abi::settings::CONTEXTS_KEEP_SAMPLED;

/// By process id. User space writes it; here a child is given its parent's, and what is unmapped or ends loses it.
#[btf_map]
static PLACES: HashMap<u32, Place, { PLACES_MAX as usize }, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// How often places were added or changed, which user space counts, and how often one was taken away here: their sum is the
/// version of the places. As long as there is none it is 0, which is what a new task's state has seen.
#[btf_map]
static PLACES_VERSION: Array<u64, 2> = Array::new();

/// The record says that it may be read.
const VALID: u8 = 1;
/// Of the trace flags (W3C trace context).
const SAMPLED: u8 = 1;

/// Notes at a call's entry for which span its thread works.
#[inline(always)]
pub fn note(local: &mut Local, task: Pointer, state: &mut TaskState) {
    if setting!(contexts) == 0 || offset!(task_thread_pointer) == ABSENT || offset!(mm_start_stack) == ABSENT
    {
        return;
    }
    let Some(version) = version() else { return };
    let fresh = state.places_seen == version;
    if fresh && state.publishes == 0 {
        return;
    }
    let thread = thread_pointer(task, state);
    // Something changed; or the thread had no slot so far; or it has other thread-local storage now.
    if !fresh || state.slot == 0 || state.thread != thread {
        let found = find_slot(thread);
        state.places_seen = version;
        state.publishes = (found != NOTHING) as u32;
        state.slot = if found == NOT_YET { 0 } else { found };
        state.thread = thread;
    }
    if state.slot == 0 {
        return;
    }
    read(local, state);
    if state.context_fault != 0 {
        local.count(CONTEXTS_FAULTED);
        // It may be a slot that is no more.
        state.places_seen = 0;
    } else if state.record.header.flags & CALL_HAS_CONTEXT != 0 {
        attributes::note(state);
    }
}

/// Tries once more at a call's return what failed at its entry.
#[inline(always)]
pub fn retry(local: &mut Local, state: &mut TaskState) {
    if setting!(contexts) == 0 || state.context_fault == 0 {
        return;
    }
    read(local, state);
    if state.context_fault != 0 {
        local.count(CONTEXTS_UNREAD);
    }
}

/// Whether the open call is to be kept because its program samples the trace that it names, if that is asked for.
#[inline(always)]
pub fn keeps(state: &TaskState) -> bool {
    setting!(contexts) & CONTEXTS_KEEP_SAMPLED != 0
        && state.record.header.flags & CALL_HAS_CONTEXT != 0
        && state.head.flags & SAMPLED != 0
}

/// The task executes another program, and its thread pointer is still the one that the program before it has set.
#[inline(always)]
pub fn forget(task: Pointer, state: &mut TaskState) {
    state.places_seen = 0;
    state.publishes = 0;
    state.slot = 0;
    if setting!(contexts) != 0 && offset!(task_thread_pointer) != ABSENT {
        // SAFETY: `task` is typed.
        unsafe {
            state.left_thread = Direct::read(task, offset!(task_thread_pointer));
            state.left_sleeps = Direct::read::<u64>(task, offset!(task_nvcsw)) as u32;
        }
    }
}

/// Where the current thread's storage is; 0: it has none so far.
///
/// x86 clears the register at execve (start_thread_common, arch/x86/kernel/process_64.c), and the task's copy of it when the task
/// is next switched: until then, or until the program sets one of its own, the copy is the other program's. One that
/// sets the same again (without addresses given out at random) is read once it has slept.
#[inline(always)]
fn thread_pointer(task: Pointer, state: &TaskState) -> u64 {
    // SAFETY: `task` is typed.
    unsafe {
        let thread: u64 = Direct::read(task, offset!(task_thread_pointer));
        if thread == state.left_thread
            && Direct::read::<u64>(task, offset!(task_nvcsw)) as u32 == state.left_sleeps
        {
            return 0;
        }
        thread
    }
}

/// munmap(begin, bytes): may take away the library that has the slots, after which nothing in them is one. Whether this task itself
/// has ever looked for its own does not matter: it may do so for the others. At the call's entry, and once more at its return: user
/// space may have found the library in between, where it was still mapped.
#[inline(always)]
pub fn unmapped(begin: u64, bytes: u64) {
    if may_be_unmapped() {
        take_away(begin, bytes);
    }
}

/// Whether anybody may have a place.
#[inline(always)]
pub fn may_be_unmapped() -> bool {
    setting!(contexts) != 0 && version().is_some_and(|version| version != 0)
}

/// Reads the slot and what it points at.
#[inline(always)]
fn read(local: &mut Local, state: &mut TaskState) {
    state.context_fault = 0;
    // SAFETY: both go into fields of the state; the helper takes any user address.
    unsafe {
        if bpf_probe_read_user((&raw mut state.head_at).cast(), 8, state.slot as *const _) != 0 {
            state.context_fault = 1;
            return;
        }
        if state.head_at == 0 {
            return;
        }
        let head = (&raw mut state.head).cast();
        if bpf_probe_read_user(head, HEAD_BYTES as u32, state.head_at as *const _) != 0 {
            state.context_fault = 1;
            return;
        }
    }
    if state.head.valid != VALID {
        return;
    }
    match names(&state.head) {
        Named::Span => {}
        // Its flags are of no trace.
        Named::Nothing if state.head.attributes != 0 => state.head.flags = 0,
        Named::Nothing => return,
        Named::Half => {
            local.count(CONTEXTS_INVALID);
            return;
        }
    }
    state.record.header.flags |= CALL_HAS_CONTEXT;
}

/// No trace or no span is none (W3C trace context). With neither a thread says that it works for none, and may say attributes all the
/// same (OTEP 4947, *Thread-Local Context Record*).
#[inline(always)]
fn names(head: &Head) -> Named {
    // SAFETY: a head is 4 words, aligned as such in a task's state.
    let words = unsafe { &*core::ptr::from_ref(head).cast::<[u64; 3]>() };
    let (trace, span) = (words[0] | words[1], words[2]);
    if trace | span == 0 {
        Named::Nothing
    } else if trace == 0 || span == 0 {
        Named::Half
    } else {
        Named::Span
    }
}

enum Named {
    Span,
    Nothing,
    Half,
}

#[inline(always)]
fn version() -> Option<u32> {
    let (found, taken) = (PLACES_VERSION.get_ptr(0)?, PLACES_VERSION.get_ptr(1)?);
    // SAFETY: each is read whole.
    unsafe { Some((core::ptr::read_volatile(found) + core::ptr::read_volatile(taken)) as u32) }
}

/// The process publishes nothing.
const NOTHING: u64 = 0;
/// It does, but the thread has no slot yet: it has had no need of the block, or no thread-local storage at all. (No slot is there:
/// it is no multiple of 8.)
const NOT_YET: u64 = 1;

/// Finds the current thread's slot. A global function for the verifier: it is seldom called and has a stack of its own. (Nor
/// does it touch the task's state, which its caller holds.)
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_slot(thread: u64) -> u64 {
    let Some(place) = place_of(task::current()) else { return NOTHING };
    if place.kind == PLACE_CLAIMED {
        return NOTHING;
    }
    // The loader's calls before it has set the pointer.
    if thread == 0 {
        return NOT_YET;
    }
    if place.kind == PLACE_STATIC {
        return thread.wrapping_add(place.offset);
    }
    in_block(thread, place).unwrap_or(NOT_YET)
}

/// The slot in the block that the thread has of the module: none where it has had no need of it.
#[inline(always)]
fn in_block(thread: u64, place: &Place) -> Option<u64> {
    let vector = user_word(thread.wrapping_add(place.vector_at))?;
    let length = user_word(vector.wrapping_add(place.length_at))?;
    if place.module > length {
        return None;
    }
    let entry = place.module.wrapping_mul(place.stride as u64);
    let block = user_word(vector.wrapping_add(entry))?;
    // glibc's mark of one that is not there (TLS_DTV_UNALLOCATED, sysdeps/generic/dl-tls.h) is -1.
    if block == 0 || block == u64::MAX { None } else { Some(block.wrapping_add(place.offset)) }
}

#[inline(always)]
fn user_word(address: u64) -> Option<u64> {
    let mut word = 0u64;
    // SAFETY: a word on the stack; the helper takes any user address.
    let read = unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, address as *const _) };
    if read == 0 { Some(word) } else { None }
}

/// The place of a task's process.
#[inline(always)]
fn place_of(task: Pointer) -> Option<&'static Place> {
    // SAFETY: typed from the task on. A place is replaced as a whole, and lives until the program has ended.
    unsafe {
        let mm: Pointer = Direct::read(task, offset!(task_mm));
        if mm.is_null() {
            return None;
        }
        let (stack, code): (u64, u64) =
            (Direct::read(mm, offset!(mm_start_stack)), Direct::read(mm, offset!(mm_start_code)));
        let place = PLACES.get(Direct::read::<u32>(task, offset!(task_tgid)))?;
        if place.start_stack == stack && place.start_code == code { Some(place) } else { None }
    }
}

/// The current task forks this one, which does not run yet and has a copy of its memory.
#[inline(always)]
pub fn forked<A: Access>(child: Pointer) {
    if may_be_unmapped() {
        // SAFETY: `child` is of the kind that A reads.
        inherit(unsafe { A::read(child, offset!(task_tgid)) });
    }
}

/// Gives the process of this number the place of the current task's. What is only claimed is not given: user space does not wait for a
/// second process.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn inherit(child: u32) -> u32 {
    // SAFETY: the task is typed; a place is replaced as a whole.
    let (process, place) = unsafe {
        let process: u32 = Direct::read(task::current(), offset!(task_tgid));
        (process, PLACES.get(process))
    };
    match place {
        Some(place) if process != child && place.kind != PLACE_CLAIMED => {
            let _ = PLACES.insert(child, place, 0);
            1
        }
        _ => 0,
    }
}

/// The current task has become another program.
#[inline(always)]
pub fn executed() {
    if may_be_unmapped() {
        leave();
    }
}

/// The current task ends: its process's place goes with the last of its threads (do_exit counts before it says so, kernel/exit.c).
#[inline(always)]
pub fn ended(task: Pointer) {
    if !may_be_unmapped() {
        return;
    }
    // SAFETY: typed from the task on.
    let live: u32 = unsafe {
        let signal: Pointer = Direct::read(task, offset!(task_signal));
        Direct::read(signal, offset!(signal_live))
    };
    if live == 0 {
        leave();
    }
}

/// Takes the place of the current task's process away.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave() -> u32 {
    // SAFETY: the task is typed.
    let process: u32 = unsafe { Direct::read(task::current(), offset!(task_tgid)) };
    PLACES.remove(process).is_ok() as u32
}

/// Takes the place of the current task's process away if it lies in what is unmapped; where its parent has the same memory (vfork), the
/// parent's, too.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_away(begin: u64, bytes: u64) -> u64 {
    let task = task::current();
    // SAFETY: `task` is typed; the version is a word of a map's value.
    unsafe {
        let parent: Pointer = Direct::read(task, offset!(task_real_parent));
        let memory: [u64; 2] = [Direct::read(task, offset!(task_mm)), Direct::read(parent, offset!(task_mm))];
        let mut away = take_away_of(Direct::read(task, offset!(task_tgid)), begin, bytes);
        if memory[0] != 0 && memory[0] == memory[1] {
            away |= take_away_of(Direct::read(parent, offset!(task_tgid)), begin, bytes);
        }
        if !away {
            return 0;
        }
        if let Some(taken) = PLACES_VERSION.get_ptr_mut(1) {
            crate::table::fetch_add(taken, 1);
        }
    }
    1
}

/// Takes a process's place away if it lies there.
#[inline(always)]
fn take_away_of(process: u32, begin: u64, bytes: u64) -> bool {
    // SAFETY: a place is replaced as a whole.
    let place = unsafe { PLACES.get(process) };
    let within = place.is_some_and(|place| place.anchor != 0 && place.anchor.wrapping_sub(begin) < bytes);
    within && PLACES.remove(process).is_ok()
}
