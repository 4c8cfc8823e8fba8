//! Direct reads and writes of whole blocks, made here: nothing else is done besides.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// A block that may be read into and written from directly.
#[repr(align(4096))]
pub(crate) struct Block(pub(crate) [u8; BLOCK]);

/// The device, past the page cache.
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

/// Writes a block there.
pub(crate) fn write_at(device: &File, offset: u64) -> io::Result<()> {
    let block = Block([7; BLOCK]);
    // SAFETY: a block that outlives the call.
    let done =
        unsafe { libc::pwrite(device.as_raw_fd(), block.0.as_ptr().cast(), BLOCK, offset as libc::off_t) };
    whole(done)
}

/// Writes so many blocks there, in one call.
pub(crate) fn write_many(device: &File, offset: u64, blocks: usize) -> io::Result<()> {
    let data: Vec<Block> = (0..blocks).map(|_| Block([7; BLOCK])).collect();
    let bytes = blocks * BLOCK;
    // SAFETY: so many blocks, one behind the other, which outlive the call.
    let done =
        unsafe { libc::pwrite(device.as_raw_fd(), data.as_ptr().cast(), bytes, offset as libc::off_t) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(done, bytes as isize);
    Ok(())
}

/// Reads a block from there.
pub(crate) fn read_at(device: &File, offset: u64) -> io::Result<()> {
    let mut block = Block([0; BLOCK]);
    // SAFETY: a block that outlives the call.
    let done =
        unsafe { libc::pread(device.as_raw_fd(), block.0.as_mut_ptr().cast(), BLOCK, offset as libc::off_t) };
    whole(done)
}

fn whole(done: isize) -> io::Result<()> {
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(done, BLOCK as isize);
    Ok(())
}
