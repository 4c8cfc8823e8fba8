//! Records on their way out: one ring a CPU, no wake-up (the reader drains by timer), a failed write counted.
//!
//! A record of a fixed size is put word by word into room that was reserved: 10 ns less than bpf_ringbuf_output, whose
//! copy is made for any length. What has a tail is written by that.

use crate::local::Local;
use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::btf_maps::{ArrayOfMaps, RingBuf};
use aya_ebpf::helpers::generated::{
    bpf_get_smp_processor_id, bpf_ringbuf_output, bpf_ringbuf_reserve, bpf_ringbuf_submit,
};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{DROPPED, FIRED};
use blkkin_probe_abi::{CPUS_MAX, Plain};
use core::ffi::c_void;

// The inner definition is a template: the loader puts in rings of the size it was told.
#[btf_map]
static RINGS: ArrayOfMaps<RingBuf<u64, 4096>, { CPUS_MAX as usize }> = ArrayOfMaps::new();

/// Writes `len` bytes at `record`, and counts it under `tag`. Says whether there was room.
///
/// # Safety
/// `record` points at `len` readable bytes of a map's value or of the stack.
#[inline(always)]
pub unsafe fn write(local: &mut Local, tag: u8, record: *const c_void, len: u64) -> bool {
    local.count(FIRED + tag as usize);
    // SAFETY: no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let written = match RINGS.get(cpu) {
        // SAFETY: the verifier has checked ring, memory and length, or refused the program.
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
        local.count(DROPPED + tag as usize);
    }
    written
}

/// Wakes nobody: see above.
pub const NO_WAKEUP: u64 = BPF_RB_NO_WAKEUP as u64;

/// Room for a record of a fixed size, which its writer submits itself; none where the ring is full. What is in it is not said.
#[inline(always)]
pub fn reserve<T>() -> Option<*mut T> {
    // SAFETY: no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = RINGS.get(cpu)?;
    // SAFETY: the verifier has checked ring and length, or refused the program.
    let room = unsafe {
        bpf_ringbuf_reserve((&raw const *ring).cast_mut().cast(), size_of::<T>() as u64, 0).cast::<T>()
    };
    if room.is_null() { None } else { Some(room) }
}

/// Puts a record of a fixed size, and counts it under `tag`. Says whether there was room.
#[inline(always)]
pub fn put<T: Plain>(local: &mut Local, tag: u8, record: &T) -> bool {
    put_counted(local, FIRED + tag as usize, DROPPED + tag as usize, record)
}

/// The same, counted elsewhere.
#[inline(always)]
pub fn put_counted<T: Plain>(local: &mut Local, fired: usize, dropped: usize, record: &T) -> bool {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() == 8) };
    local.count(fired);
    // SAFETY: no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let room = match RINGS.get(cpu) {
        // SAFETY: the verifier has checked ring and length, or refused the program.
        Some(ring) => unsafe {
            bpf_ringbuf_reserve((&raw const *ring).cast_mut().cast(), size_of::<T>() as u64, 0).cast::<u64>()
        },
        None => core::ptr::null_mut(),
    };
    if room.is_null() {
        local.count(dropped);
        return false;
    }
    // SAFETY: the room has size_of::<T>() bytes; a Plain type is words without padding. Volatile, or the compiler would
    // make a call to memcpy of it.
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
