//! What a process has mapped: `/proc/PID/maps` (Documentation/filesystems/proc.rst) to the places where programs and libraries
//! are loaded.

use std::collections::HashMap;

use blkkin_wire::ids::DeviceId;

/// Lines that are read: more mappings than a process may have by default (vm.max_map_count, 65,530).
const LINES_MAX: usize = 65_536;

/// A file, by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MappedFile {
    pub(crate) device: DeviceId,
    pub(crate) ino: u64,
}

/// Where a program or a library begins in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Loaded {
    /// Where the file's first byte is.
    pub(crate) at: u64,
    pub(crate) file: MappedFile,
}

/// How a mapping's name begins in which a process says who it is, by what the kernel let it do: all, not give a name to memory, not make
/// a file in memory (OTEP 4719, *Reading Protocol*).
const SAID_NAMES: [&str; 3] = ["[anon_shmem:OTEL_CTX]", "/memfd:OTEL_CTX", "[anon:OTEL_CTX]"];

/// Where such mappings begin.
pub(crate) fn said(maps: &str) -> Vec<u64> {
    let lines = maps.lines().take(LINES_MAX).filter(|line| line.contains("OTEL_CTX"));
    let said = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (begin, _) = words.next()?.split_once('-')?;
        let name = words.nth(4)?;
        SAID_NAMES.iter().any(|said| name.starts_with(said)).then(|| hex(begin))?
    });
    said.collect()
}

/// A part of a file, and where it is.
struct Mapping {
    begin: u64,
    end: u64,
    executable: bool,
    offset: u64,
    file: MappedFile,
}

/// What is mapped of files.
pub(crate) struct Mappings(Vec<Mapping>);

impl Mappings {
    pub(crate) fn of(maps: &str) -> Mappings {
        Mappings(maps.lines().take(LINES_MAX).filter_map(mapping).collect())
    }

    /// Files that are mapped from their begin on, with something that may be executed behind it: each once for each time that it is so. One that
    /// is mapped besides to be read (profilers read symbols so) is not loaded there.
    pub(crate) fn loaded(&self) -> Vec<Loaded> {
        let mut begins = HashMap::new();
        let mut loaded = Vec::new();
        for mapping in &self.0 {
            if mapping.offset == 0 {
                begins.insert(mapping.file, mapping.begin);
            }
            if mapping.executable
                && let Some(at) = begins.remove(&mapping.file)
            {
                loaded.push(Loaded { at, file: mapping.file });
            }
        }
        loaded
    }

    /// False where another part of `file` is at `address` than that at `offset`. Loaders map a whole library from its begin on first and
    /// then, over that, part by part from where it belongs (glibc: _dl_map_segments, elf/dl-map-segments.h; musl: map_library,
    /// ldso/dynlink.c). Memory of no file, or of another one, was put there by somebody who knows why.
    pub(crate) fn has(&self, file: MappedFile, address: u64, offset: u64) -> bool {
        // They come in the order of their addresses.
        let behind = self.0.partition_point(|mapping| mapping.begin <= address);
        let there = self.0[..behind].last().filter(|mapping| address < mapping.end);
        let part = |mapping: &Mapping| mapping.offset.wrapping_add(address - mapping.begin);
        there.is_none_or(|mapping| mapping.file != file || part(mapping) == offset)
    }
}

/// `7f12-7f34 r-xp 0001c000 fd:01 1234    /usr/lib/libc.so.6`; none of what is no file's.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let ino = words.next()?.parse().ok()?;
    let device = DeviceId { major: small(hex(major)?)?, minor: small(hex(minor)?)? };
    let file = MappedFile { device, ino };
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
    fn what_is_loaded_begins_where_its_file_does() {
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
        let at = |at, minor, major, ino| Loaded {
            at,
            file: MappedFile { device: DeviceId { major, minor }, ino },
        };
        assert_eq!(
            Mappings::of(maps).loaded(),
            [at(0x55d0_c000_0000, 0, 0xfe, 77), at(0x7f00_0020_0000, 1, 0, 5)]
        );
    }

    /// As glibc's loader leaves a library behind each of its calls: the data's addresses are 0x1000 beyond their place in the file.
    #[test]
    fn a_part_is_there_once_it_is_mapped_over_the_whole() {
        let file = MappedFile { device: DeviceId { major: 0xfe, minor: 0 }, ino: 8 };
        let data = |maps: &str| Mappings::of(maps).has(file, 0x7f00_0000_3e00, 0x2e00);
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
        // Somebody's memory, of no file and of another.
        assert!(data(&format!("{data_too}7f0000003000-7f0000005000 rw-p 00000000 00:00 0\n")));
        assert!(data(&format!("{data_too}7f0000003000-7f0000005000 rw-p 00000000 00:0f 9 /huge/x\n")));
    }

    #[test]
    fn what_a_process_says_is_where_the_name_is() {
        let maps = "\
7f0000001000-7f0000002000 rw-p 00000000 00:01 1030 /memfd:OTEL_CTX (deleted)
7f0000003000-7f0000004000 rw-p 00000000 00:01 1031 [anon_shmem:OTEL_CTX]
7f0000005000-7f0000006000 rw-p 00000000 00:00 0    [anon:OTEL_CTX]
7f0000007000-7f0000008000 rw-p 00000000 00:00 0    [anon:OTEL]
7f0000009000-7f000000a000 rw-p 00000000 00:01 1032 /srv/OTEL_CTX
7f000000b000-7f000000c000 rw-p 00000000 00:00 0
OTEL_CTX
";
        assert_eq!(said(maps), [0x7f00_0000_1000, 0x7f00_0000_3000, 0x7f00_0000_5000]);
    }

    proptest! {
        #[test]
        fn any_text_is_a_list(text in "[0-9a-f:rwxp \\n-]{0,300}") {
            let mappings = Mappings::of(&text);
            for Loaded { at, file } in mappings.loaded() {
                assert!(mappings.has(file, at, 0) || mappings.0.len() > 1);
            }
            said(&text);
        }
    }
}
