//! Reader of the USDT notes in an ELF file.
//!
//! *In*: an ELF file. *Out*: each probe's name, file offset, semaphore offset and argument string.
//! The format is systemtap's `.note.stapsdt`, name `stapsdt`, type 3: three words (address,
//! link-time address of `.stapsdt.base`, semaphore) and three strings (provider, name, arguments)
//! (systemtap, includes/sys/sdt.h; gdb, stap-probe.c). A linker that later moves code also moves
//! `.stapsdt.base`; the addresses are off by the same amount.
//!
//! *Invariant*: a location is in a loaded segment, or the note is rejected, so the kernel is never
//! asked for a location outside the file. A rejected note rejects the whole file: half of a
//! program's probes would be misleading.

use std::fs::File;
use std::io;
use std::path::Path;

use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection, ReadCache, ReadRef};

/// Maximum number of notes. PostgreSQL has 71, glibc 130.
const NOTES_MAX: usize = 16_384;
/// Note type of a probe.
const STAPSDT: u32 = 3;
const SECTION: &str = ".note.stapsdt";
const BASE: &str = ".stapsdt.base";

/// Reason why a file's probes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NotesError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not a program for this machine.
    #[error("not a 64-bit ELF file for this machine{0}")]
    NotElf(String),
    /// The program was built without probes.
    #[error("no USDT probes (no section {SECTION}): the program was built without them")]
    NoProbes,
    /// A note is malformed.
    #[error("probe note {nth} is malformed: {what}")]
    Malformed {
        /// Number of the note, counted from 1.
        nth: usize,
        /// Description of the error.
        what: &'static str,
    },
    /// More notes than any real program has.
    #[error("more than {NOTES_MAX} probe notes")]
    TooMany,
}

/// An instance of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// `provider:name`
    pub name: String,
    /// File offset of the location.
    pub offset: u64,
    /// File offset of the semaphore; 0 if there is none.
    pub semaphore: u64,
    /// Argument string of the note.
    pub arguments: String,
}

/// Notes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Notes in file order.
    pub all: Vec<Note>,
}

/// A loaded segment: address, file offset, bytes in the file, and whether it is executable.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
    code: bool,
}

impl Notes {
    /// Reads the notes of a file.
    pub fn read(file: &Path) -> Result<Notes, NotesError> {
        Notes::parse(&ReadCache::new(File::open(file)?))
    }

    /// Parses the notes in a file's bytes.
    pub fn parse<'d>(bytes: impl ReadRef<'d>) -> Result<Notes, NotesError> {
        let no_elf = |error: object::Error| NotesError::NotElf(format!(": {error}"));
        let elf = ElfFile64::<Endianness, _>::parse(bytes).map_err(no_elf)?;
        let endian = elf.endian();
        if endian != Endianness::Little || elf.elf_header().e_machine(endian) != MACHINE {
            return Err(NotesError::NotElf(String::new()));
        }
        let segments: Vec<Segment> = elf
            .elf_program_headers()
            .iter()
            .filter(|segment| segment.p_type(endian) == PT_LOAD)
            .map(|segment| Segment {
                address: segment.p_vaddr(endian),
                offset: segment.p_offset(endian),
                bytes: segment.p_filesz(endian),
                code: segment.p_flags(endian) & PF_X != 0,
            })
            .collect();
        let base = elf.section_by_name(BASE).map(|section| section.address());
        let section = elf.section_by_name(SECTION).ok_or(NotesError::NoProbes)?;
        let notes = section.elf_section_header().notes(endian, bytes);
        let mut notes = notes.map_err(no_elf)?.ok_or(NotesError::NoProbes)?;
        let mut all = Vec::new();
        while let Some(note) = notes.next().map_err(no_elf)? {
            if note.name() != b"stapsdt" || note.n_type(endian) != STAPSDT {
                continue;
            }
            if all.len() >= NOTES_MAX {
                return Err(NotesError::TooMany);
            }
            let malformed = |what| NotesError::Malformed { nth: all.len() + 1, what };
            let note = read(note.desc(), base, &segments).map_err(malformed)?;
            // The kernel writes its breakpoint there: in the middle of an instruction it would
            // crash every process of the program.
            let there = |length: usize| bytes.read_bytes_at(note.offset, length as u64).unwrap_or_default();
            if !NOPS.iter().any(|nop| there(nop.len()) == *nop) {
                return Err(malformed("there is no `nop` at its location"));
            }
            all.push(note);
        }
        if all.is_empty() { Err(NotesError::NoProbes) } else { Ok(Notes { all }) }
    }
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = object::elf::EM_AARCH64;

/// Instructions at an unattached probe: one byte, or five bytes for a jump-optimized probe.
#[cfg(target_arch = "x86_64")]
const NOPS: &[&[u8]] = &[&[0x90], &[0x0f, 0x1f, 0x44, 0x00, 0x00]];
#[cfg(target_arch = "aarch64")]
const NOPS: &[&[u8]] = &[&[0x1f, 0x20, 0x03, 0xd5]];

/// Parses one note.
fn read(desc: &[u8], base: Option<u64>, segments: &[Segment]) -> Result<Note, &'static str> {
    let (words, texts) = desc.split_at_checked(24).ok_or("too short")?;
    let word = |n: usize| words.get(n * 8..n * 8 + 8).and_then(|word| word.try_into().ok());
    let word = |n: usize| word(n).map(u64::from_le_bytes).ok_or("too short");
    let (address, linked, semaphore) = (word(0)?, word(1)?, word(2)?);
    let moved = base.map_or(0, |base| base.wrapping_sub(linked));
    let mut texts = texts.split(|byte| *byte == 0);
    let mut text = || {
        let bytes = texts.next().ok_or("a string is missing")?;
        std::str::from_utf8(bytes).map_err(|_| "a string is not UTF-8")
    };
    let (provider, name, arguments) = (text()?, text()?, text()?);
    if provider.is_empty() || name.is_empty() {
        return Err("no provider or name");
    }
    // A string without a terminator was truncated.
    texts.next().ok_or("the last string is not terminated")?;
    let in_file = |address: u64, code: bool| {
        let inside = |segment: &&Segment| {
            let distance = address.checked_sub(segment.address);
            (segment.code || !code) && distance.is_some_and(|distance| distance < segment.bytes)
        };
        let segment = segments.iter().find(inside)?;
        segment.offset.checked_add(address - segment.address)
    };
    let offset = in_file(address.wrapping_add(moved), true).ok_or("its location is outside the code")?;
    let semaphore = match semaphore {
        0 => 0,
        address => {
            let offset = in_file(address.wrapping_add(moved), false)
                .ok_or("its semaphore is outside the loaded segments")?;
            // The kernel takes 32 bits of the offset (include/linux/trace_events.h,
            // PERF_UPROBE_REF_CTR_OFFSET_SHIFT).
            if u32::try_from(offset).is_ok() {
                offset
            } else {
                return Err("its semaphore's offset exceeds 32 bits");
            }
        }
    };
    Ok(Note { name: format!("{provider}:{name}"), offset, semaphore, arguments: arguments.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CODE: Segment = Segment { address: 0x1000, offset: 0x400, bytes: 0x100, code: true };
    const DATA: Segment = Segment { address: 0x3000, offset: 0x800, bytes: 0x100, code: false };

    fn desc(words: [u64; 3], texts: &[u8]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).chain(texts.iter().copied()).collect()
    }

    #[test]
    fn note_yields_file_offsets() {
        let note = read(&desc([0x1010, 0x2000, 0x3002], b"p\0n\08@%rax\0"), Some(0x2000), &[CODE, DATA]);
        let wanted = Note { name: "p:n".into(), offset: 0x410, semaphore: 0x802, arguments: "8@%rax".into() };
        assert_eq!(note, Ok(wanted));
    }

    #[test]
    fn moved_code_is_located_by_its_base() {
        // Linked for an address 0x2000 lower than its current one.
        let note = read(&desc([0x10, 0, 0], b"p\0n\0\0"), Some(0x1000), &[CODE, DATA]).unwrap();
        assert_eq!((note.offset, note.semaphore), (0x410, 0));
    }

    #[test]
    fn malformed_notes_are_distinguished() {
        let all = [CODE, DATA];
        let bad = |words, texts: &[u8]| read(&desc(words, texts), Some(0), &all).unwrap_err();
        assert_eq!(read(&[0; 23], None, &all), Err("too short"));
        assert_eq!(bad([0x5000, 0, 0], b"p\0n\0\0"), "its location is outside the code");
        assert_eq!(bad([0x3000, 0, 0], b"p\0n\0\0"), "its location is outside the code");
        assert_eq!(bad([0x1000, 0, 0x9000], b"p\0n\0\0"), "its semaphore is outside the loaded segments");
        let last = [Segment { address: u64::MAX, ..CODE }];
        assert_eq!(read(&desc([0, 0, 0], b"p\0n\0\0"), None, &last), Err("its location is outside the code"));
        assert_eq!(bad([0x1000, 0, 0], b"p\0n"), "a string is missing");
        assert_eq!(bad([0x1000, 0, 0], b"p\0n\08@%rax"), "the last string is not terminated");
        assert_eq!(bad([0x1000, 0, 0], b"\0n\0\0"), "no provider or name");
        assert_eq!(bad([0x1000, 0, 0], b"\xff\0n\0\0"), "a string is not UTF-8");
    }

    #[test]
    fn non_programs_and_programs_without_probes_are_rejected() {
        assert!(matches!(Notes::parse(&b"#!/bin/sh\n"[..]), Err(NotesError::NotElf(_))));
        let own = std::env::current_exe().unwrap();
        assert!(matches!(Notes::read(&own), Err(NotesError::NoProbes)), "a Rust program has none");
        assert!(matches!(Notes::read(Path::new("/nonexistent")), Err(NotesError::Io(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_note_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), base: Option<u64>) {
            if let Ok(note) = read(&bytes, base, &[CODE, DATA]) {
                prop_assert!((0x400..0x500).contains(&note.offset));
            }
        }
    }
}
