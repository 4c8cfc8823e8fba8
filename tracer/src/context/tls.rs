//! Where a thread finds a thread-local variable: Ulrich Drepper, *ELF Handling For Thread-Local Storage*; Alexandre Oliva and
//! Glauber de Oliveira Costa, *Speeding Up Thread-Local Storage Access in Dynamic Libraries*.
//!
//! *A program's own* is at a distance from the thread pointer that its file alone decides. *A library's* is where the loader
//! has put it, which it has told the library's own code by one of three relocations:
//!
//! | relocation | what it left | |
//! |---|---|---|
//! | TPOFF | the distance from the thread pointer | initial-exec |
//! | DTPMOD (and the offset behind it) | the module's number: the thread's vector (DTV) has the block | general and local dynamic |
//! | TLSDESC | a function and its argument: a distance, or a pointer to module and offset | either |
//!
//! Where nothing is there yet the library is mapped and not relocated: whoever looks comes again.

use blkkin_probe_abi::context::{PLACE_DYNAMIC, PLACE_STATIC, Place};

use super::elf::{Image, Machine, Relocation, Template, Variable};
use super::memory::Memory;

/// Farthest from the thread pointer that is believed: all of static thread-local storage is a few KiB.
const DISTANCE_MAX: u64 = 16 << 20;
/// Nothing is mapped below it (vm.mmap_min_addr as the kernel sets it; CONFIG_DEFAULT_MMAP_MIN_ADDR is less on some).
const LOWEST_MAPPING: u64 = 32_768;
/// Modules that are believed: a number for each library with thread-local variables.
const MODULES_MAX: u64 = 65_536;

/// Whose loader it is: they differ in the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Libc {
    Glibc,
    Musl,
}

/// What was found of a library's variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    At(Place),
    /// It is not relocated yet.
    Unsettled,
    /// It is nowhere that a thread of another would find.
    Nowhere,
}

/// Types of relocations (System V ABI, supplements for AMD64 and for the Arm 64-bit architecture).
struct Kinds {
    module: u32,
    distance: u32,
    descriptor: u32,
}

impl Machine {
    fn kinds(self) -> Kinds {
        match self {
            Machine::X86_64 => Kinds { module: 16, distance: 18, descriptor: 36 },
            Machine::Aarch64 => Kinds { module: 1028, distance: 1030, descriptor: 1031 },
        }
    }

    /// As a distance from the thread pointer may be.
    fn believes(self, distance: u64) -> bool {
        match self {
            // Blocks lie below it.
            Machine::X86_64 => distance.wrapping_neg().wrapping_sub(1) < DISTANCE_MAX,
            Machine::Aarch64 => (16..DISTANCE_MAX).contains(&distance),
        }
    }
}

/// A program's own variable.
pub(crate) fn in_program(image: &Image, variable: Variable) -> Option<Place> {
    let distance = distance(image.machine, image.template?, variable.offset)?;
    image.machine.believes(distance).then_some(at_distance(distance))
}

/// From the thread pointer to `offset` of the program's block: below it on x86 (variant II of the paper), and above it, behind
/// two words, on aarch64 (variant I). Either is as far away as it must be for the block to be aligned as the file's is.
fn distance(machine: Machine, template: Template, offset: u64) -> Option<u64> {
    let Template { address, bytes, align } = template;
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

/// A library's variable.
pub(crate) fn in_library(memory: &impl Memory, image: &Image, variable: Variable, libc: Libc) -> Found {
    let kinds = image.machine.kinds();
    let mut found = Found::Nowhere;
    let own = |relocation: &Relocation| relocation.symbol == variable.index && relocation.addend == 0;
    // Where the linker has bound the name to this library, the relocation says only the offset.
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
            // Of a module's number the offset stands behind it, or is the linker's.
            kind if kind == kinds.module && own(&relocation) => {
                let offset = memory.word(at.wrapping_add(8));
                from_module(image, memory.word(at), offset, libc)
            }
            kind if kind == kinds.module && relocation.symbol == 0 => {
                from_module(image, memory.word(at), Some(variable.offset), libc)
            }
            _ => return false,
        };
        true
    });
    match found {
        Found::At(place) => Found::At(Place { anchor: image.anchor(), ..place }),
        other => other,
    }
}

fn from_distance(memory: &impl Memory, image: &Image, at: u64) -> Found {
    match memory.word(at) {
        Some(0) => Found::Unsettled,
        Some(distance) if image.machine.believes(distance) => Found::At(at_distance(distance)),
        _ => Found::Nowhere,
    }
}

fn from_descriptor(memory: &impl Memory, image: &Image, at: u64, libc: Libc) -> Found {
    let (Some(function), Some(argument)) = (memory.word(at), memory.word(at.wrapping_add(8))) else {
        return Found::Nowhere;
    };
    // musl's loader writes the function first (do_relocs, ldso/dynlink.c); 0 is no argument of either's.
    if function == 0 || argument == 0 {
        return Found::Unsettled;
    }
    // Old loaders of glibc's settle a descriptor when it is first used: until then its argument is the relocation itself
    // (elf_machine_lazy_rel, sysdeps/x86_64/dl-machine.h of 2.31), and that lies in the library.
    if image.holds(argument) {
        return Found::Unsettled;
    }
    // glibc: struct tlsdesc_dynamic_arg (sysdeps/x86_64/dl-tlsdesc.h); musl: the same two words first (ldso/dynlink.c).
    let (module, offset) = (memory.word(argument), memory.word(argument.wrapping_add(8)));
    let is_distance = image.machine.believes(argument)
        // On aarch64 a heap may lie as low as a distance is large: that of a program at a fixed address.
        && !(argument >= LOWEST_MAPPING
            && module.is_some_and(|module| (1..=MODULES_MAX).contains(&module))
            && offset.is_some_and(|offset| offset < DISTANCE_MAX));
    if is_distance {
        return Found::At(at_distance(argument));
    }
    from_module(image, module, offset, libc)
}

fn from_module(image: &Image, module: Option<u64>, offset: Option<u64>, libc: Libc) -> Found {
    let Some((module, offset)) = module.zip(offset) else { return Found::Nowhere };
    if module == 0 {
        return Found::Unsettled;
    }
    if module > MODULES_MAX || offset > DISTANCE_MAX {
        return Found::Nowhere;
    }
    // glibc: a vector of pairs of words, of which the one before the vector's begin has its length (dtv_t, elf/dl-tls.c), at
    // the second word of the thread's head (tcbhead_t of x86_64) or the first (aarch64). musl: one of words, of which the
    // first says how many (src/internal/pthread_impl.h), at the second word, or right before the thread pointer.
    let (length_at, stride) = match libc {
        Libc::Glibc => (16u64.wrapping_neg(), 16),
        Libc::Musl => (0, 8),
    };
    let vector_at = match (image.machine, libc) {
        (Machine::X86_64, _) => 8,
        (Machine::Aarch64, Libc::Glibc) => 0,
        (Machine::Aarch64, Libc::Musl) => 8u64.wrapping_neg(),
    };
    let kind = PLACE_DYNAMIC;
    Found::At(Place { kind, offset, module, vector_at, length_at, stride, ..Place::default() })
}

fn at_distance(distance: u64) -> Place {
    Place { kind: PLACE_STATIC, offset: distance, ..Place::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from the paper's figures, and as `readelf -s` and the linker's own code have it.
    #[test]
    fn a_programs_variable_is_as_far_from_the_thread_pointer_as_its_block_must_be() {
        let x86 = |address, bytes, align, offset| {
            distance(Machine::X86_64, Template { address, bytes, align }, offset).map(|at| at as i64)
        };
        assert_eq!(x86(0x3db8, 8, 8, 0), Some(-8));
        assert_eq!(x86(0x3db8, 20, 8, 8), Some(-16));
        assert_eq!(x86(0x3dc0, 0x48, 64, 0x40), Some(-0x40));
        // A block that begins 16 bytes behind a multiple of 64 does so in each thread.
        assert_eq!(x86(0x3d10, 8, 64, 0), Some(-48));
        assert_eq!(x86(0x3d10, 8, 48, 0), None);
        assert_eq!(x86(0, 8, 8, 8), None);
        let arm = |address, align, offset| {
            distance(Machine::Aarch64, Template { address, bytes: 0x100, align }, offset)
        };
        assert_eq!(arm(0x1fd80, 8, 8), Some(24));
        assert_eq!(arm(0x1fd80, 64, 0), Some(64));
        assert_eq!(arm(0x1fd90, 64, 0), Some(16));
    }

    #[test]
    fn a_distance_is_told_from_a_pointer() {
        assert!(Machine::X86_64.believes((-8i64) as u64) && !Machine::X86_64.believes(0));
        assert!(!Machine::X86_64.believes(0x7f00_0000_1000) && !Machine::X86_64.believes(1));
        assert!(Machine::Aarch64.believes(16) && !Machine::Aarch64.believes(0xffff_8000_1000));
    }
}
