//! Header of a qcow2 image.
//!
//! *In*: the first bytes of an image that a process has open. *Out*: the length of the guest's disk, and that of a cluster;
//! none if the data are in another file. The format is docs/interop/qcow2.rst in QEMU.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Magic string of the format.
const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Bytes of a header up to the features that a reader must know. Version 2 has none.
const HEADER_BYTES: usize = 80;
const FEATURES: std::ops::Range<usize> = 72..80;
/// Feature: the data are in another file.
const EXTERNAL_DATA: u64 = 1 << 2;
/// Exponents of cluster sizes: 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

/// Header of a qcow2 image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qcow2Header {
    /// Bytes of the guest's disk.
    pub bytes: u64,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
}

impl Qcow2Header {
    /// Reads the header of an open file; none if it is no such image, or not readable.
    pub(crate) fn read(file: &Path) -> Option<Qcow2Header> {
        let mut start = [0; HEADER_BYTES];
        File::open(file).ok()?.read_exact(&mut start).ok()?;
        Qcow2Header::parse(&start)
    }

    /// Parses the first bytes of an image.
    pub(crate) fn parse(start: &[u8]) -> Option<Qcow2Header> {
        let word = |at: usize| Some(u32::from_be_bytes(start.get(at..at + 4)?.try_into().ok()?));
        let (version, bits) = (word(4)?, word(20)?);
        if !start.starts_with(&MAGIC) || !(2..=3).contains(&version) || !CLUSTER_BITS.contains(&bits) {
            return None;
        }
        let features = u64::from_be_bytes(start.get(FEATURES)?.try_into().ok()?);
        if version > 2 && features & EXTERNAL_DATA != 0 {
            return None;
        }
        let bytes = u64::from(word(24)?) << 32 | u64::from(word(28)?);
        Some(Qcow2Header { bytes, cluster_bytes: 1 << bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8, cluster_bits: u8) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        (header[7], header[23], header[29]) = (version, cluster_bits, 0x10);
        header
    }

    #[test]
    fn a_header_has_the_lengths_of_disk_and_cluster() {
        let expected = Qcow2Header { bytes: 0x10_0000, cluster_bytes: 65_536 };
        assert_eq!(Qcow2Header::parse(&header(3, 16)), Some(expected));
        let refused = [header(4, 16), header(1, 16), header(3, 8), header(3, 22), [0; HEADER_BYTES]];
        assert_eq!(refused.map(|header| Qcow2Header::parse(&header)), [None; 5]);
        assert_eq!(Qcow2Header::parse(&header(3, 16)[..79]), None);
        let external = |version| {
            let mut header = header(version, 16);
            header[79] = 0x1 | EXTERNAL_DATA as u8;
            Qcow2Header::parse(&header)
        };
        // An image of version 2 may have anything there.
        assert_eq!([2, 3].map(|version| external(version).is_some()), [true, false]);
    }
}
