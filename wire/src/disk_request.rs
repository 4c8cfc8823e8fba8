//! Requests to a virtual machine's disk, and how a guest and its host name them.
//!
//! *In*: a block request inside the guest, or an operation of the QEMU process on the disk's image. *Out*: an
//! [`RpcKey`]: the disk as its connection, and operation and range as its cookie. *Invariant*: both sides have the
//! same key for the same disk, operation and range, and [`DiskRequest::from_cookie`] returns what
//! [`DiskRequest::cookie`] encoded.
//!
//! The key is that of a raw image: QEMU passes on operation, offset and length. It repeats, since a guest may write
//! a block twice. So a key alone is never a reason to link: see `aggregator/src/stage/link/disk.rs`.
//!
//! # Images that are not the guest's disk
//!
//! A key may also have a range of an image with clusters, or of a backing file: [`DiskRequest::in_image`]. All images of
//! one disk have one address space then, each a part of its own.
//!
//! *Rejected*: the image's inode in the key (the guest does not know it); the position in QEMU's queue (nothing
//! transmits it).

use crate::ids::{NodeId, Pid};
use crate::remote_link::RpcKey;

/// Protocol of these keys.
pub const DISK_PROTOCOL: &str = "disk";
/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Bits of the length in sectors: up to 2 GiB.
const LENGTH_BITS: u32 = 22;
/// Bits of the first sector: up to 512 TiB.
const START_BITS: u32 = 40;

/// Bits of the first sector within one of several images: up to 32 TiB.
const IMAGE_BITS: u32 = 36;
/// Bit of the first sector: the image has the guest's bytes at the guest's offsets.
const AT_GUESTS_OFFSETS: u64 = 1 << (START_BITS - 1);
/// Maximum number of backing files below each other.
pub const LAYER_MAX: u32 = (1 << (START_BITS - 1 - IMAGE_BITS)) - 1;

/// Operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DiskOperation {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush of the disk's cache: `fdatasync` of the image.
    Flush,
    /// Discard, or write-zeroes: a hole or zeroes in the image.
    Discard,
}

const OPERATIONS: [DiskOperation; 4] =
    [DiskOperation::Read, DiskOperation::Write, DiskOperation::Flush, DiskOperation::Discard];

/// Request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskRequest {
    /// Operation.
    pub operation: DiskOperation,
    /// First sector of 512 bytes.
    pub start: u64,
    /// Number of sectors; 0 for a flush.
    pub length: u32,
}

impl DiskRequest {
    /// Flush of the whole disk.
    pub const FLUSH: DiskRequest = DiskRequest { operation: DiskOperation::Flush, start: 0, length: 0 };

    /// Highest first sector.
    pub const START_MAX: u64 = (1 << START_BITS) - 1;

    /// Returns a request for a range of bytes. None if it is empty, does not consist of whole sectors, or is beyond
    /// 512 TiB or 2 GiB long.
    pub fn of_bytes(operation: DiskOperation, offset: u64, bytes: u64) -> Option<DiskRequest> {
        let is_whole = offset.is_multiple_of(SECTOR) && bytes.is_multiple_of(SECTOR) && bytes > 0;
        let (start, length) = (offset / SECTOR, u32::try_from(bytes / SECTOR).ok()?);
        let fits = start >> START_BITS == 0 && length >> LENGTH_BITS == 0;
        (is_whole && fits).then_some(DiskRequest { operation, start, length })
    }

    /// Returns a range of an image in the address space of all images of a disk. `layer`: 0 for the image that the guest
    /// writes, 1 for its backing file. None if it is beyond 32 TiB, or has too many images above it.
    pub fn in_image(self, layer: u32, in_clusters: bool) -> Option<DiskRequest> {
        let fits = layer <= LAYER_MAX && self.end() >> IMAGE_BITS == 0;
        let kind = if in_clusters { 0 } else { AT_GUESTS_OFFSETS };
        fits.then(|| DiskRequest { start: self.start | u64::from(layer) << IMAGE_BITS | kind, ..self })
    }

    /// Returns the layer of a range of [`Self::in_image`].
    pub fn layer(self) -> u32 {
        ((self.start & !AT_GUESTS_OFFSETS) >> IMAGE_BITS) as u32
    }

    /// Returns the range of the guest's disk behind a range of [`Self::in_image`], if the image has the guest's bytes at
    /// the guest's offsets.
    pub fn at_guests_offsets(self) -> Option<DiskRequest> {
        let start = self.start & ((1 << IMAGE_BITS) - 1);
        (self.start & AT_GUESTS_OFFSETS != 0).then_some(DiskRequest { start, ..self })
    }

    /// Returns the sector after the last.
    pub fn end(self) -> u64 {
        self.start + u64::from(self.length)
    }

    /// Returns operation and range in one number.
    pub fn cookie(self) -> u64 {
        let operation = OPERATIONS.iter().position(|one| *one == self.operation).unwrap_or_default() as u64;
        operation << (START_BITS + LENGTH_BITS) | self.start << LENGTH_BITS | u64::from(self.length)
    }

    /// Returns the request of a cookie.
    pub fn from_cookie(cookie: u64) -> DiskRequest {
        let operation = OPERATIONS[(cookie >> (START_BITS + LENGTH_BITS)) as usize];
        let start = cookie >> LENGTH_BITS & Self::START_MAX;
        let length = cookie & ((1 << LENGTH_BITS) - 1);
        DiskRequest { operation, start, length: length as u32 }
    }

    /// Returns the key of a request to this disk of the virtual machine that the process `pid` of `host` runs.
    pub fn key(self, host: NodeId, pid: Pid, disk: &str) -> RpcKey {
        let connection = format!("{:032x} {} {disk}", host.0, pid.0).into();
        RpcKey { protocol: DISK_PROTOCOL.into(), connection, cookie: self.cookie() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cookie_is_one_request(
            operation in 0..4_usize, start in 0..1_u64 << START_BITS, length in 1..1_u32 << LENGTH_BITS
        ) {
            let request = DiskRequest { operation: OPERATIONS[operation], start, length };
            prop_assert_eq!(DiskRequest::from_cookie(request.cookie()), request);
            let bytes = u64::from(length) * SECTOR;
            prop_assert_eq!(DiskRequest::of_bytes(request.operation, start * SECTOR, bytes), Some(request));
        }

        #[test]
        fn any_cookie_is_read(cookie: u64) {
            prop_assert_eq!(DiskRequest::from_cookie(cookie).cookie(), cookie);
        }
    }

    #[test]
    fn a_range_that_no_disk_transmits_has_no_request() {
        let of = |offset, bytes| DiskRequest::of_bytes(DiskOperation::Read, offset, bytes);
        assert!(of(512, 4096).is_some());
        assert_eq!([of(1, 512), of(0, 100), of(0, 0), of(0, 1 << 31), of(1 << 49, 512)], [None; 5]);
    }

    #[test]
    fn each_image_of_a_disk_has_ranges_of_its_own() {
        let range = DiskRequest::of_bytes(DiskOperation::Read, 8 << 10, 4096).unwrap();
        let images = [(0, true), (1, true), (LAYER_MAX, true), (1, false), (LAYER_MAX, false)];
        let ranges = images.map(|(layer, in_clusters)| range.in_image(layer, in_clusters).unwrap());
        let distinct: std::collections::BTreeSet<u64> = ranges.iter().map(|range| range.cookie()).collect();
        assert_eq!((distinct.len(), ranges[0]), (5, range));
        assert_eq!(ranges.map(DiskRequest::layer), [0, 1, LAYER_MAX, 1, LAYER_MAX]);
        let guests = ranges.map(DiskRequest::at_guests_offsets);
        assert_eq!(guests, [None, None, None, Some(range), Some(range)]);
        assert!(ranges.iter().all(|range| DiskRequest::from_cookie(range.cookie()) == *range));
        let last = DiskRequest { start: (1 << IMAGE_BITS) - 8, ..range };
        assert_eq!([last.in_image(1, true), range.in_image(LAYER_MAX + 1, true)], [None; 2]);
    }

    #[test]
    fn a_flush_has_no_range() {
        assert_eq!(DiskRequest::from_cookie(DiskRequest::FLUSH.cookie()), DiskRequest::FLUSH);
    }
}
