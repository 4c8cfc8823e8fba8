//! Direct reads and writes of whole blocks, one system call each and nothing else.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// A block that is aligned for direct reads and writes.
#[repr(align(4096))]
pub(crate) struct Block(pub(crate) [u8; BLOCK]);

/// Opens the device past the page cache.
pub(crate) fn open(node: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT).open(node).unwrap()
}

/// Writes these blocks of a device, one call each.
pub(crate) fn write(node: &Path, blocks: Range<u64>) {
    let device = open(node);
    for block in blocks {
        write_at(&device, block * BLOCK as u64).unwrap();
    }
}

/// Writes a block at `offset`.
pub(crate) fn write_at(device: &File, offset: u64) -> io::Result<()> {
    let block = Block([7; BLOCK]);
    // SAFETY: the block outlives the call.
    let result =
        unsafe { libc::pwrite(device.as_raw_fd(), block.0.as_ptr().cast(), BLOCK, offset as libc::off_t) };
    full_block(result)
}

/// Writes `blocks` blocks at `offset` in one call.
pub(crate) fn write_many(device: &File, offset: u64, blocks: usize) -> io::Result<()> {
    let data: Vec<Block> = (0..blocks).map(|_| Block([7; BLOCK])).collect();
    let bytes = blocks * BLOCK;
    // SAFETY: `data` contains `blocks` consecutive blocks, which outlive the call.
    let result =
        unsafe { libc::pwrite(device.as_raw_fd(), data.as_ptr().cast(), bytes, offset as libc::off_t) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(result, bytes as isize);
    Ok(())
}

/// Reads a block at `offset`.
pub(crate) fn read_at(device: &File, offset: u64) -> io::Result<()> {
    let mut block = Block([0; BLOCK]);
    // SAFETY: the block outlives the call.
    let result =
        unsafe { libc::pread(device.as_raw_fd(), block.0.as_mut_ptr().cast(), BLOCK, offset as libc::off_t) };
    full_block(result)
}

/// Reads the first word of the block at `offset`, little-endian.
pub(crate) fn first_word(device: &File, offset: u64) -> u64 {
    let mut block = Block([0; BLOCK]);
    device.read_exact_at(&mut block.0, offset).unwrap();
    u64::from_le_bytes(block.0[..8].try_into().unwrap())
}

fn full_block(result: isize) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(result, BLOCK as isize);
    Ok(())
}
