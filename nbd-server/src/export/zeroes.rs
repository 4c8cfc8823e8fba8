//! Zeroes without writes, and discards (fallocate(2)).
//!
//! *In*: a range. *Out*: after [`write`](write()) the range reads as zeroes; after [`trim`] its
//! content is undefined. *Invariant*: a call that fails because it is unsupported changes nothing,
//! so the next method can be tried.
//!
//! Block devices accept both calls only for complete blocks (block/fops.c, `blkdev_fallocate`). The
//! zeroes of any other range are written.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// Options of a write of zeroes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// True if the range must stay allocated.
    pub(super) keep_allocated: bool,
    /// True if the call must fail instead of writing zeroes ("Request types",
    /// `NBD_CMD_WRITE_ZEROES`).
    pub(super) fast_only: bool,
}

/// Source of one write, where no other method is supported.
static ZEROES: [u8; 256 << 10] = [0; 256 << 10];

/// Discards a range. The request is a hint: it succeeds where discards are unsupported.
pub(super) fn trim(file: BorrowedFd<'_>, at: u64, length: u64) -> Result<(), Errno> {
    match fallocate(file, punch_hole(), at, length) {
        Err(error) if is_unsupported(error) => Ok(()),
        other => other,
    }
}

/// Zeroes a range by the first method that is supported.
pub(super) fn write(file: &File, at: u64, length: u64, options: Options) -> Result<(), Errno> {
    let zero_range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let methods: &[FallocateFlags] =
        if options.keep_allocated { &[zero_range] } else { &[punch_hole(), zero_range] };
    for flags in methods {
        match fallocate(file, *flags, at, length) {
            Err(error) if is_unsupported(error) => {}
            other => return other,
        }
    }
    if options.fast_only {
        return Err(Errno::OPNOTSUPP);
    }
    let (mut at, end) = (at, at + length);
    while at < end {
        let chunk = (end - at).min(ZEROES.len() as u64) as usize;
        file.write_all_at(&ZEROES[..chunk], at).map_err(|error| super::errno(&error))?;
        at += chunk as u64;
    }
    Ok(())
}

fn punch_hole() -> FallocateFlags {
    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

/// Returns whether the error means "unsupported". A block device returns `EINVAL` for a range that
/// is not aligned to its blocks.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV | Errno::NOSYS)
}
