//! Tests with compiled and hostile images.

use proptest::prelude::*;

use crate::elf::Image;
use crate::memory::{FakeMemory, ProcessMemory};
use crate::tls::{self, Libc};
use crate::{ThreadContextSlot, TlsLocation, VARIABLE, maps, scan};

/// A hand-written library with one symbol: headers, dynamic section, symbols, strings, hash table.
fn library(at: u64) -> FakeMemory {
    // The loaded part, and some memory after it.
    let mut bytes = vec![0u8; 0x1400];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &3u16.to_le_bytes());
    put(18, &62u16.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &3u16.to_le_bytes());
    let header = |kind: u32, address: u64, bytes: u64| {
        let words = [u64::from(kind), address, address, address, bytes, bytes, 8];
        words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    put(64, &header(1, 0, 0x1000));
    put(120, &header(2, 0x200, 0x80));
    put(176, &header(7, 0xf00, 16));
    let dynamic: [u64; 14] = [5, 0x400, 6, 0x300, 0x6fff_fef5, 0x500, 7, 0x600, 8, 24, 10, 64, 0, 0];
    put(0x200, &dynamic.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    // Symbol 1: name 1, a global thread-local object of section 9, at offset 8, of 8 bytes.
    put(0x300 + 24, &1u32.to_le_bytes());
    put(0x300 + 28, &[0x16, 0, 9, 0]);
    put(0x300 + 32, &8u64.to_le_bytes());
    put(0x300 + 40, &8u64.to_le_bytes());
    put(0x401, VARIABLE);
    // One bucket, symbols from 1 on, a Bloom filter of one word that accepts all.
    for (n, word) in [1u32, 1, 1, 6, u32::MAX, u32::MAX, 1].iter().enumerate() {
        put(0x500 + 4 * n, &word.to_le_bytes());
    }
    let hash = VARIABLE.iter().fold(5_381u32, |hash, byte| hash.wrapping_mul(33) + u32::from(*byte));
    put(0x51c, &(hash | 1).to_le_bytes());
    // TLS descriptor of symbol 1 at 0x700.
    put(0x600, &0x700u64.to_le_bytes());
    put(0x608, &(1u64 << 32 | 36).to_le_bytes());
    FakeMemory { at, bytes }
}

fn found(memory: &FakeMemory) -> Option<tls::TlsLookup> {
    let image = Image::read(memory, memory.at)?;
    let variable = image.variable(memory, VARIABLE)?;
    Some(tls::in_library(memory, &image, variable, Libc::Glibc))
}

fn with_descriptor(function: u64, argument: u64) -> FakeMemory {
    let mut memory = library(0x7f00_0000_0000);
    memory.bytes[0x700..0x708].copy_from_slice(&function.to_le_bytes());
    memory.bytes[0x708..0x710].copy_from_slice(&argument.to_le_bytes());
    memory
}

#[test]
fn unrelocated_library_is_not_final() {
    assert_eq!(found(&library(0x7f00_0000_0000)), Some(tls::TlsLookup::NotRelocated));
}

#[test]
fn tls_descriptor_has_an_offset_or_a_module() {
    let anchor = 0x7f00_0000_0000;
    let library = Some(anchor);
    let near = ThreadContextSlot { location: TlsLocation::Static { offset: (-64i64) as u64 }, library };
    assert_eq!(found(&with_descriptor(1, (-64i64) as u64)), Some(tls::TlsLookup::At(near)));
    let mut memory = with_descriptor(1, anchor + 0x1200);
    memory.bytes[0x1200..0x1208].copy_from_slice(&3u64.to_le_bytes());
    memory.bytes[0x1208..0x1210].copy_from_slice(&8u64.to_le_bytes());
    let location = TlsLocation::Dynamic {
        module: 3,
        offset: 8,
        dtv_offset: 8,
        dtv_length_offset: (-16i64) as u64,
        dtv_stride: 16,
    };
    let far = ThreadContextSlot { location, library };
    assert_eq!(found(&memory), Some(tls::TlsLookup::At(far)));
    assert_eq!(found(&with_descriptor(1, 0x1234)), Some(tls::TlsLookup::NotFound));
    // A lazily relocated descriptor: its argument is the relocation.
    assert_eq!(found(&with_descriptor(1, anchor + 0x600)), Some(tls::TlsLookup::NotRelocated));
}

/// Builds the same library for aarch64, in memory at `at`, with this descriptor argument and a
/// module and offset at 0x1200.
fn on_aarch64(at: u64, argument: u64) -> FakeMemory {
    let mut memory = library(at);
    let mut put = |at: usize, value: &[u8]| memory.bytes[at..at + value.len()].copy_from_slice(value);
    put(18, &183u16.to_le_bytes());
    put(0x608, &(1u64 << 32 | 1031).to_le_bytes());
    put(0x700, &1u64.to_le_bytes());
    put(0x708, &argument.to_le_bytes());
    put(0x1200, &3u64.to_le_bytes());
    put(0x1208, &8u64.to_le_bytes());
    memory
}

#[test]
fn aarch64_offset_is_distinguished_from_a_pointer_to_a_low_heap() {
    let location = |at, argument| match found(&on_aarch64(at, argument)) {
        Some(tls::TlsLookup::At(ThreadContextSlot { location, .. })) => match location {
            TlsLocation::Static { offset } => ("static", offset),
            TlsLocation::Dynamic { offset, .. } => ("dynamic", offset),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(location(0x55_0000_0000, 0x40), ("static", 0x40));
    assert_eq!(location(0x55_0000_0000, 0x55_0000_1200), ("dynamic", 8));
    // A program at a fixed address below 16 MiB, and its heap.
    assert_eq!(location(0x40_0000, 0x40_1200), ("dynamic", 8));
    // Without a valid module the value is an offset, however large.
    assert_eq!(location(0x40_0000, 0x40_1300), ("static", 0x40_1300));
}

/// musl's struct pthread on aarch64 (src/internal/pthread_impl.h, arch/aarch64/pthread_arch.h;
/// TLS_ABOVE_TP). The DTV pointer is the last word before the thread pointer. The DTV's first word
/// is its length, and its entries are complete addresses (DTP_OFFSET is 0).
#[test]
fn aarch64_musl_dtv_pointer_precedes_the_thread_pointer() {
    let memory = on_aarch64(0x55_0000_0000, 0x55_0000_1200);
    let image = Image::read(&memory, memory.at).unwrap();
    let variable = image.variable(&memory, VARIABLE).unwrap();
    let layout = |libc| match tls::in_library(&memory, &image, variable, libc) {
        tls::TlsLookup::At(ThreadContextSlot {
            location: TlsLocation::Dynamic { module, dtv_offset, dtv_length_offset, dtv_stride, .. },
            ..
        }) => (dtv_offset as i64, dtv_length_offset as i64, dtv_stride, module),
        other => panic!("{other:?}"),
    };
    assert_eq!(layout(Libc::Musl), (-8, 0, 8, 3));
    assert_eq!(layout(Libc::Glibc), (0, -16, 16, 3));
}

/// glibc's `errno` in this process: the located address must be the one that glibc returns.
#[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
#[test]
fn located_variable_matches_the_address_in_glibc() {
    let memory = ProcessMemory(std::process::id());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let images =
        maps::Mappings::parse(&maps).loaded().into_iter().filter_map(|one| Image::read(&memory, one.at));
    let found = images.filter_map(|image| {
        let variable = image.variable(&memory, b"errno")?;
        Some(tls::in_library(&memory, &image, variable, Libc::Glibc))
    });
    let found: Vec<_> = found.collect();
    let [tls::TlsLookup::At(slot)] = found[..] else { panic!("{found:?}") };
    let TlsLocation::Static { offset } = slot.location else { panic!("{slot:?}") };
    let here = move || {
        let thread: u64;
        // SAFETY: the first word at FS is its own address (System V ABI, supplement for AMD64).
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly)) };
        // SAFETY: no preconditions.
        (thread.wrapping_add(offset), unsafe { libc::__errno_location() } as u64)
    };
    for (found, is) in [here(), std::thread::spawn(here).join().unwrap()] {
        assert_eq!(found, is);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2_000), at: u64) {
        found(&FakeMemory { at, bytes });
    }

    #[test]
    fn corrupted_library_is_read_without_panic(
        changes in proptest::collection::vec((0..0x820usize, any::<u8>()), 0..24), at: u64
    ) {
        let mut memory = library(at);
        changes.into_iter().for_each(|(at, byte)| memory.bytes[at] = byte);
        if let Some(image) = Image::read(&memory, at)
            && let Some(variable) = image.variable(&memory, VARIABLE)
        {
            tls::in_program(&image, variable);
            tls::in_library(&memory, &image, variable, Libc::Musl);
            image.interpreter_contains(&memory, b"ld-musl");
        }
    }
}

#[test]
fn hash_table_at_the_end_of_its_number_range_has_no_symbol() {
    let mut last_symbol = library(0x7f00_0000_0000);
    // Index of the first symbol and of the bucket's, and the hash of a symbol that others follow.
    for (at, word) in [(0x504, u32::MAX), (0x518, u32::MAX), (0x51c, 0)] {
        last_symbol.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    assert_eq!(found(&last_symbol), None);
    assert_eq!(found(&library(u64::MAX - 0x50f)), None);
}

#[test]
fn own_process_has_no_thread_context() {
    let mut cache = crate::NegativeCache::new();
    let result = scan::scan(std::process::id(), &mut cache);
    assert_eq!(
        result.map(|result| (result.slot, result.process_contexts)),
        Ok((scan::SlotLookup::NotFound, Vec::new()))
    );
    assert!(cache.len() > 1, "the program and its libraries");
    let (before, again) = (cache.len(), scan::scan(std::process::id(), &mut cache));
    assert_eq!((again.map(|result| result.slot), cache.len()), (Ok(scan::SlotLookup::NotFound), before));
}
