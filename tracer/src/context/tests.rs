//! Programs and libraries that a compiler has made, and hostile ones.

use proptest::prelude::*;

use super::elf::Image;
use super::memory::{Bytes, ProcessMemory};
use super::tls::{self, Libc};
use super::{VARIABLE, maps, process};

/// A library of three hash values' worth, put together by hand: headers, dynamic section, symbols, strings, tables.
fn library(at: u64) -> Bytes {
    // What is loaded, and some memory behind it.
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
    // Symbol 1: name 1, a global thread-local object of section 9, at 8, of 8 bytes.
    put(0x300 + 24, &1u32.to_le_bytes());
    put(0x300 + 28, &[0x16, 0, 9, 0]);
    put(0x300 + 32, &8u64.to_le_bytes());
    put(0x300 + 40, &8u64.to_le_bytes());
    put(0x401, VARIABLE);
    // One bucket, symbols from 1 on, a filter of one word that lets all pass.
    for (n, word) in [1u32, 1, 1, 6, u32::MAX, u32::MAX, 1].iter().enumerate() {
        put(0x500 + 4 * n, &word.to_le_bytes());
    }
    let hash = VARIABLE.iter().fold(5_381u32, |hash, byte| hash.wrapping_mul(33) + u32::from(*byte));
    put(0x51c, &(hash | 1).to_le_bytes());
    // The descriptor of symbol 1 at 0x700.
    put(0x600, &0x700u64.to_le_bytes());
    put(0x608, &(1u64 << 32 | 36).to_le_bytes());
    Bytes { at, bytes }
}

fn found(memory: &Bytes) -> Option<tls::Found> {
    let image = Image::read(memory, memory.at)?;
    let variable = image.variable(memory, VARIABLE)?;
    Some(tls::in_library(memory, &image, variable, Libc::Glibc))
}

fn with_descriptor(function: u64, argument: u64) -> Bytes {
    let mut memory = library(0x7f00_0000_0000);
    memory.bytes[0x700..0x708].copy_from_slice(&function.to_le_bytes());
    memory.bytes[0x708..0x710].copy_from_slice(&argument.to_le_bytes());
    memory
}

#[test]
fn a_library_that_is_not_relocated_is_looked_at_again() {
    assert_eq!(found(&library(0x7f00_0000_0000)), Some(tls::Found::Unsettled));
}

#[test]
fn what_a_descriptor_says_is_a_distance_or_a_module() {
    use blkkin_probe_abi::context::{PLACE_DYNAMIC, PLACE_STATIC, Place};
    let anchor = 0x7f00_0000_0000;
    let near = Place { kind: PLACE_STATIC, offset: (-64i64) as u64, anchor, ..Place::default() };
    assert_eq!(found(&with_descriptor(1, (-64i64) as u64)), Some(tls::Found::At(near)));
    let mut memory = with_descriptor(1, anchor + 0x1200);
    memory.bytes[0x1200..0x1208].copy_from_slice(&3u64.to_le_bytes());
    memory.bytes[0x1208..0x1210].copy_from_slice(&8u64.to_le_bytes());
    let far = Place {
        kind: PLACE_DYNAMIC,
        offset: 8,
        module: 3,
        vector_at: 8,
        length_at: (-16i64) as u64,
        stride: 16,
        anchor,
        ..Place::default()
    };
    assert_eq!(found(&memory), Some(tls::Found::At(far)));
    assert_eq!(found(&with_descriptor(1, 0x1234)), Some(tls::Found::Nowhere));
    // One that is settled when it is first used: its argument is the relocation.
    assert_eq!(found(&with_descriptor(1, anchor + 0x600)), Some(tls::Found::Unsettled));
}

/// The same library for aarch64, in memory at `at`; its descriptor's argument, and there two words.
fn on_aarch64(at: u64, argument: u64) -> Bytes {
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
fn on_aarch64_a_distance_is_told_from_a_pointer_to_a_low_heap() {
    use blkkin_probe_abi::context::{PLACE_DYNAMIC, PLACE_STATIC};
    let kind = |at, argument| match found(&on_aarch64(at, argument)) {
        Some(tls::Found::At(place)) => (place.kind, place.offset),
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(0x55_0000_0000, 0x40), (PLACE_STATIC, 0x40));
    assert_eq!(kind(0x55_0000_0000, 0x55_0000_1200), (PLACE_DYNAMIC, 8));
    // A program at a fixed address below 16 MiB, and its heap.
    assert_eq!(kind(0x40_0000, 0x40_1200), (PLACE_DYNAMIC, 8));
    // Where no module is, it is a distance, however large.
    assert_eq!(kind(0x40_0000, 0x40_1300), (PLACE_STATIC, 0x40_1300));
}

/// musl's struct pthread on aarch64 (src/internal/pthread_impl.h, arch/aarch64/pthread_arch.h; TLS_ABOVE_TP): the vector is the last word
/// below the thread pointer, its first says how many blocks there are, and they are whole addresses (DTP_OFFSET is 0).
#[test]
fn on_aarch64_musls_vector_is_right_below_the_thread_pointer() {
    let memory = on_aarch64(0x55_0000_0000, 0x55_0000_1200);
    let image = Image::read(&memory, memory.at).unwrap();
    let variable = image.variable(&memory, VARIABLE).unwrap();
    let place = |libc| match tls::in_library(&memory, &image, variable, libc) {
        tls::Found::At(place) => (place.vector_at as i64, place.length_at as i64, place.stride, place.module),
        other => panic!("{other:?}"),
    };
    assert_eq!(place(Libc::Musl), (-8, 0, 8, 3));
    assert_eq!(place(Libc::Glibc), (0, -16, 16, 3));
}

/// glibc's `errno`, in this very process: where it is found is where glibc says that it is.
#[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
#[test]
fn a_real_librarys_variable_is_where_its_own_code_has_it() {
    use blkkin_probe_abi::context::PLACE_STATIC;
    let memory = ProcessMemory(std::process::id());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let images =
        maps::Mappings::of(&maps).loaded().into_iter().filter_map(|one| Image::read(&memory, one.at));
    let found = images.filter_map(|image| {
        let variable = image.variable(&memory, b"errno")?;
        Some(tls::in_library(&memory, &image, variable, Libc::Glibc))
    });
    let found: Vec<_> = found.collect();
    let [tls::Found::At(place)] = found[..] else { panic!("{found:?}") };
    assert_eq!(place.kind, PLACE_STATIC);
    let here = move || {
        let thread: u64;
        // SAFETY: the first word at FS is its own address (System V ABI, supplement for AMD64).
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly)) };
        // SAFETY: no preconditions.
        (thread.wrapping_add(place.offset), unsafe { libc::__errno_location() } as u64)
    };
    for (found, is) in [here(), std::thread::spawn(here).join().unwrap()] {
        assert_eq!(found, is);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_looked_through(bytes in proptest::collection::vec(any::<u8>(), 0..2_000), at: u64) {
        found(&Bytes { at, bytes });
    }

    #[test]
    fn a_library_with_bytes_changed_is_looked_through(
        changes in proptest::collection::vec((0..0x820usize, any::<u8>()), 0..24), at: u64
    ) {
        let mut memory = library(at);
        changes.into_iter().for_each(|(place, byte)| memory.bytes[place] = byte);
        if let Some(image) = Image::read(&memory, at)
            && let Some(variable) = image.variable(&memory, VARIABLE)
        {
            tls::in_program(&image, variable);
            tls::in_library(&memory, &image, variable, Libc::Musl);
            image.is_interpreted_by(&memory, b"ld-musl");
        }
    }
}

/// Nobody has the variable here.
#[test]
fn this_process_publishes_nothing() {
    let mut barren = super::barren::Barren::new();
    let looked = process::look(std::process::id(), &mut barren);
    assert_eq!(looked.map(|seen| (seen.publishes, seen.said)), Ok((process::Publishes::Nothing, Vec::new())));
    assert!(barren.len() > 1, "the program and its libraries");
    let (before, again) = (barren.len(), process::look(std::process::id(), &mut barren));
    assert_eq!((again.map(|seen| seen.publishes), barren.len()), (Ok(process::Publishes::Nothing), before));
}
