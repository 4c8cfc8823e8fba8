//! Zeroes without writing them, and bytes that are no longer needed (fallocate(2)).
//!
//! *In*: a range. *Out*: it reads as zeroes; or, trimmed, as anything. *Invariant*: what fails for want of support changes
//! nothing by itself, so the next manner of doing it may follow.
//!
//! Block devices take both calls, for whole blocks only (block/fops.c, `blkdev_fallocate`): what is not whole is written.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// How zeroes are to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// They stay allocated.
    pub(super) keep: bool,
    /// Rather not at all than by writing them ("Request types", `NBD_CMD_WRITE_ZEROES`).
    pub(super) fast: bool,
}

/// Written at once where there is no other way.
static ZEROES: [u8; 256 << 10] = [0; 256 << 10];

/// It is a hint: what cannot be done need not be.
pub(super) fn trim(file: BorrowedFd<'_>, at: u64, length: u64) -> Result<(), Errno> {
    match fallocate(file, punched(), at, length) {
        Err(error) if is_unsupported(error) => Ok(()),
        other => other,
    }
}

pub(super) fn write(file: &File, at: u64, length: u64, manner: Manner) -> Result<(), Errno> {
    let zeroed = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let manners: &[FallocateFlags] = if manner.keep { &[zeroed] } else { &[punched(), zeroed] };
    for flags in manners {
        match fallocate(file, *flags, at, length) {
            Err(error) if is_unsupported(error) => {}
            other => return other,
        }
    }
    if manner.fast {
        return Err(Errno::OPNOTSUPP);
    }
    let (mut at, end) = (at, at + length);
    while at < end {
        let piece = (end - at).min(ZEROES.len() as u64) as usize;
        file.write_all_at(&ZEROES[..piece], at).map_err(|error| super::errno(&error))?;
        at += piece as u64;
    }
    Ok(())
}

fn punched() -> FallocateFlags {
    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

/// `EINVAL` is a block device's word for what is not aligned to its blocks.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV | Errno::NOSYS)
}
