//! Which parts of the file are holes, by `SEEK_HOLE` and `SEEK_DATA` (lseek(2)).
//!
//! *In*: a range. *Out*: [`Extent`]s that cover it from its beginning, holes and data in turns. *Invariant*: at least one, none
//! of them empty, their sum no more than the range, and all of it unless there are more than [`EXTENTS_MAX`].

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::protocol::reply::Extent;

/// Extents of one reply: 2 KiB. A client asks again behind the last one.
const EXTENTS_MAX: usize = 256;

pub(super) fn extents(file: BorrowedFd<'_>, from: u64, length: u64, one: bool) -> Result<Vec<Extent>, Errno> {
    let (end, most) = (from + length, if one { 1 } else { EXTENTS_MAX });
    let (mut at, mut extents) = (from, Vec::new());
    while at < end && extents.len() < most {
        let data = next(file, SeekFrom::Data(at), end)?;
        let hole = data > at;
        let until = if hole { data } else { next(file, SeekFrom::Hole(at), end)? };
        // Somebody may punch a hole between the two questions: then the place is both, and is said to be data.
        let until = if until > at { until } else { end };
        extents.push(Extent { length: (until - at) as u32, hole });
        at = until;
    }
    Ok(extents)
}

/// The next one, or the end of the range if there is none before it.
fn next(file: BorrowedFd<'_>, what: SeekFrom, end: u64) -> Result<u64, Errno> {
    match seek(file, what) {
        Ok(at) => Ok(at.min(end)),
        // None up to the file's end.
        Err(Errno::NXIO) => Ok(end),
        // Block devices know of no holes (fs/read_write.c, `fixed_size_llseek`): all of it is data.
        Err(Errno::INVAL) => Ok(if let SeekFrom::Data(at) = what { at } else { end }),
        Err(error) => Err(error),
    }
}
