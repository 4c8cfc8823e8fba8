//! Minimal reader of loaded ELF images: finds a thread-local variable in a process's memory.
//!
//! Only loaded parts are read: program headers, the dynamic section, and what that refers to
//! (System V ABI, chapters 4 and 5; glibc's elf.h). Section headers may be missing, and so may the
//! file. *Rejected*: the `object` crate, which finds dynamic symbols by section headers and needs
//! the whole file as one slice.
//!
//! *Invariant*: every read terminates, whatever the memory contains. The number of reads is bounded
//! by the constants below, and inconsistent data yield none.

use crate::memory::Memory;

/// Maximum number of program headers, and of dynamic entries. Real files have 15, and 40.
const HEADERS_MAX: usize = 64;
const DYNAMIC_MAX: usize = 512;
/// Maximum length of a hash chain. In a table of the default size a chain has two or three symbols.
const CHAIN_MAX: usize = 1_024;
/// Maximum number of relocations. The largest libraries of browsers have 600,000.
const RELOCATIONS_MAX: u64 = 2 << 20;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SYMBOL: u64 = 24;
const RELOCATION: usize = 24;

/// Types of program headers.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;

/// Tags of the dynamic section.
const DT_PLTRELSZ: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Symbol type of a thread-local variable.
const STT_TLS: u8 = 6;

/// Instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

/// Template of a thread's TLS block: `PT_TLS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsTemplate {
    /// Address before relocation; only its remainder by `align` matters.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) align: u64,
}

/// A loaded program or library.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) machine: Machine,
    /// Difference between loaded and file addresses.
    bias: u64,
    /// Address range.
    begin: u64,
    end: u64,
    pub(crate) tls_template: Option<TlsTemplate>,
    /// Address of the interpreter's name.
    interpreter: Option<u64>,
    /// Start of each segment.
    pub(crate) parts: Vec<Part>,
    /// False if there is a dynamic section and its memory could not be read.
    pub(crate) dynamic_readable: bool,
    dynamic: Dynamic,
}

/// Start of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Address in memory.
    pub(crate) address: u64,
    /// Offset in the file.
    pub(crate) offset: u64,
}

/// Contents of the dynamic section; 0 for absent entries.
#[derive(Clone, Copy, Debug, Default)]
struct Dynamic {
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
    hash: u64,
    /// Address and bytes.
    relocations: [(u64, u64); 2],
}

/// A thread-local variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsVariable {
    /// Index of its symbol.
    pub(crate) index: u32,
    /// Offset in the TLS block.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// An entry of a relocation table with addend (`Elf64_Rela`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relocation {
    /// Address of the relocated word.
    pub(crate) at: u64,
    pub(crate) kind: u32,
    /// Index of the symbol; 0 for none.
    pub(crate) symbol: u32,
    pub(crate) addend: u64,
}

impl Image {
    /// Reads the image whose file's first byte is at `at`.
    pub(crate) fn read(memory: &impl Memory, at: u64) -> Option<Image> {
        let mut header = [0; HEADER];
        memory.read(at, &mut header)?;
        // 64 bits, little-endian, ELF version 1.
        if header[..7] != *b"\x7fELF\x02\x01\x01" {
            return None;
        }
        let machine = match half(&header, 18)? & 0xffff {
            62 => Machine::X86_64,
            183 => Machine::Aarch64,
            _ => return None,
        };
        let headers = at.wrapping_add(word(&header, 32)?);
        let [entry, count] = [half(&header, 54)? & 0xffff, half(&header, 56)? & 0xffff];
        if entry as usize != PROGRAM_HEADER {
            return None;
        }
        let mut bytes = [0; HEADERS_MAX * PROGRAM_HEADER];
        let bytes = &mut bytes[..HEADERS_MAX.min(count as usize) * PROGRAM_HEADER];
        memory.read(headers, bytes)?;
        let (mut from, mut to, mut bias) = (u64::MAX, 0, None);
        let (mut template, mut dynamic, mut interpreter) = (None, None, None);
        let mut parts = Vec::new();
        for header in bytes.chunks_exact(PROGRAM_HEADER) {
            let (kind, offset, address) = (half(header, 0)?, word(header, 8)?, word(header, 16)?);
            let (bytes, align) = (word(header, 40)?, word(header, 48)?);
            match kind {
                PT_LOAD => {
                    if word(header, 32)? != 0 {
                        parts.push(Part { address, offset });
                    }
                    (from, to) = (from.min(address), to.max(address.saturating_add(bytes)));
                    // The segment that contains the file's first byte.
                    if offset == 0 && bias.is_none() {
                        bias = Some(at.wrapping_sub(address));
                    }
                }
                PT_DYNAMIC => dynamic = Some((address, bytes)),
                PT_INTERP => interpreter = Some(address),
                PT_TLS => template = Some(TlsTemplate { address, bytes, align: align.max(1) }),
                _ => {}
            }
        }
        let bias = bias?;
        for part in &mut parts {
            part.address = part.address.wrapping_add(bias);
        }
        let mut image = Image {
            machine,
            bias,
            begin: from.wrapping_add(bias),
            end: to.wrapping_add(bias),
            tls_template: template,
            interpreter: interpreter.map(|address| address.wrapping_add(bias)),
            parts,
            dynamic_readable: true,
            dynamic: Dynamic::default(),
        };
        if let Some((address, bytes)) = dynamic {
            image.dynamic_readable = image.read_dynamic(memory, address.wrapping_add(bias), bytes).is_some();
        }
        Some(image)
    }

    fn read_dynamic(&mut self, memory: &impl Memory, at: u64, bytes: u64) -> Option<()> {
        let mut entries = [0; DYNAMIC_MAX * 16];
        let entries = &mut entries[..(bytes as usize).min(DYNAMIC_MAX * 16) / 16 * 16];
        memory.read(at, entries)?;
        let mut found = Dynamic::default();
        for entry in entries.chunks_exact(16) {
            let (tag, value) = (word(entry, 0)?, word(entry, 8)?);
            match tag {
                0 => break,
                DT_SYMTAB => found.symbols = self.address(value),
                DT_STRTAB => found.strings = self.address(value),
                DT_GNU_HASH => found.gnu_hash = self.address(value),
                DT_HASH => found.hash = self.address(value),
                DT_RELA => found.relocations[0].0 = self.address(value),
                DT_RELASZ => found.relocations[0].1 = value,
                DT_JMPREL => found.relocations[1].0 = self.address(value),
                DT_PLTRELSZ => found.relocations[1].1 = value,
                _ => {}
            }
        }
        self.dynamic = found;
        Some(())
    }

    /// Resolves a pointer of the dynamic section: glibc's loader has relocated them if they are
    /// writable, musl's has not.
    fn address(&self, pointer: u64) -> u64 {
        if self.contains(pointer) { pointer } else { pointer.wrapping_add(self.bias) }
    }

    /// Returns whether the image contains an address.
    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.begin..self.end).contains(&address)
    }

    /// Returns an address inside the image.
    pub(crate) fn anchor(&self) -> u64 {
        self.begin
    }

    /// Returns whether the interpreter's name contains these bytes.
    pub(crate) fn interpreter_contains(&self, memory: &impl Memory, words: &[u8]) -> bool {
        let mut name = [0; 64];
        // A shorter name may end at the end of a page.
        let read = |at| (8..=64).rev().step_by(8).any(|bytes| memory.read(at, &mut name[..bytes]).is_some());
        self.interpreter.is_some_and(read) && name.windows(words.len()).any(|window| window == words)
    }

    /// Looks up an exported thread-local variable.
    pub(crate) fn variable(&self, memory: &impl Memory, name: &[u8]) -> Option<TlsVariable> {
        let Dynamic { symbols, strings, gnu_hash, hash, .. } = self.dynamic;
        if symbols == 0 || strings == 0 {
            return None;
        }
        let look = |index: u32| self.symbol(memory, index, name);
        if gnu_hash != 0 {
            return by_gnu_hash(memory, gnu_hash, name, look);
        }
        if hash != 0 { by_hash(memory, hash, name, look) } else { None }
    }

    /// Reads the symbol at this index, if it is a thread-local variable with this name that is
    /// defined here.
    fn symbol(&self, memory: &impl Memory, index: u32, name: &[u8]) -> Option<TlsVariable> {
        let mut symbol = [0; SYMBOL as usize];
        memory.read(self.dynamic.symbols.wrapping_add(u64::from(index) * SYMBOL), &mut symbol)?;
        let defined = symbol[6..8] != [0, 0];
        if symbol[4] & 0xf != STT_TLS || !defined {
            return None;
        }
        let mut called = [0; 64];
        let called = called.get_mut(..name.len() + 1)?;
        memory.read(self.dynamic.strings.wrapping_add(half(&symbol, 0)?.into()), called)?;
        let same = called.split_last() == Some((&0, name));
        same.then_some(TlsVariable { index, offset: word(&symbol, 8)?, bytes: word(&symbol, 16)? })
    }

    /// Visits all relocations until `take` returns true.
    pub(crate) fn relocations(&self, memory: &impl Memory, mut take: impl FnMut(Relocation) -> bool) {
        const CHUNK: usize = 2_730;
        let mut left = RELOCATIONS_MAX;
        for (at, bytes) in self.dynamic.relocations {
            let count = (bytes / RELOCATION as u64).min(left);
            left -= count;
            let mut buffer = vec![0; CHUNK.min(count as usize) * RELOCATION];
            let mut done = 0;
            while done < count {
                let turn = (count - done).min(CHUNK as u64);
                let bytes = &mut buffer[..turn as usize * RELOCATION];
                if memory.read(at.wrapping_add(done * RELOCATION as u64), bytes).is_none() {
                    return;
                }
                for entry in bytes.chunks_exact(RELOCATION) {
                    if relocation(entry, self.bias).is_some_and(&mut take) {
                        return;
                    }
                }
                done += turn;
            }
        }
    }
}

fn relocation(entry: &[u8], bias: u64) -> Option<Relocation> {
    let (at, info, addend) = (word(entry, 0)?, word(entry, 8)?, word(entry, 16)?);
    Some(Relocation { at: at.wrapping_add(bias), kind: info as u32, symbol: (info >> 32) as u32, addend })
}

/// Finds the symbol through DT_GNU_HASH: a Bloom filter, buckets, and a hash value per symbol,
/// whose lowest bit ends a chain (Drepper: How To Write Shared Libraries; binutils, bfd/elflink.c).
fn by_gnu_hash<T>(
    memory: &impl Memory,
    table: u64,
    name: &[u8],
    lookup: impl Fn(u32) -> Option<T>,
) -> Option<T> {
    let mut header = [0; 16];
    memory.read(table, &mut header)?;
    let [buckets, first, words, shift] =
        [half(&header, 0)?, half(&header, 4)?, half(&header, 8)?, half(&header, 12)?];
    let hash = name.iter().fold(5_381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    let at = table.wrapping_add(16);
    let filter = memory.read_u64(at.wrapping_add(u64::from((hash / 64).checked_rem(words)?) * 8))?;
    let bits = 1u64 << (hash % 64) | 1u64 << (hash.checked_shr(shift)? % 64);
    if filter & bits != bits {
        return None;
    }
    let at = at.wrapping_add(u64::from(words) * 8);
    let bucket = hash.checked_rem(buckets)?;
    let begin = memory.read_u32(at.wrapping_add(u64::from(bucket) * 4))?;
    let chain = at.wrapping_add(u64::from(buckets) * 4);
    for index in (begin..=u32::MAX).take(CHAIN_MAX) {
        let value = memory.read_u32(chain.wrapping_add(u64::from(index.checked_sub(first)?) * 4))?;
        if value | 1 == hash | 1
            && let Some(found) = lookup(index)
        {
            return Some(found);
        }
        if value & 1 != 0 {
            return None;
        }
    }
    None
}

/// Finds the symbol through DT_HASH (System V ABI, chapter 5, Hash Table).
fn by_hash<T>(memory: &impl Memory, table: u64, name: &[u8], look: impl Fn(u32) -> Option<T>) -> Option<T> {
    let [buckets, symbols] = [memory.read_u32(table)?, memory.read_u32(table.wrapping_add(4))?];
    let hash = name.iter().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let top = hash & 0xf000_0000;
        (hash ^ top >> 24) & !top
    });
    let at = table.wrapping_add(8);
    let chain = at.wrapping_add(u64::from(buckets) * 4);
    let mut index = memory.read_u32(at.wrapping_add(u64::from(hash.checked_rem(buckets)?) * 4))?;
    for _ in 0..CHAIN_MAX {
        if index == 0 || index >= symbols {
            return None;
        }
        if let Some(found) = look(index) {
            return Some(found);
        }
        index = memory.read_u32(chain.wrapping_add(u64::from(index) * 4))?;
    }
    None
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
