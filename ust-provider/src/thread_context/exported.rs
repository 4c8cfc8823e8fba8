//! Dynamic symbols of this executable: whether it exports a thread-local variable for readers of
//! other processes.
//!
//! A static executable exports it only with a linker option, which a dependency cannot set.
//!
//! *In*: the program's own file. *Out*: whether its dynamic symbol table has the name (System V
//! ABI, chapter 4, *Symbol Table*). *Invariant*: a file that cannot be read or parsed exports
//! nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Type of a section of dynamic symbols (SHT_DYNSYM).
const SHT_DYNSYM: u32 = 11;
/// Type of a symbol of a thread-local variable (STT_TLS).
const STT_TLS: u8 = 6;
/// Maximum bytes of a table. A larger one is not read.
const TABLE_MAX: u64 = 64 << 20;

/// A section of the file.
struct Section {
    kind: u32,
    link: usize,
    offset: u64,
    bytes: u64,
}

/// Returns whether the executable exports a thread-local variable of this name.
pub(super) fn exports(name: &[u8]) -> bool {
    File::open("/proc/self/exe").ok().and_then(|file| exported(&file, name)).unwrap_or(false)
}

fn exported(file: &File, name: &[u8]) -> Option<bool> {
    let head = read(file, 0, 64)?;
    // ELFCLASS64. The byte order of our own executable is the native one.
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let (header_bytes, count) = (usize::from(u16_at(&head, 58)?), usize::from(u16_at(&head, 60)?));
    let headers = read(file, u64_at(&head, 40)?, (header_bytes * count) as u64)?;
    let sections = headers.chunks(header_bytes.max(64)).map(section).collect::<Option<Vec<_>>>()?;
    let symbols = sections.iter().find(|section| section.kind == SHT_DYNSYM)?;
    let names = sections.get(symbols.link)?;
    let (symbols, names) = (contents(file, symbols)?, contents(file, names)?);
    Some(symbols.chunks_exact(24).any(|symbol| matches(symbol, &names, name)))
}

/// Returns whether a symbol is thread-local, defined in this file, and has this name.
fn matches(symbol: &[u8], names: &[u8], name: &[u8]) -> bool {
    let end_of_name = || names.get(u32_at(symbol, 0)? as usize..)?.strip_prefix(name)?.first().copied();
    symbol[4] & 15 == STT_TLS && u16_at(symbol, 6) != Some(0) && end_of_name() == Some(0)
}

fn section(header: &[u8]) -> Option<Section> {
    Some(Section {
        kind: u32_at(header, 4)?,
        link: u32_at(header, 40)? as usize,
        offset: u64_at(header, 24)?,
        bytes: u64_at(header, 32)?,
    })
}

fn contents(file: &File, section: &Section) -> Option<Vec<u8>> {
    read(file, section.offset, section.bytes)
}

fn read(file: &File, at: u64, bytes: u64) -> Option<Vec<u8>> {
    if bytes > TABLE_MAX {
        return None;
    }
    let mut read = vec![0; bytes as usize];
    file.read_exact_at(&mut read, at).ok()?;
    Some(read)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// An ELF file of a header, one symbol with this type and section, its name, and two section
    /// headers.
    fn elf(kind: u8, section: u8, name: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64 + 24 + 32];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[40] = 120;
        (file[58], file[60]) = (64, 2);
        (file[64], file[68], file[70]) = (1, 0x10 | kind, section);
        file[89..89 + name.len()].copy_from_slice(name);
        let mut header = |kind: u8, offset: u8, bytes: u8| {
            let mut header = [0; 64];
            (header[4], header[24], header[32], header[40]) = (kind, offset, bytes, 1);
            file.extend(header);
        };
        header(SHT_DYNSYM as u8, 64, 24);
        header(3, 88, 32);
        file
    }

    fn found(bytes: &[u8]) -> Option<bool> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        exported(&file, b"slot_v1")
    }

    #[test]
    fn a_defined_thread_local_variable_of_this_name_is_exported() {
        assert_eq!(found(&elf(STT_TLS, 1, b"slot_v1\0")), Some(true));
        for other in [elf(1, 1, b"slot_v1\0"), elf(STT_TLS, 0, b"slot_v1\0"), elf(STT_TLS, 1, b"slot_v12\0")]
        {
            assert_eq!(found(&other), Some(false));
        }
    }

    #[test]
    fn this_program_exports_no_slot() {
        assert!(!exports(b"otel_thread_ctx_v1"));
    }

    #[test]
    fn a_truncated_or_corrupt_file_does_not_panic() {
        let whole = elf(STT_TLS, 1, b"slot_v1\0");
        for at in 0..whole.len() {
            found(&whole[..at]);
            for value in [0, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                found(&changed);
            }
        }
    }
}
