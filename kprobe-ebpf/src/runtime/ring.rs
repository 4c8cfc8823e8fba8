//! Ring output: one ring per CPU, no wake-up (the reader polls on a timer), and a counter for each
//! record without room.
//!
//! A record of a fixed size is stored word by word into reserved space: 10 ns less than
//! bpf_ringbuf_output, whose copy handles any length. Records with a tail use bpf_ringbuf_output.

use crate::runtime::percpu::PerCpuState;
use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::btf_maps::{ArrayOfMaps, RingBuf};
use aya_ebpf::helpers::generated::{
    bpf_get_smp_processor_id, bpf_ringbuf_output, bpf_ringbuf_reserve, bpf_ringbuf_submit,
};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{DROPPED, FIRED};
use blkkin_probe_abi::{CPUS_MAX, Plain};
use core::ffi::c_void;

// The inner definition is a template: the loader inserts rings of the configured size.
#[btf_map]
static RINGS: ArrayOfMaps<RingBuf<u64, 4096>, { CPUS_MAX as usize }> = ArrayOfMaps::new();

/// Writes `len` bytes at `record`, and counts the record under `tag`. Returns whether there was
/// room.
///
/// # Safety
/// `record` points at `len` readable bytes of a map value or of the stack.
#[inline(always)]
pub unsafe fn write(percpu: &mut PerCpuState, tag: u8, record: *const c_void, len: u64) -> bool {
    // SAFETY: by the contract.
    unsafe { write_counted(percpu, FIRED + tag as usize, DROPPED + tag as usize, record, len) }
}

/// Writes `len` bytes at `record`, and counts the record in the given counters.
///
/// # Safety
/// As of [`write`].
#[inline(always)]
pub unsafe fn write_counted(
    percpu: &mut PerCpuState,
    fired: usize,
    dropped: usize,
    record: *const c_void,
    len: u64,
) -> bool {
    percpu.count(fired);
    // SAFETY: no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let written = match RINGS.get(cpu) {
        // SAFETY: the verifier has checked ring, memory and length, or rejected the program.
        Some(ring) => unsafe {
            bpf_ringbuf_output(
                (&raw const *ring).cast_mut().cast(),
                record.cast_mut(),
                len,
                BPF_RB_NO_WAKEUP as u64,
            ) == 0
        },
        None => false,
    };
    if !written {
        percpu.count(dropped);
    }
    written
}

/// Submit flag: no wake-up of the reader.
pub const NO_WAKEUP: u64 = BPF_RB_NO_WAKEUP as u64;

/// Reserves room for a record of a fixed size, which the caller submits; none if the ring is full.
/// Its content is undefined.
#[inline(always)]
pub fn reserve<T>() -> Option<*mut T> {
    // SAFETY: no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = RINGS.get(cpu)?;
    // SAFETY: the verifier has checked ring and length, or rejected the program.
    let room = unsafe {
        bpf_ringbuf_reserve((&raw const *ring).cast_mut().cast(), size_of::<T>() as u64, 0).cast::<T>()
    };
    if room.is_null() { None } else { Some(room) }
}

/// Writes a record of a fixed size, and counts it under `tag`. Returns whether there was room.
#[inline(always)]
pub fn put<T: Plain>(percpu: &mut PerCpuState, tag: u8, record: &T) -> bool {
    put_counted(percpu, FIRED + tag as usize, DROPPED + tag as usize, record)
}

/// Writes a record of a fixed size, and counts it in the given counters.
#[inline(always)]
pub fn put_counted<T: Plain>(percpu: &mut PerCpuState, fired: usize, dropped: usize, record: &T) -> bool {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() == 8) };
    percpu.count(fired);
    // SAFETY: no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let room = match RINGS.get(cpu) {
        // SAFETY: the verifier has checked ring and length, or rejected the program.
        Some(ring) => unsafe {
            bpf_ringbuf_reserve((&raw const *ring).cast_mut().cast(), size_of::<T>() as u64, 0).cast::<u64>()
        },
        None => core::ptr::null_mut(),
    };
    if room.is_null() {
        percpu.count(dropped);
        return false;
    }
    // SAFETY: the room has size_of::<T>() bytes; a Plain type is words without padding. The
    // accesses are volatile, or the compiler would replace them by a call to memcpy.
    unsafe {
        let words = core::ptr::from_ref(record).cast::<u64>();
        let mut word = 0;
        while word < size_of::<T>() / 8 {
            core::ptr::write_volatile(room.add(word), core::ptr::read_volatile(words.add(word)));
            word += 1;
        }
        bpf_ringbuf_submit(room.cast(), BPF_RB_NO_WAKEUP as u64);
    }
    true
}
