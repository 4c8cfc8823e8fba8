//! What a program has for itself on each CPU: its counters, its minting counter, and scratch memory.
//!
//! Invariant: one program, one slot. A program never runs twice at once on a CPU, so nothing here is atomic; two
//! programs may interrupt each other, so they never share a slot.

use crate::access::Pointer;
use crate::settings::setting;
use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_probe_read_kernel};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{COUNTERS, LOCAL_WORDS};
use blkkin_probe_abi::record::TaskRecord;
use blkkin_probe_abi::settings::{PROGRAMS, Program};

/// A slot.
#[repr(C)]
pub struct Local {
    counters: [u64; COUNTERS],
    minted: u64,
    scratch: u64,
    slot: u32,
    reserved: u32,
    /// See `request::walk`; in block_bio_queue's slot what `stacked::is_below` found.
    pub walk: Walk,
    /// Where a task's record is made: see `describe::announce`.
    pub task: TaskRecord,
}

/// What a walk over a request's bios keeps in memory instead of registers: a bounded loop that carries a counter in
/// a register and branches on it is a new state for the verifier at each turn.
#[repr(C)]
pub struct Walk {
    /// Bytes of this completion that are not yet given to a bio.
    pub budget: u64,
    /// Followed bios met.
    pub bios: u64,
    /// The request's span.
    pub span: u64,
    /// Its first bio's span.
    pub parent: u64,
    /// When it completed.
    pub now: u64,
    /// With which status.
    pub status: u32,
    /// Inside the flush machine's sequence: bytes are done, the bio is not.
    pub in_sequence: u32,
    /// Zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<Local>() == LOCAL_WORDS * 8);

#[btf_map]
static LOCALS: PerCpuArray<Local, PROGRAMS> = PerCpuArray::new();

impl Walk {
    /// Over what a completion of `bytes` covers, of a request that is not followed.
    #[inline(always)]
    pub fn new(bytes: u32, status: u32, in_sequence: bool, now: u64) -> Self {
        Walk {
            budget: bytes as u64,
            bios: 0,
            span: 0,
            parent: 0,
            now,
            status: status & 0xff,
            in_sequence: in_sequence as u32,
            reserved: 0,
        }
    }
}

impl Local {
    /// This program's slot on this CPU.
    #[inline(always)]
    pub fn of(program: Program) -> Option<&'static mut Local> {
        Local::at(program as u32)
    }

    /// The slot of this number on this CPU: for global functions, which are told their caller's.
    #[inline(always)]
    pub fn at(number: u32) -> Option<&'static mut Local> {
        // SAFETY: the slot is one program's alone, and a program does not run twice at once on a CPU.
        LOCALS.get_ptr_mut(number).map(|slot| unsafe {
            (*slot).slot = number;
            &mut *slot
        })
    }

    /// Which slot this is.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Counts.
    #[inline(always)]
    pub fn count(&mut self, counter: usize) {
        self.counters[counter] += 1;
    }

    /// Counts where the program may be interrupted by itself: a uprobe's runs with preemption on.
    #[inline(always)]
    pub fn count_shared(&mut self, counter: usize) {
        // SAFETY: a word of a map's value.
        unsafe { crate::table::fetch_add(&raw mut self.counters[counter], 1) };
    }

    /// A span id that no other of this start has: (CPU, program, counter) through a bijection keyed by the
    /// start's seed (the finalizer of splitmix64).
    #[inline(always)]
    pub fn mint(&mut self, program: Program) -> u64 {
        self.minted += 1;
        // SAFETY: no preconditions.
        let cpu = unsafe { bpf_get_smp_processor_id() } as u64;
        let mut z = (cpu << 48 | (program as u64) << 44 | self.minted) ^ setting!(seed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The 8 bytes at `base + offset`, by helper; zeroes where they cannot be read. Nothing of it lies on the stack.
    #[inline(always)]
    pub fn read(&mut self, base: Pointer, offset: u32) -> u64 {
        // SAFETY: the helper writes 8 bytes of this slot, or zeroes them; any address is allowed.
        unsafe {
            let from = base.wrapping_add(offset as usize).cast();
            bpf_probe_read_kernel((&raw mut self.scratch).cast(), size_of::<u64>() as u32, from);
            core::ptr::read_volatile(&raw const self.scratch)
        }
    }

    /// A pointer as a number. The verifier lets nobody shift or hash a typed pointer; stored in a map's value and
    /// read back it is a scalar.
    #[inline(always)]
    pub fn address(&mut self, pointer: Pointer) -> u64 {
        // SAFETY: a field of this slot.
        unsafe {
            core::ptr::write_volatile(&raw mut self.scratch, pointer as u64);
            core::ptr::read_volatile(&raw const self.scratch)
        }
    }
}
