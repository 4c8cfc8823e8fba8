//! State of one program on one CPU: its counters, its span id counter, and scratch memory.
//!
//! Invariant: one program, one slot. A program never runs twice at once on a CPU, so no access is
//! atomic. Two programs may interrupt each other, so they never share a slot.

use crate::runtime::read::Pointer;
use crate::runtime::settings::setting;
use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_probe_read_kernel};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{COUNTERS, PER_CPU_WORDS};
use blkkin_probe_abi::record::{BioPagesRecord, TaskRecord};
use blkkin_probe_abi::settings::{PROGRAMS, Program};

/// Slot of one program on one CPU.
#[repr(C)]
pub struct PerCpuState {
    counters: [u64; COUNTERS],
    span_ids: u64,
    scratch: u64,
    slot: u32,
    /// In block_bio_queue's slot, the number of the bio's disk.
    pub disk: u32,
    /// State of `request::walk_bios`; in block_bio_queue's slot the result of
    /// `stacked::upper`.
    pub walk: CompletionWalk,
    /// Buffer in which `metadata::emit` builds a task's record.
    pub task: TaskRecord,
    /// In block_bio_queue's slot, the record of the origin of a bio's pages; in writeback_dirty_folio's, that of the
    /// pages that became dirty.
    pub pages: BioPagesRecord,
    /// File whose path is to be read, for `name::name_file`.
    pub naming: Naming,
    /// Clock at the begin of the open run, and the time of one reading of the clock: see `timing`.
    pub timing: [u64; 2],
    /// Root of the first deferred operation of which this run ended the last part; 0 for none: see `deferred`.
    pub ended: u64,
    /// First bytes of a kernel structure: see [`PerCpuState::read_head`].
    head: [u64; HEAD_BYTES / 8],
}

/// Bytes of a structure's head.
pub const HEAD_BYTES: usize = 128;

/// File whose path is to be read. In memory, because the functions that read it have no stack to
/// spare: Linux sums the stacks of nested calls, at 512 B.
#[repr(C)]
pub struct Naming {
    /// Address of the `struct file`; 0 for none.
    pub file: u64,
    /// Address of the inode that identifies it: `FileView::inode`.
    pub inode: u64,
    /// Time of the path's record; 0 for the clock's.
    pub now: u64,
    /// Hash of the file's identity, dentry and mount: `FileState::place`.
    pub place: u64,
    /// Hash of that and what its path depends on: `FileState::state`.
    pub state: u64,
}

/// State of a walk over a request's bios, in memory instead of registers. A bounded loop that
/// carries a counter in a register and branches on it is a new verifier state at each iteration.
#[repr(C)]
pub struct CompletionWalk {
    /// Bytes of this completion that are not yet credited to a bio.
    pub budget: u64,
    /// Traced bios found.
    pub bios: u64,
    /// Span of the request.
    pub span: u64,
    /// Span of the request's first bio.
    pub parent: u64,
    /// Time of the completion; 0 if the request is not recorded.
    pub now: u64,
    /// Status of the completion; in block_bio_queue's slot 1 if the upper part is deferred.
    pub status: u32,
    /// 1: inside the flush machine's sequence, where bytes complete before the bio does.
    pub in_sequence: u32,
    /// Zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<PerCpuState>() == PER_CPU_WORDS * 8);

#[btf_map]
static PER_CPU_STATE: PerCpuArray<PerCpuState, PROGRAMS> = PerCpuArray::new();

impl CompletionWalk {
    /// Creates the state for a completion of `bytes`, of a request that is not traced.
    #[inline(always)]
    pub fn new(bytes: u32, status: u32, in_sequence: bool, now: u64) -> Self {
        CompletionWalk {
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

impl PerCpuState {
    /// Returns this program's slot on this CPU.
    #[inline(always)]
    pub fn of(program: Program) -> Option<&'static mut PerCpuState> {
        PerCpuState::by_slot(program as u32)
    }

    /// Returns the slot of this number on this CPU: for global functions, which receive their
    /// caller's slot number.
    #[inline(always)]
    pub fn by_slot(number: u32) -> Option<&'static mut PerCpuState> {
        // SAFETY: only one program uses the slot, and a program does not run twice at once on a
        // CPU.
        PER_CPU_STATE.get_ptr_mut(number).map(|slot| unsafe {
            (*slot).slot = number;
            &mut *slot
        })
    }

    /// Returns the number of this slot.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Increments a counter.
    #[inline(always)]
    pub fn count(&mut self, counter: usize) {
        self.counters[counter] += 1;
    }

    /// Adds to a counter.
    #[inline(always)]
    pub fn add(&mut self, counter: usize, number: u64) {
        self.counters[counter] += number;
    }

    /// Returns a counter.
    #[inline(always)]
    pub fn counted(&self, counter: usize) -> u64 {
        self.counters[counter]
    }

    /// Increments a counter of a program that may interrupt itself: a uprobe program runs with
    /// preemption enabled.
    #[inline(always)]
    pub fn count_atomic(&mut self, counter: usize) {
        // SAFETY: a word of a map's value.
        unsafe { crate::runtime::atomic::fetch_add(&raw mut self.counters[counter], 1) };
    }

    /// Returns a span id that is unique in this tracer run: (CPU, program, counter) through a
    /// bijection keyed by the seed (the finalizer of splitmix64).
    #[inline(always)]
    pub fn next_span_id(&mut self, program: Program) -> u64 {
        self.span_ids += 1;
        // SAFETY: no preconditions.
        let cpu = unsafe { bpf_get_smp_processor_id() } as u64;
        let mut z = (cpu << 48 | program.id_space() | self.span_ids) ^ setting!(seed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the 8 bytes at `base + offset`, read by bpf_probe_read_kernel; zeros if unreadable.
    /// It uses no stack.
    #[inline(always)]
    pub fn read(&mut self, base: Pointer, offset: u32) -> u64 {
        // SAFETY: bpf_probe_read_kernel writes 8 bytes of this slot, or zeros; any address is
        // allowed.
        unsafe {
            let from = base.wrapping_add(offset as usize).cast();
            bpf_probe_read_kernel((&raw mut self.scratch).cast(), size_of::<u64>() as u32, from);
            core::ptr::read_volatile(&raw const self.scratch)
        }
    }

    /// Reads the first bytes of the structure at `base`; zeros if unreadable.
    #[inline(always)]
    pub fn read_head(&mut self, base: Pointer) {
        // SAFETY: bpf_probe_read_kernel writes HEAD_BYTES of this slot; any address is allowed.
        unsafe { bpf_probe_read_kernel((&raw mut self.head).cast(), HEAD_BYTES as u32, base.cast()) };
    }

    /// Returns the word at this offset of the head that was read last.
    #[inline(always)]
    pub fn head_word(&self, offset: u32) -> u64 {
        // SAFETY: the caller has checked the offset; the verifier checks it again.
        unsafe {
            core::ptr::read_volatile((&raw const self.head).cast::<u8>().add(offset as usize).cast::<u64>())
        }
    }

    /// Returns a pointer as a number. The verifier rejects shifts and hashes of a typed pointer;
    /// stored in a map value and read back, it is a scalar.
    #[inline(always)]
    pub fn address(&mut self, pointer: Pointer) -> u64 {
        // SAFETY: a field of this slot.
        unsafe {
            core::ptr::write_volatile(&raw mut self.scratch, pointer as u64);
            core::ptr::read_volatile(&raw const self.scratch)
        }
    }
}
