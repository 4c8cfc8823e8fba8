//! USDT events: a traced thread reaches a uprobe at a probe that the program's authors defined.
//!
//! *In*: the thread's registers, and the probe's argument specification (written by the tracer's
//! `usdt` module), by the row number in the attach cookie. *Out*: one record per event of a traced
//! thread.
//!
//! *Preemption*: unlike the other programs, a uprobe program runs with preemption enabled
//! (bpf_prog_run_array_uprobe, include/linux/bpf.h). Another thread may reach a probe on the same
//! CPU meanwhile, and the interruption may be long. So the program uses no per-CPU memory and
//! counts atomically.
//! It also timestamps a record only after reserving its room in the ring. Later records in the ring
//! wait for it, and the reader's watermark does not advance past unwritten room. Little happens in
//! between.
//!
//! *Unreadable values*: an argument that could not be read has no bit in `read_mask`. The page of a
//! text may be swapped out, and a program may not fault it in.

use crate::runtime::percpu::PerCpuState;
use crate::runtime::ring;
use crate::task;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::{
    bpf_get_attach_cookie, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_ktime_get_ns,
    bpf_probe_read_kernel, bpf_probe_read_user, bpf_probe_read_user_str, bpf_ringbuf_submit,
};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{USDT_DROPPED, USDT_FIRED};
use blkkin_probe_abi::record::TAG_USDT;
use blkkin_probe_abi::settings::{Program, TASK_ACTIVE};
use blkkin_probe_abi::usdt::*;
use core::ffi::c_void;

/// Argument specifications by row. User space writes them before it attaches a probe.
#[btf_map]
static USDT_SPECS: Array<UsdtSpec, { USDT_PROBES_MAX }> = Array::new();

/// Record with its text.
#[repr(C)]
struct WithText {
    record: UsdtRecord,
    text: [u8; USDT_TEXT_MAX],
}

/// Handles a thread at a probe.
#[inline(always)]
pub fn on_probe(context: *mut c_void) {
    // A traced thread has task state: it has made system calls, at least its loader's.
    let Some(state) = task::state(task::current()) else { return };
    if state.flags & TASK_ACTIVE == 0 {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::Usdt) else { return };
    // SAFETY: the context is the program's own.
    let row = unsafe { bpf_get_attach_cookie(context) } as u32;
    let Some(spec) = USDT_SPECS.get(row) else { return };
    percpu.count_atomic(USDT_FIRED);
    let mut record = UsdtRecord { row, ..UsdtRecord::default() };
    fill(context, spec, &mut record);
    let written = if spec.text == 0 {
        match ring::reserve::<UsdtRecord>() {
            Some(room) => {
                write(&mut record, size_of::<UsdtRecord>(), room);
                // SAFETY: reserved above.
                unsafe { bpf_ringbuf_submit(room.cast(), ring::NO_WAKEUP) };
                true
            }
            None => false,
        }
    } else {
        let text_arg = (spec.text - 1) as usize & (USDT_ARGS_MAX - 1);
        // SAFETY: one of the arguments; volatile, because the compiler would otherwise turn it into
        // a branch.
        let at = unsafe { core::ptr::read_volatile(&raw const record.arguments[text_arg]) };
        match ring::reserve::<WithText>() {
            Some(room) => {
                record.text_bytes = copy_text(at, room);
                record.header.flags = USDT_HAS_TEXT;
                write(&mut record, size_of::<WithText>(), room.cast());
                // SAFETY: reserved above.
                unsafe { bpf_ringbuf_submit(room.cast(), ring::NO_WAKEUP) };
                true
            }
            None => false,
        }
    };
    if !written {
        percpu.count_atomic(USDT_DROPPED);
    }
}

/// Fills in all fields except the text and the time.
#[inline(always)]
fn fill(context: *mut c_void, spec: &UsdtSpec, record: &mut UsdtRecord) {
    // SAFETY: no preconditions.
    let ids = unsafe { bpf_get_current_pid_tgid() };
    record.header.tag = TAG_USDT;
    record.pid = (ids >> 32) as u32;
    record.tid = ids as u32;
    let mut n = 0;
    while n < USDT_ARGS_MAX {
        if let Some(value) = read_arg(context, &spec.arguments[n]) {
            record.read_mask |= 1 << n;
            record.arguments[n] = value;
        }
        n += 1;
    }
    // SAFETY: 16 bytes of the stack.
    unsafe { bpf_get_current_comm((&raw mut record.comm).cast(), 16) };
}

/// Timestamps the record and copies it into its room.
#[inline(always)]
fn write(record: &mut UsdtRecord, len: usize, room: *mut UsdtRecord) {
    record.header.len = len as u32;
    // SAFETY: the ring returned room for a record; a record is words without padding. The accesses
    // are volatile, or the compiler would replace them by a call to memcpy.
    unsafe {
        record.header.time_ns = bpf_ktime_get_ns();
        let (words, room) = (core::ptr::from_ref(record).cast::<u64>(), room.cast::<u64>());
        let mut word = 0;
        while word < size_of::<UsdtRecord>() / 8 {
            core::ptr::write_volatile(room.add(word), core::ptr::read_volatile(words.add(word)));
            word += 1;
        }
    }
}

/// Reads an argument into the low bytes of the result.
#[inline(always)]
fn read_arg(context: *mut c_void, spec: &UsdtArgSpec) -> Option<u64> {
    if spec.from == FROM_CONSTANT {
        return Some(spec.value as u64);
    }
    if spec.from == 0 {
        return None;
    }
    let base = read_register(context, spec.register)?;
    if spec.from == FROM_REGISTER {
        return Some(base >> (spec.shift & 63));
    }
    let index = if spec.scale == 0 { 0 } else { read_register(context, spec.index)? };
    let at = base.wrapping_add(index.wrapping_mul(spec.scale as u64)).wrapping_add(spec.value as u64);
    let bytes = spec.bytes;
    if bytes > 8 {
        return None;
    }
    let mut word = 0u64;
    // SAFETY: at most the word's 8 bytes; bpf_probe_read_user takes any user address.
    let failed = unsafe { bpf_probe_read_user((&raw mut word).cast(), bytes, at as *const c_void) };
    if failed == 0 { Some(word) } else { None }
}

/// Reads the thread's register at this offset: the verifier rejects loads from a context at a
/// variable offset.
#[inline(always)]
fn read_register(context: *mut c_void, offset: u32) -> Option<u64> {
    let mut word = 0u64;
    // SAFETY: a word on the stack; user space has verified that the offset is a register's.
    let failed = unsafe {
        let from = context.byte_add((offset & 0x1ff) as usize);
        bpf_probe_read_kernel((&raw mut word).cast(), 8, from.cast_const())
    };
    if failed == 0 { Some(word) } else { None }
}

/// Copies a text and returns its length in bytes; 0 if it is not in memory.
#[inline(always)]
fn copy_text(at: u64, room: *mut WithText) -> u16 {
    // SAFETY: within the room that the ring returned; bpf_probe_read_user_str takes any user
    // address, and always writes a NUL.
    let bytes = unsafe {
        let into = (&raw mut (*room).text).cast();
        bpf_probe_read_user_str(into, USDT_TEXT_MAX as u32, at as *const c_void)
    };
    if bytes > 0 { bytes as u16 } else { 0 }
}
