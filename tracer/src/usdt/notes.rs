//! The notes of probes in a program's file.
//!
//! *In*: an ELF file. *Out*: each probe's name, where in the file it is, its semaphore's place, its arguments' words. The form is
//! systemtap's: `.note.stapsdt`, name `stapsdt`, type 3; three words (where, where `.stapsdt.base` was when it was linked, the
//! semaphore) and three texts (provider, name, arguments) (systemtap, includes/sys/sdt.h; gdb, stap-probe.c). A linker that moves code
//! afterwards moves `.stapsdt.base` as well: by so much the words are wrong.
//!
//! *Invariant*: a place lies in a segment that is loaded, or the note is refused; so the kernel is never asked for one outside of
//! the file. Notes that are refused refuse the file: half of a program's probes is no answer.

use std::fs::File;
use std::io;
use std::path::Path;

use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection, ReadCache, ReadRef};

/// Notes that are looked at: PostgreSQL has 71, glibc 130.
const NOTES_MAX: usize = 16_384;
/// The type of a note of a probe.
const STAPSDT: u32 = 3;
const SECTION: &str = ".note.stapsdt";
const BASE: &str = ".stapsdt.base";

/// Why a file's probes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NotesError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no program of this machine.
    #[error("it is no 64-bit ELF file for this machine{0}")]
    NoElf(String),
    /// It was built without probes.
    #[error("it has no USDT probes (no section {SECTION}): it was built without them")]
    NoNotes,
    /// One is not what it should be.
    #[error("the note of a probe, the {nth}th, is malformed: {what}")]
    Malformed {
        /// Which, counted from 1.
        nth: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There are more than anybody has.
    #[error("it has more than {NOTES_MAX} notes of probes")]
    TooMany,
}

/// One probe at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// `provider:name`
    pub name: String,
    /// In the file.
    pub offset: u64,
    /// In the file; 0: it has none.
    pub semaphore: u64,
    /// As they stand there.
    pub arguments: String,
}

/// All of a file's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// In the file's order.
    pub all: Vec<Note>,
}

/// A segment that is loaded: where, from which place in the file, how many bytes of it; and whether code is in it.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
    code: bool,
}

impl Notes {
    /// Reads those of a file.
    pub fn read(file: &Path) -> Result<Notes, NotesError> {
        Notes::of(&ReadCache::new(File::open(file)?))
    }

    /// Reads those of a file's bytes.
    pub fn of<'d>(bytes: impl ReadRef<'d>) -> Result<Notes, NotesError> {
        let no_elf = |error: object::Error| NotesError::NoElf(format!(": {error}"));
        let elf = ElfFile64::<Endianness, _>::parse(bytes).map_err(no_elf)?;
        let endian = elf.endian();
        if endian != Endianness::Little || elf.elf_header().e_machine(endian) != MACHINE {
            return Err(NotesError::NoElf(String::new()));
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
        let section = elf.section_by_name(SECTION).ok_or(NotesError::NoNotes)?;
        let notes = section.elf_section_header().notes(endian, bytes);
        let mut notes = notes.map_err(no_elf)?.ok_or(NotesError::NoNotes)?;
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
            // The kernel puts its breakpoint there: in the middle of an instruction it would break every process of the program.
            let there = |length: usize| bytes.read_bytes_at(note.offset, length as u64).unwrap_or_default();
            if !NOPS.iter().any(|nop| there(nop.len()) == *nop) {
                return Err(malformed("there is no `nop` at its place"));
            }
            all.push(note);
        }
        if all.is_empty() { Err(NotesError::NoNotes) } else { Ok(Notes { all }) }
    }
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = object::elf::EM_AARCH64;

/// What stands where a probe is, if nobody is there: of one byte, or of five where the kernel is to jump.
#[cfg(target_arch = "x86_64")]
const NOPS: &[&[u8]] = &[&[0x90], &[0x0f, 0x1f, 0x44, 0x00, 0x00]];
#[cfg(target_arch = "aarch64")]
const NOPS: &[&[u8]] = &[&[0x1f, 0x20, 0x03, 0xd5]];

/// What a note says.
fn read(desc: &[u8], base: Option<u64>, segments: &[Segment]) -> Result<Note, &'static str> {
    let (words, texts) = desc.split_at_checked(24).ok_or("it is too short")?;
    let word = |n: usize| words.get(n * 8..n * 8 + 8).and_then(|word| word.try_into().ok());
    let word = |n: usize| word(n).map(u64::from_le_bytes).ok_or("it is too short");
    let (place, linked, semaphore) = (word(0)?, word(1)?, word(2)?);
    let moved = base.map_or(0, |base| base.wrapping_sub(linked));
    let mut texts = texts.split(|byte| *byte == 0);
    let mut text = || {
        let bytes = texts.next().ok_or("a text is missing")?;
        std::str::from_utf8(bytes).map_err(|_| "a text is no UTF-8")
    };
    let (provider, name, arguments) = (text()?, text()?, text()?);
    if provider.is_empty() || name.is_empty() {
        return Err("it has no name");
    }
    // A text that nothing ends was cut.
    texts.next().ok_or("its last text has no end")?;
    let in_file = |address: u64, code: bool| {
        let inside = |segment: &&Segment| {
            (segment.code || !code) && address.wrapping_sub(segment.address) < segment.bytes
        };
        let segment = segments.iter().find(inside)?;
        segment.offset.checked_add(address - segment.address)
    };
    let offset = in_file(place.wrapping_add(moved), true).ok_or("its place is in no code of the file")?;
    let semaphore = match semaphore {
        0 => 0,
        address => {
            let place = in_file(address.wrapping_add(moved), false).ok_or("its semaphore is nowhere")?;
            // The kernel takes 32 bits of it (include/linux/trace_events.h, PERF_UPROBE_REF_CTR_OFFSET_SHIFT).
            if u32::try_from(place).is_ok() { place } else { return Err("its semaphore is too far away") }
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
    fn a_note_is_a_place_in_the_file() {
        let note = read(&desc([0x1010, 0x2000, 0x3002], b"p\0n\08@%rax\0"), Some(0x2000), &[CODE, DATA]);
        let wanted = Note { name: "p:n".into(), offset: 0x410, semaphore: 0x802, arguments: "8@%rax".into() };
        assert_eq!(note, Ok(wanted));
    }

    #[test]
    fn what_was_moved_after_it_was_linked_is_found_where_it_is() {
        // Linked for 0x2000 lower than it lies now.
        let note = read(&desc([0x10, 0, 0], b"p\0n\0\0"), Some(0x1000), &[CODE, DATA]).unwrap();
        assert_eq!((note.offset, note.semaphore), (0x410, 0));
    }

    #[test]
    fn bad_notes_are_told_apart() {
        let all = [CODE, DATA];
        let bad = |words, texts: &[u8]| read(&desc(words, texts), Some(0), &all).unwrap_err();
        assert_eq!(read(&[0; 23], None, &all), Err("it is too short"));
        assert_eq!(bad([0x5000, 0, 0], b"p\0n\0\0"), "its place is in no code of the file");
        assert_eq!(bad([0x3000, 0, 0], b"p\0n\0\0"), "its place is in no code of the file");
        assert_eq!(bad([0x1000, 0, 0x9000], b"p\0n\0\0"), "its semaphore is nowhere");
        assert_eq!(bad([0x1000, 0, 0], b"p\0n"), "a text is missing");
        assert_eq!(bad([0x1000, 0, 0], b"p\0n\08@%rax"), "its last text has no end");
        assert_eq!(bad([0x1000, 0, 0], b"\0n\0\0"), "it has no name");
        assert_eq!(bad([0x1000, 0, 0], b"\xff\0n\0\0"), "a text is no UTF-8");
    }

    #[test]
    fn what_is_no_program_or_has_no_probes_says_so() {
        assert!(matches!(Notes::of(&b"#!/bin/sh\n"[..]), Err(NotesError::NoElf(_))));
        let own = std::env::current_exe().unwrap();
        assert!(matches!(Notes::read(&own), Err(NotesError::NoNotes)), "a Rust program has none");
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
