//! Parser of `/proc/PID/maps` (Documentation/filesystems/proc.rst): load addresses of programs and
//! libraries, and process context mappings.

use std::collections::HashMap;

/// Maximum number of lines: more than the default limit of mappings (vm.max_map_count, 65,530).
const LINES_MAX: usize = 65_536;

/// A mapped file, by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Inode number.
    pub ino: u64,
}

/// Load address of a program or library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoadedFile {
    /// Address of the file's first byte.
    pub(crate) at: u64,
    pub(crate) file: MappedFile,
}

/// Name prefixes of process context mappings. Which one a process uses depends on what its kernel
/// supports: naming shared memory, memfd, or naming anonymous memory (OTEP 4719, *Reading
/// Protocol*).
const MAPPING_NAMES: [&str; 3] = ["[anon_shmem:OTEL_CTX]", "/memfd:OTEL_CTX", "[anon:OTEL_CTX]"];

/// Returns the start addresses of process context mappings.
pub(crate) fn process_context_mappings(maps: &str) -> Vec<u64> {
    let lines = maps.lines().take(LINES_MAX).filter(|line| line.contains("OTEL_CTX"));
    let mappings = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (begin, _) = words.next()?.split_once('-')?;
        let name = words.nth(4)?;
        MAPPING_NAMES.iter().any(|prefix| name.starts_with(prefix)).then(|| hex(begin))?
    });
    mappings.collect()
}

/// A mapping of a part of a file.
struct Mapping {
    begin: u64,
    end: u64,
    executable: bool,
    offset: u64,
    file: MappedFile,
}

/// File mappings of a process.
pub(crate) struct Mappings(Vec<Mapping>);

impl Mappings {
    pub(crate) fn parse(maps: &str) -> Mappings {
        Mappings(maps.lines().take(LINES_MAX).filter_map(mapping).collect())
    }

    /// Files mapped from their start and followed by an executable mapping, once per such load. A
    /// file that is also mapped for reading (as profilers do for symbols) is not loaded there.
    pub(crate) fn loaded(&self) -> Vec<LoadedFile> {
        let mut begins = HashMap::new();
        let mut loaded = Vec::new();
        for mapping in &self.0 {
            if mapping.offset == 0 {
                begins.insert(mapping.file, mapping.begin);
            }
            if mapping.executable
                && let Some(at) = begins.remove(&mapping.file)
            {
                loaded.push(LoadedFile { at, file: mapping.file });
            }
        }
        loaded
    }

    /// Returns whether `address` maps `file` at `offset`; false if it maps another part of the
    /// file. Loaders first map a whole library from its start, then each segment over that (glibc:
    /// _dl_map_segments, elf/dl-map-segments.h; musl: map_library, ldso/dynlink.c). Memory of no
    /// file or of another file was placed there on purpose, and counts as true.
    pub(crate) fn is_in_place(&self, file: MappedFile, address: u64, offset: u64) -> bool {
        // Mappings are sorted by address.
        let behind = self.0.partition_point(|mapping| mapping.begin <= address);
        let there = self.0[..behind].last().filter(|mapping| address < mapping.end);
        let part = |mapping: &Mapping| mapping.offset.wrapping_add(address - mapping.begin);
        there.is_none_or(|mapping| mapping.file != file || part(mapping) == offset)
    }
}

/// Parses `7f12-7f34 r-xp 0001c000 fd:01 1234    /usr/lib/libc.so.6`; none for a mapping without a
/// file.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let ino = words.next()?.parse().ok()?;
    let file = MappedFile { major: small(hex(major)?)?, minor: small(hex(minor)?)?, ino };
    (ino != 0).then_some(Mapping {
        begin: hex(begin)?,
        end: hex(end)?,
        executable: rights.as_bytes().get(2) == Some(&b'x'),
        offset,
        file,
    })
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn small(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loaded_files_are_mapped_from_their_start() {
        let maps = "\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 77 /usr/bin/program
55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 77 /usr/bin/program
7f0000000000-7f0000100000 r--p 00000000 fe:00 99 /usr/share/data
7f0000200000-7f0000201000 r--p 00000000 00:01 5  /memfd:library with spaces (deleted)
7f0000201000-7f0000202000 r-xp 00001000 00:01 5  /memfd:library with spaces (deleted)
7f0000300000-7f0000302000 r--p 00000000 00:01 5  /memfd:library with spaces (deleted)
7f0000302000-7f0000303000 rwxp 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
";
        let at = |at, minor, major, ino| LoadedFile { at, file: MappedFile { major, minor, ino } };
        assert_eq!(
            Mappings::parse(maps).loaded(),
            [at(0x55d0_c000_0000, 0, 0xfe, 77), at(0x7f00_0020_0000, 1, 0, 5)]
        );
    }

    /// Mappings of a library after each step of glibc's loader; data addresses are 0x1000 beyond
    /// their file offsets.
    #[test]
    fn segment_is_in_place_once_mapped_over_the_whole_file() {
        let file = MappedFile { major: 0xfe, minor: 0, ino: 8 };
        let data = |maps: &str| Mappings::parse(maps).is_in_place(file, 0x7f00_0000_3e00, 0x2e00);
        let whole = "7f0000000000-7f0000005000 r--p 00000000 fe:00 8 /lib/x.so\n";
        assert!(!data(whole));
        let code = "\
7f0000000000-7f0000001000 r--p 00000000 fe:00 8 /lib/x.so
7f0000001000-7f0000002000 r-xp 00001000 fe:00 8 /lib/x.so
7f0000002000-7f0000005000 r--p 00002000 fe:00 8 /lib/x.so
";
        assert!(!data(code));
        let data_too = code.replace("2000-7f0000005000 r--p", "2000-7f0000003000 r--p");
        assert!(data(&format!("{data_too}7f0000003000-7f0000005000 rw-p 00002000 fe:00 8 /lib/x.so\n")));
        // Memory placed there on purpose: of no file, and of another file.
        assert!(data(&format!("{data_too}7f0000003000-7f0000005000 rw-p 00000000 00:00 0\n")));
        assert!(data(&format!("{data_too}7f0000003000-7f0000005000 rw-p 00000000 00:0f 9 /huge/x\n")));
    }

    #[test]
    fn process_contexts_are_found_by_mapping_name() {
        let maps = "\
7f0000001000-7f0000002000 rw-p 00000000 00:01 1030 /memfd:OTEL_CTX (deleted)
7f0000003000-7f0000004000 rw-p 00000000 00:01 1031 [anon_shmem:OTEL_CTX]
7f0000005000-7f0000006000 rw-p 00000000 00:00 0    [anon:OTEL_CTX]
7f0000007000-7f0000008000 rw-p 00000000 00:00 0    [anon:OTEL]
7f0000009000-7f000000a000 rw-p 00000000 00:01 1032 /srv/OTEL_CTX
7f000000b000-7f000000c000 rw-p 00000000 00:00 0
OTEL_CTX
";
        assert_eq!(process_context_mappings(maps), [0x7f00_0000_1000, 0x7f00_0000_3000, 0x7f00_0000_5000]);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in "[0-9a-f:rwxp \\n-]{0,300}") {
            let mappings = Mappings::parse(&text);
            for LoadedFile { at, file } in mappings.loaded() {
                assert!(mappings.is_in_place(file, at, 0) || mappings.0.len() > 1);
            }
            process_context_mappings(&text);
        }
    }
}
