//! Files of overlayfs: the inode of the layer that has the data.
//!
//! *In*: an open file or directory of overlayfs, as containers have. *Out*: the inode of the file on the upper
//! layer, or on a lower one as long as it was not copied up; of a directory, that of the upper layer alone. That inode has the page cache, and its file system queues
//! the bios. So the identity of such a file is that of its data, and its path the one by which the program
//! opened it.
//!
//! *Invariant*: the file is looked up at each use. A write copies it up first, at the open or inside the call
//! before (truncate), so a call that writes finds the upper one.
//!
//! *Cost*: a comparison for a file of a file system with a block device number; for a file of overlayfs two
//! to four reads (20 ns each), and four for its identity.
//!
//! *Limits*: with the option `metacopy` a file whose attributes alone were copied up has an upper inode, and
//! its data is read from the lower one. A lower layer that is an overlayfs itself is not followed.
//!
//! *Rejected*: only the file's own `struct file` of the layer. A descriptor that was opened for reading before
//! the copy keeps the lower one, and reads from the upper.

use super::inode;
use crate::runtime::layout::offset;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use blkkin_probe_abi::layout::ABSENT;

/// `s_magic` of overlayfs (include/uapi/linux/magic.h, OVERLAYFS_SUPER_MAGIC).
pub const MAGIC: u64 = 0x794c_7630;
/// File type of a directory (include/uapi/linux/stat.h).
const S_IFDIR: u16 = 0o040_000;
/// Lowest bit of the major number in a `dev_t` of the kernel (include/linux/kdev_t.h). File systems without
/// a device have major number 0.
const MINOR_BITS: u32 = 20;

/// Returns whether a file of this device and type may be one of overlayfs.
#[inline(always)]
pub fn is_possible(dev: u32, file_type: u16) -> bool {
    let has_layers = file_type == inode::S_IFREG || file_type == S_IFDIR;
    dev >> MINOR_BITS == 0 && has_layers && offset!(overlay_upper) != ABSENT
}

/// Returns the address of the inode with the data of an open file: its own, unless it is of overlayfs. `load`
/// returns the word at an offset of a structure.
#[inline(always)]
pub fn data_inode(file: u64, mut load: impl FnMut(Pointer, u32) -> u64) -> u64 {
    let own = load(file as Pointer, offset!(file_inode));
    let sb = load(own as Pointer, offset!(inode_sb)) as Pointer;
    let file_type = load(own as Pointer, offset!(inode_mode)) as u16 & inode::S_IFMT;
    if !is_possible(load(sb, offset!(sb_dev)) as u32, file_type) || load(sb, offset!(sb_magic)) != MAGIC {
        return own;
    }
    let data = inode_of_layer(file, own, file_type, load);
    if data == 0 { own } else { data }
}

/// Returns the address of the inode with the data of this file of overlayfs, whose own inode is `inode`; 0 if
/// it has none: a descriptor by O_PATH of a file that was not copied, or a directory without an upper one.
///
/// A global function: the verifier checks it once instead of at each caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn overlay_data_inode(file: u64, inode: u64, file_type: u64) -> u64 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    inode_of_layer(file, inode, file_type as u16, |base, offset| unsafe { ProbeRead::read(base, offset) })
}

#[inline(always)]
fn inode_of_layer(file: u64, inode: u64, file_type: u16, mut load: impl FnMut(Pointer, u32) -> u64) -> u64 {
    let around = inode.wrapping_sub(offset!(overlay_vfs_inode) as u64) as Pointer;
    let upper = load(around, offset!(overlay_upper)) as Pointer;
    if !upper.is_null() {
        return load(upper, offset!(dentry_inode));
    }
    // A directory's private data is of another type.
    if file_type != inode::S_IFREG {
        return 0;
    }
    let mut real = load(file as Pointer, offset!(file_private_data)) as Pointer;
    // Since Linux 6.14 a struct ovl_file is in between.
    if !real.is_null() && offset!(overlay_real_file) != ABSENT {
        real = load(real, offset!(overlay_real_file)) as Pointer;
    }
    if real.is_null() { 0 } else { load(real, offset!(file_inode)) }
}
