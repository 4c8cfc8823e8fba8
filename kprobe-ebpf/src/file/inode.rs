//! Inodes: identity and type.

use crate::runtime::layout::offset;
use crate::runtime::read::{KernelRead, Pointer};
use blkkin_probe_abi::record::FileId;

/// File type bits of `i_mode`, and their values (include/uapi/linux/stat.h).
pub const S_IFMT: u16 = 0o170_000;
pub const S_IFSOCK: u16 = 0o140_000;
pub const S_IFREG: u16 = 0o100_000;
pub const S_IFBLK: u16 = 0o060_000;
pub const S_IFDIR: u16 = 0o040_000;

/// Returns the major number of a `dev_t` of the kernel (include/linux/kdev_t.h). File systems without a device
/// have 0.
#[inline(always)]
pub fn major(dev: u32) -> u32 {
    dev >> 20
}

/// Reads the identity of an inode, which has no name of its own.
///
/// # Safety
/// `inode` is a `struct inode` of the kind that `R` reads.
#[inline(always)]
pub unsafe fn identity<R: KernelRead>(inode: Pointer) -> FileId {
    // SAFETY: by the contract.
    unsafe {
        let sb: Pointer = R::read(inode, offset!(inode_sb));
        FileId {
            dev: R::read(sb, offset!(sb_dev)),
            generation: R::read(inode, offset!(inode_generation)),
            ino: R::read(inode, offset!(inode_ino)),
            name: 0,
        }
    }
}

/// Reads the file type of an inode: `S_IF*`, or 0 for none.
///
/// # Safety
/// As for [`identity`].
#[inline(always)]
pub unsafe fn file_type<R: KernelRead>(inode: Pointer) -> u16 {
    // SAFETY: by the contract.
    unsafe { R::read::<u16>(inode, offset!(inode_mode)) & S_IFMT }
}
