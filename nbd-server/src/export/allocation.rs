//! Allocated ranges and holes of the file, by `SEEK_HOLE` and `SEEK_DATA` (lseek(2)).
//!
//! *In*: a range. *Out*: [`Extent`]s that cover it from its start, alternately holes and data.
//! *Invariant*: there is at least one extent, and none is empty. Their sum is at most the range,
//! and equals it unless it has more than [`EXTENTS_MAX`] extents.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::protocol::reply::Extent;

/// Largest number of extents in one reply: 2 KiB. A client requests the rest with another request.
const EXTENTS_MAX: usize = 256;

/// Returns the extents of a range; with `only_first`, the first one.
pub(super) fn extents(
    file: BorrowedFd<'_>,
    start: u64,
    length: u64,
    only_first: bool,
) -> Result<Vec<Extent>, Errno> {
    let (end, max) = (start + length, if only_first { 1 } else { EXTENTS_MAX });
    let (mut at, mut extents) = (start, Vec::new());
    while at < end && extents.len() < max {
        let data = seek_before(file, SeekFrom::Data(at), end)?;
        let hole = data > at;
        let until = if hole { data } else { seek_before(file, SeekFrom::Hole(at), end)? };
        // Another process can punch a hole between the two calls. Then both calls return `at`, and
        // the rest of the range is reported as data.
        let until = if until > at { until } else { end };
        extents.push(Extent { length: (until - at) as u32, hole });
        at = until;
    }
    Ok(extents)
}

/// Returns the next offset of data or of a hole, or `end` if there is none before it.
fn seek_before(file: BorrowedFd<'_>, target: SeekFrom, end: u64) -> Result<u64, Errno> {
    match seek(file, target) {
        Ok(at) => Ok(at.min(end)),
        // There is none before the end of the file.
        Err(Errno::NXIO) => Ok(end),
        // Block devices do not support holes (fs/read_write.c, `fixed_size_llseek`): all is data.
        Err(Errno::INVAL) => Ok(if let SeekFrom::Data(at) = target { at } else { end }),
        Err(error) => Err(error),
    }
}
