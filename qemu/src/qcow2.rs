//! Header of a qcow2 image.
//!
//! *In*: the first bytes of an image that a process has open. *Out*: the length of the guest's disk, that of a cluster,
//! and the name of the backing file; none if the data are in another file, or
//! if clusters are divided (subclusters). The format is docs/interop/qcow2.rst in QEMU.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Magic string of the format.
const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Bytes that are read: QEMU writes the name of the backing file into the first 2 KiB.
const START_BYTES: u64 = 8_192;
/// Bytes of a header up to the features that a reader must know, and its length in version 2, which has none.
const HEADER_BYTES: usize = 80;
const HEADER_BYTES_V2: usize = 72;
const FEATURES: usize = 72;
/// Features: the data are in another file; clusters have parts with places of their own.
const EXTERNAL_DATA: u64 = 1 << 2;
const EXTENDED_L2: u64 = 1 << 4;
/// Exponents of cluster sizes: 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Maximum length of the name of a backing file.
const NAME_MAX: usize = 1_023;
/// Header extension with the format of the backing file, and the last one.
const BACKING_FORMAT: u32 = 0xe279_2aca;
const END: u32 = 0;

/// Header of a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qcow2Header {
    /// Bytes of the guest's disk.
    pub bytes: u64,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// File that has what this image does not have.
    pub backing: Option<BackingName>,
}

/// Backing file as an image names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingName {
    /// Path, from the image's folder on.
    pub path: String,
    /// Format. None if QEMU has to find it out.
    pub format: Option<String>,
}

impl Qcow2Header {
    /// Reads the header of an open file; none if it is no such image, or not readable.
    pub(crate) fn read(file: &Path) -> Option<Qcow2Header> {
        let mut start = Vec::new();
        File::open(file).ok()?.take(START_BYTES).read_to_end(&mut start).ok()?;
        Qcow2Header::parse(&start)
    }

    /// Parses the first bytes of an image.
    pub(crate) fn parse(start: &[u8]) -> Option<Qcow2Header> {
        let (version, bits) = (word(start, 4)?, word(start, 20)?);
        if !start.starts_with(&MAGIC)
            || start.len() < HEADER_BYTES
            || !(2..=3).contains(&version)
            || !CLUSTER_BITS.contains(&bits)
        {
            return None;
        }
        if version > 2 && long(start, FEATURES)? & (EXTERNAL_DATA | EXTENDED_L2) != 0 {
            return None;
        }
        let backing = backing(start, version);
        Some(Qcow2Header { bytes: long(start, 24)?, cluster_bytes: 1 << bits, backing })
    }
}

/// Returns the name of the backing file; none if there is none, or if it is not within these bytes.
fn backing(start: &[u8], version: u32) -> Option<BackingName> {
    let (at, length) = (usize::try_from(long(start, 8)?).ok()?, word(start, 16)? as usize);
    let name = start.get(at..at.checked_add(length)?).filter(|name| (1..=NAME_MAX).contains(&name.len()))?;
    let path = std::str::from_utf8(name).ok()?.to_owned();
    let extensions = if version > 2 { word(start, 100)? as usize } else { HEADER_BYTES_V2 };
    Some(BackingName { path, format: backing_format(start, extensions) })
}

/// Returns what the header's extension for it has, from this position on.
fn backing_format(start: &[u8], mut at: usize) -> Option<String> {
    loop {
        let (kind, length) = (word(start, at)?, word(start, at.checked_add(4)?)? as usize);
        let data = at.checked_add(8)?;
        match kind {
            END => return None,
            BACKING_FORMAT => {
                let format = start.get(data..data.checked_add(length)?)?;
                return Some(std::str::from_utf8(format).ok()?.to_owned());
            }
            _ => at = data.checked_add(length.checked_next_multiple_of(8)?)?,
        }
    }
}

fn word(start: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(start.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(start: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(start.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(version: u8, cluster_bits: u8) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        (header[7], header[23], header[29]) = (version, cluster_bits, 0x10);
        header
    }

    #[test]
    fn a_header_has_the_lengths_of_disk_and_cluster() {
        let expected = Qcow2Header { bytes: 0x10_0000, cluster_bytes: 65_536, backing: None };
        assert_eq!(Qcow2Header::parse(&header(3, 16)), Some(expected));
        let refused = [header(4, 16), header(1, 16), header(3, 8), header(3, 22), [0; HEADER_BYTES]];
        assert_eq!(refused.map(|header| Qcow2Header::parse(&header)), [const { None }; 5]);
        assert_eq!(Qcow2Header::parse(&header(3, 16)[..79]), None);
        for feature in [EXTERNAL_DATA, EXTENDED_L2] {
            let with_feature = |version| {
                let mut header = header(version, 16);
                header[79] = 0x1 | feature as u8;
                Qcow2Header::parse(&header)
            };
            // An image of version 2 may have anything there.
            assert_eq!([2, 3].map(|version| with_feature(version).is_some()), [true, false]);
        }
    }

    /// Returns an image's first bytes with a backing file, and with an extension of 5 bytes before that of its format.
    pub(crate) fn with_backing(version: u8, path: &str, format: Option<&str>) -> Vec<u8> {
        let mut start = vec![0; 512];
        start[..HEADER_BYTES].copy_from_slice(&header(version, 16));
        let mut at = if version > 2 { 104 } else { HEADER_BYTES_V2 };
        if version > 2 {
            start[103] = 104;
        } else {
            start[HEADER_BYTES_V2..HEADER_BYTES].fill(0);
        }
        let other = (0x6803_f857_u32, b"other".as_slice());
        let of_format = format.map(|format| (BACKING_FORMAT, format.as_bytes()));
        for (kind, data) in [other].into_iter().chain(of_format) {
            start[at..at + 4].copy_from_slice(&kind.to_be_bytes());
            start[at + 7] = data.len() as u8;
            start[at + 8..at + 8 + data.len()].copy_from_slice(data);
            at += 8 + data.len().next_multiple_of(8);
        }
        (start[14], start[15], start[19]) = (1, 0x80, path.len() as u8);
        start[0x180..0x180 + path.len()].copy_from_slice(path.as_bytes());
        start
    }

    #[test]
    fn a_header_names_its_backing_file() {
        let named = |format: Option<&str>| {
            Some(BackingName { path: "base.img".into(), format: format.map(str::to_owned) })
        };
        for (version, format) in [(2, Some("raw")), (3, Some("qcow2")), (3, None)] {
            let start = with_backing(version, "base.img", format);
            assert_eq!(Qcow2Header::parse(&start).unwrap().backing, named(format), "{version} {format:?}");
            // The name is beyond what was read.
            assert_eq!(Qcow2Header::parse(&start[..0x187]).unwrap().backing, None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 0..600), is_image: bool) {
            if is_image && bytes.len() >= HEADER_BYTES {
                bytes[..8].copy_from_slice(&header(3, 16)[..8]);
                bytes[20..24].copy_from_slice(&[0, 0, 0, 16]);
                bytes[8..18].fill(0);
            }
            let header = Qcow2Header::parse(&bytes);
            prop_assert!(header.is_none_or(|header| header.cluster_bytes.is_power_of_two()));
        }
    }
}
