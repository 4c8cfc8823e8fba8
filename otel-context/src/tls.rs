//! Location of a thread-local variable, by the rules of: Ulrich Drepper, *ELF Handling For
//! Thread-Local Storage*; Alexandre Oliva and Glauber de Oliveira Costa, *Speeding Up Thread-Local
//! Storage Access in Dynamic Libraries*.
//!
//! *A program's variable* is at an offset from the thread pointer that its file determines. *A
//! library's variable* is where the loader has put it, and a relocation passes it to the library's
//! own code:
//!
//! | relocation | relocated value | access model |
//! |---|---|---|
//! | TPOFF | offset from the thread pointer | initial-exec |
//! | DTPMOD (and the offset after it) | module number, an index into the thread's DTV | general and local dynamic |
//! | TLSDESC | function and argument: an offset, or a pointer to module and offset | any |
//!
//! If the value is still 0, the library is mapped and not relocated yet: the caller tries again.

use crate::elf::{Image, Machine, Relocation, TlsTemplate, TlsVariable};
use crate::memory::Memory;

/// Maximum plausible offset from the thread pointer: all static TLS has a few KiB.
const DISTANCE_MAX: u64 = 16 << 20;
/// Lowest address of a mapping (the kernel's default of vm.mmap_min_addr;
/// CONFIG_DEFAULT_MMAP_MIN_ADDR is lower on some).
const LOWEST_MAPPING: u64 = 32_768;
/// Maximum plausible module number: there is one for each library with thread-local variables.
const MODULES_MAX: u64 = 65_536;

/// Location of the variable in which a process's threads publish their contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadContextSlot {
    /// Location relative to a thread's thread pointer.
    pub location: TlsLocation,
    /// An address inside the library that defines the variable; none if the program does. The slot
    /// becomes invalid when that library is unmapped.
    pub library: Option<u64>,
}

/// Location of a thread-local variable. Sums of addresses and offsets wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsLocation {
    /// At a fixed offset from the thread pointer.
    Static {
        /// Offset from the thread pointer.
        offset: u64,
    },
    /// In a block that the loader allocates for each thread, at its first access or earlier.
    Dynamic {
        /// Module number, an index into the thread's vector of blocks (DTV).
        module: u64,
        /// Offset from the start of the block.
        offset: u64,
        /// Offset from the thread pointer to the pointer to the DTV.
        dtv_offset: u64,
        /// Offset from the start of the DTV to its length, in modules.
        dtv_length_offset: u64,
        /// Bytes of one entry of the DTV.
        dtv_stride: u32,
    },
}

impl TlsLocation {
    /// Address of the variable for the thread with this thread pointer (FS base on x86-64,
    /// TPIDR_EL0 on aarch64). None if the memory cannot be read, or if the thread has no block yet.
    pub fn address(&self, memory: &impl Memory, thread_pointer: u64) -> Option<u64> {
        match *self {
            TlsLocation::Static { offset } => Some(thread_pointer.wrapping_add(offset)),
            TlsLocation::Dynamic { module, offset, dtv_offset, dtv_length_offset, dtv_stride } => {
                let dtv = memory.read_u64(thread_pointer.wrapping_add(dtv_offset))?;
                let length = memory.read_u64(dtv.wrapping_add(dtv_length_offset))?;
                let entry = module.wrapping_mul(u64::from(dtv_stride));
                let block = memory.read_u64(dtv.wrapping_add(entry))?;
                let is_allocated = module <= length && block != 0 && block != u64::MAX;
                is_allocated.then(|| block.wrapping_add(offset))
            }
        }
    }
}

/// Libc of the loader, which determines the layout of the DTV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Libc {
    Glibc,
    Musl,
}

/// Result of locating a library's variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsLookup {
    At(ThreadContextSlot),
    /// The library is not relocated yet.
    NotRelocated,
    /// The location cannot be used for other threads.
    NotFound,
}

/// Relocation types (System V ABI, supplements for AMD64 and for the Arm 64-bit architecture).
struct RelocationTypes {
    module: u32,
    distance: u32,
    descriptor: u32,
}

impl Machine {
    fn relocation_types(self) -> RelocationTypes {
        match self {
            Machine::X86_64 => RelocationTypes { module: 16, distance: 18, descriptor: 36 },
            Machine::Aarch64 => RelocationTypes { module: 1028, distance: 1030, descriptor: 1031 },
        }
    }

    /// Returns whether a value may be an offset from the thread pointer.
    fn is_plausible_distance(self, distance: u64) -> bool {
        match self {
            // Blocks precede the thread pointer.
            Machine::X86_64 => distance.wrapping_neg().wrapping_sub(1) < DISTANCE_MAX,
            Machine::Aarch64 => (16..DISTANCE_MAX).contains(&distance),
        }
    }
}

/// Locates a program's variable.
pub(crate) fn in_program(image: &Image, variable: TlsVariable) -> Option<ThreadContextSlot> {
    let distance = distance(image.machine, image.tls_template?, variable.offset)?;
    image.machine.is_plausible_distance(distance).then_some(static_slot(distance))
}

/// Returns the offset from the thread pointer to `offset` in the program's block. The block
/// precedes it on x86 (variant II of the paper), and follows it after two words on aarch64 (variant
/// I). Its distance preserves the alignment of the file's segment.
fn distance(machine: Machine, template: TlsTemplate, offset: u64) -> Option<u64> {
    let TlsTemplate { address, bytes, align } = template;
    if !align.is_power_of_two() || bytes > DISTANCE_MAX || align > DISTANCE_MAX || offset >= bytes {
        return None;
    }
    let misfit = |at: u64| address.wrapping_sub(at) & (align - 1);
    Some(match machine {
        Machine::X86_64 => {
            let begin = bytes.wrapping_neg();
            let begin = begin.wrapping_sub(begin.wrapping_sub(address) & (align - 1));
            begin.wrapping_add(offset)
        }
        Machine::Aarch64 => 16 + misfit(16) + offset,
    })
}

/// Locates a library's variable.
pub(crate) fn in_library(
    memory: &impl Memory,
    image: &Image,
    variable: TlsVariable,
    libc: Libc,
) -> TlsLookup {
    let kinds = image.machine.relocation_types();
    let mut found = TlsLookup::NotFound;
    let own = |relocation: &Relocation| relocation.symbol == variable.index && relocation.addend == 0;
    // If the linker has bound the name to this library, the relocation has only the offset.
    let bound = |relocation: &Relocation| relocation.symbol == 0 && relocation.addend == variable.offset;
    image.relocations(memory, |relocation| {
        let at = relocation.at;
        found = match relocation.kind {
            kind if kind == kinds.distance && (own(&relocation) || bound(&relocation)) => {
                from_distance(memory, image, at)
            }
            kind if kind == kinds.descriptor && (own(&relocation) || bound(&relocation)) => {
                from_descriptor(memory, image, at, libc)
            }
            // For a module number the offset follows it, or is the linker's.
            kind if kind == kinds.module && own(&relocation) => {
                let offset = memory.read_u64(at.wrapping_add(8));
                from_module(image, memory.read_u64(at), offset, libc)
            }
            kind if kind == kinds.module && relocation.symbol == 0 => {
                from_module(image, memory.read_u64(at), Some(variable.offset), libc)
            }
            _ => return false,
        };
        true
    });
    match found {
        TlsLookup::At(slot) => TlsLookup::At(ThreadContextSlot { library: Some(image.anchor()), ..slot }),
        other => other,
    }
}

fn from_distance(memory: &impl Memory, image: &Image, at: u64) -> TlsLookup {
    match memory.read_u64(at) {
        Some(0) => TlsLookup::NotRelocated,
        Some(distance) if image.machine.is_plausible_distance(distance) => {
            TlsLookup::At(static_slot(distance))
        }
        _ => TlsLookup::NotFound,
    }
}

fn from_descriptor(memory: &impl Memory, image: &Image, at: u64, libc: Libc) -> TlsLookup {
    let (Some(function), Some(argument)) = (memory.read_u64(at), memory.read_u64(at.wrapping_add(8))) else {
        return TlsLookup::NotFound;
    };
    // musl's loader writes the function first (do_relocs, ldso/dynlink.c); neither loader uses the
    // argument 0.
    if function == 0 || argument == 0 {
        return TlsLookup::NotRelocated;
    }
    // Old glibc loaders relocate a descriptor at its first use. Until then its argument is the
    // relocation itself (elf_machine_lazy_rel, sysdeps/x86_64/dl-machine.h of 2.31), which is
    // inside the library.
    if image.contains(argument) {
        return TlsLookup::NotRelocated;
    }
    // glibc: struct tlsdesc_dynamic_arg (sysdeps/x86_64/dl-tlsdesc.h); musl: the same two words
    // first (ldso/dynlink.c).
    let (module, offset) = (memory.read_u64(argument), memory.read_u64(argument.wrapping_add(8)));
    let is_distance = image.machine.is_plausible_distance(argument)
        // On aarch64 the heap of a program at a fixed address may be at an address as low as an
        // offset is large.
        && !(argument >= LOWEST_MAPPING
            && module.is_some_and(|module| (1..=MODULES_MAX).contains(&module))
            && offset.is_some_and(|offset| offset < DISTANCE_MAX));
    if is_distance {
        return TlsLookup::At(static_slot(argument));
    }
    from_module(image, module, offset, libc)
}

fn from_module(image: &Image, module: Option<u64>, offset: Option<u64>, libc: Libc) -> TlsLookup {
    let Some((module, offset)) = module.zip(offset) else { return TlsLookup::NotFound };
    if module == 0 {
        return TlsLookup::NotRelocated;
    }
    if module > MODULES_MAX || offset > DISTANCE_MAX {
        return TlsLookup::NotFound;
    }
    // glibc: a vector of pairs of words; the pair before its start has its length (dtv_t,
    // elf/dl-tls.c). Its pointer is the second word of the thread's head (tcbhead_t of x86_64) or
    // the first (aarch64). musl: a vector of words, the first of which is the length
    // (src/internal/pthread_impl.h). Its pointer is the second word, or right before the thread
    // pointer.
    let (dtv_length_offset, dtv_stride) = match libc {
        Libc::Glibc => (16u64.wrapping_neg(), 16),
        Libc::Musl => (0, 8),
    };
    let dtv_offset = match (image.machine, libc) {
        (Machine::X86_64, _) => 8,
        (Machine::Aarch64, Libc::Glibc) => 0,
        (Machine::Aarch64, Libc::Musl) => 8u64.wrapping_neg(),
    };
    let location = TlsLocation::Dynamic { module, offset, dtv_offset, dtv_length_offset, dtv_stride };
    TlsLookup::At(ThreadContextSlot { location, library: None })
}

fn static_slot(offset: u64) -> ThreadContextSlot {
    ThreadContextSlot { location: TlsLocation::Static { offset }, library: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand from the paper's figures, as `readelf -s` and the linker confirm.
    #[test]
    fn program_variable_offset_respects_alignment() {
        let x86 = |address, bytes, align, offset| {
            distance(Machine::X86_64, TlsTemplate { address, bytes, align }, offset).map(|at| at as i64)
        };
        assert_eq!(x86(0x3db8, 8, 8, 0), Some(-8));
        assert_eq!(x86(0x3db8, 20, 8, 8), Some(-16));
        assert_eq!(x86(0x3dc0, 0x48, 64, 0x40), Some(-0x40));
        // A block at 16 bytes after a multiple of 64 has this alignment in each thread.
        assert_eq!(x86(0x3d10, 8, 64, 0), Some(-48));
        assert_eq!(x86(0x3d10, 8, 48, 0), None);
        assert_eq!(x86(0, 8, 8, 8), None);
        let arm = |address, align, offset| {
            distance(Machine::Aarch64, TlsTemplate { address, bytes: 0x100, align }, offset)
        };
        assert_eq!(arm(0x1fd80, 8, 8), Some(24));
        assert_eq!(arm(0x1fd80, 64, 0), Some(64));
        assert_eq!(arm(0x1fd90, 64, 0), Some(16));
    }

    #[test]
    fn offset_is_distinguished_from_a_pointer() {
        assert!(
            Machine::X86_64.is_plausible_distance((-8i64) as u64)
                && !Machine::X86_64.is_plausible_distance(0)
        );
        assert!(
            !Machine::X86_64.is_plausible_distance(0x7f00_0000_1000)
                && !Machine::X86_64.is_plausible_distance(1)
        );
        assert!(
            Machine::Aarch64.is_plausible_distance(16)
                && !Machine::Aarch64.is_plausible_distance(0xffff_8000_1000)
        );
    }
}
