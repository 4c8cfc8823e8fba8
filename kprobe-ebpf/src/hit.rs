//! A thread comes by a probe of its program: a uprobe, at a place that the program's makers have marked (USDT).
//!
//! *In*: the thread's registers, and what user space has put down of the place (`tracer/src/usdt`), by the number that it was attached
//! with. *Out*: one record for each followed thread that comes by.
//!
//! *Not like the others*: a uprobe's program runs with preemption on (bpf_prog_run_array_uprobe, include/linux/bpf.h), so another
//! thread may come by a probe on the same CPU meanwhile, and may do so for long. So nothing of it lies in memory of the CPU's; what is
//! counted is counted atomically; and a record is stamped when its room in the ring is taken already, not before: what is later
//! in the ring waits for it, and the reader says of no time that all before it is known while such room is not written
//! (`tracer/src/rings.rs`). Little is done in between.
//!
//! *True*: what could not be read has no bit in `read`; the page of a text may be swapped out, and the kernel takes no fault for a probe.

use crate::local::Local;
use crate::ring;
use crate::task;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::{
    bpf_get_attach_cookie, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_ktime_get_ns,
    bpf_probe_read_kernel, bpf_probe_read_user, bpf_probe_read_user_str, bpf_ringbuf_submit,
};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{HITS_DROPPED, HITS_FIRED};
use blkkin_probe_abi::hit::*;
use blkkin_probe_abi::record::TAG_HIT;
use blkkin_probe_abi::settings::{Program, TASK_ACTIVE};
use core::ffi::c_void;

/// By row. User space writes it before anything is attached.
#[btf_map]
static SPECS: Array<Spec, { HITS_MAX }> = Array::new();

/// A record and its text.
#[repr(C)]
struct WithText {
    record: HitRecord,
    text: [u8; TEXT_MAX],
}

/// A thread is at a probe.
#[inline(always)]
pub fn hit(context: *mut c_void) {
    // Whose calls are recorded has a state: it has made calls, its loader's at the least.
    let Some(state) = task::state(task::current()) else { return };
    if state.flags & TASK_ACTIVE == 0 {
        return;
    }
    let Some(local) = Local::of(Program::Hit) else { return };
    // SAFETY: the context is the program's own.
    let row = unsafe { bpf_get_attach_cookie(context) } as u32;
    let Some(spec) = SPECS.get(row) else { return };
    local.count_shared(HITS_FIRED);
    let mut record = HitRecord { row, ..HitRecord::default() };
    fill(context, spec, &mut record);
    let written = if spec.text == 0 {
        match ring::reserve::<HitRecord>() {
            Some(room) => {
                write(&mut record, size_of::<HitRecord>(), room);
                // SAFETY: reserved above.
                unsafe { bpf_ringbuf_submit(room.cast(), ring::NO_WAKEUP) };
                true
            }
            None => false,
        }
    } else {
        let which = (spec.text - 1) as usize & (ARGUMENTS_MAX - 1);
        // SAFETY: one of the arguments; volatile, as the compiler would else make a jump of it.
        let at = unsafe { core::ptr::read_volatile(&raw const record.arguments[which]) };
        match ring::reserve::<WithText>() {
            Some(room) => {
                record.text_bytes = text(at, room);
                record.header.flags = HIT_HAS_TEXT;
                write(&mut record, size_of::<WithText>(), room.cast());
                // SAFETY: reserved above.
                unsafe { bpf_ringbuf_submit(room.cast(), ring::NO_WAKEUP) };
                true
            }
            None => false,
        }
    };
    if !written {
        local.count_shared(HITS_DROPPED);
    }
}

/// Everything but the text and the time.
#[inline(always)]
fn fill(context: *mut c_void, spec: &Spec, record: &mut HitRecord) {
    // SAFETY: no preconditions.
    let ids = unsafe { bpf_get_current_pid_tgid() };
    record.header.tag = TAG_HIT;
    record.pid = (ids >> 32) as u32;
    record.tid = ids as u32;
    let mut n = 0;
    while n < ARGUMENTS_MAX {
        if let Some(value) = argument(context, &spec.arguments[n]) {
            record.read |= 1 << n;
            record.arguments[n] = value;
        }
        n += 1;
    }
    // SAFETY: 16 bytes of the stack.
    unsafe { bpf_get_current_comm((&raw mut record.comm).cast(), 16) };
}

/// Stamps the record and puts it into its room.
#[inline(always)]
fn write(record: &mut HitRecord, len: usize, room: *mut HitRecord) {
    record.header.len = len as u32;
    // SAFETY: room for a record, which the ring has given; a record is words without padding. Volatile, or the compiler would make
    // a call to memcpy of it.
    unsafe {
        record.header.time_ns = bpf_ktime_get_ns();
        let (words, room) = (core::ptr::from_ref(record).cast::<u64>(), room.cast::<u64>());
        let mut word = 0;
        while word < size_of::<HitRecord>() / 8 {
            core::ptr::write_volatile(room.add(word), core::ptr::read_volatile(words.add(word)));
            word += 1;
        }
    }
}

/// What an argument's lower bytes say.
#[inline(always)]
fn argument(context: *mut c_void, spec: &ArgumentSpec) -> Option<u64> {
    if spec.from == FROM_CONSTANT {
        return Some(spec.value as u64);
    }
    if spec.from == 0 {
        return None;
    }
    let base = register(context, spec.register)?;
    if spec.from == FROM_REGISTER {
        return Some(base >> (spec.shift & 63));
    }
    let index = if spec.scale == 0 { 0 } else { register(context, spec.index)? };
    let at = base.wrapping_add(index.wrapping_mul(spec.scale as u64)).wrapping_add(spec.value as u64);
    let bytes = spec.bytes;
    if bytes > 8 {
        return None;
    }
    let mut word = 0u64;
    // SAFETY: at most the word's 8 bytes; the helper takes any user address.
    let failed = unsafe { bpf_probe_read_user((&raw mut word).cast(), bytes, at as *const c_void) };
    if failed == 0 { Some(word) } else { None }
}

/// The thread's register at this place: the verifier lets nobody load from a context at a place that is not constant.
#[inline(always)]
fn register(context: *mut c_void, offset: u32) -> Option<u64> {
    let mut word = 0u64;
    // SAFETY: a word on the stack; the place is one of the registers, as user space has looked up.
    let failed = unsafe {
        let from = context.byte_add((offset & 0x1ff) as usize);
        bpf_probe_read_kernel((&raw mut word).cast(), 8, from.cast_const())
    };
    if failed == 0 { Some(word) } else { None }
}

/// Takes a text; how many bytes it has, none if it is not in memory.
#[inline(always)]
fn text(at: u64, room: *mut WithText) -> u16 {
    // SAFETY: within the room that the ring has given; the helper takes any user address, and leaves room for a NUL.
    let bytes = unsafe {
        let into = (&raw mut (*room).text).cast();
        bpf_probe_read_user_str(into, TEXT_MAX as u32, at as *const c_void)
    };
    if bytes > 0 { bytes as u16 } else { 0 }
}
