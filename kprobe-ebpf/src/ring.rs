//! Records on their way out: one ring a CPU, no wake-up (the reader drains by timer), a failed write counted.

use crate::local::Local;
use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::btf_maps::{ArrayOfMaps, RingBuf};
use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ringbuf_output};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::CPUS_MAX;
use blkkin_probe_abi::counters::{DROPPED, FIRED};
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
