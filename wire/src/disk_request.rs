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

    /// Returns a request for a range of bytes. None if it is empty, does not consist of whole sectors, or is beyond
    /// 512 TiB or 2 GiB long.
    pub fn of_bytes(operation: DiskOperation, offset: u64, bytes: u64) -> Option<DiskRequest> {
        let is_whole = offset.is_multiple_of(SECTOR) && bytes.is_multiple_of(SECTOR) && bytes > 0;
        let (start, length) = (offset / SECTOR, u32::try_from(bytes / SECTOR).ok()?);
        let fits = start >> START_BITS == 0 && length >> LENGTH_BITS == 0;
        (is_whole && fits).then_some(DiskRequest { operation, start, length })
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
        let start = cookie >> LENGTH_BITS & ((1 << START_BITS) - 1);
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
    fn a_flush_has_no_range() {
        assert_eq!(DiskRequest::from_cookie(DiskRequest::FLUSH.cookie()), DiskRequest::FLUSH);
    }
}
