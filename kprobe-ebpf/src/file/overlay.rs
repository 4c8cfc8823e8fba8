//! Files of overlayfs: the inode of the layer that has the data.
//!
//! *In*: an open regular file of overlayfs, as containers have. *Out*: the inode of the file on the upper layer,
//! or on a lower one as long as it was not copied up. That inode has the page cache, and its file system queues
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
/// Lowest bit of the major number in a `dev_t` of the kernel (include/linux/kdev_t.h). File systems without
/// a device have major number 0.
const MINOR_BITS: u32 = 20;

/// Returns whether a file of this device and type may be one of overlayfs.
#[inline(always)]
pub fn is_possible(dev: u32, file_type: u16) -> bool {
    dev >> MINOR_BITS == 0 && file_type == inode::S_IFREG && offset!(overlay_upper) != ABSENT
}

/// Returns the address of the inode with the data of an open file: its own, unless it is of overlayfs.
///
/// A global function: the verifier checks it once instead of at each caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn data_inode(file: u64) -> u64 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let own: u64 = ProbeRead::read(file as Pointer, offset!(file_inode));
        let inode = own as Pointer;
        let sb: Pointer = ProbeRead::read(inode, offset!(inode_sb));
        let file_type = inode::file_type::<ProbeRead>(inode);
        if !is_possible(ProbeRead::read(sb, offset!(sb_dev)), file_type)
            || ProbeRead::read::<u64>(sb, offset!(sb_magic)) != MAGIC
        {
            return own;
        }
        let data = overlay_data_inode(file, own);
        if data == 0 { own } else { data }
    }
}

/// Returns the address of the inode with the data of this file of overlayfs, whose own inode is `inode`; 0 if
/// it has none (a descriptor by O_PATH). For the verifier as [`data_inode`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn overlay_data_inode(file: u64, inode: u64) -> u64 {
    let around = inode.wrapping_sub(offset!(overlay_vfs_inode) as u64) as Pointer;
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let upper: Pointer = ProbeRead::read(around, offset!(overlay_upper));
        if !upper.is_null() {
            return ProbeRead::read(upper, offset!(dentry_inode));
        }
        let mut real: Pointer = ProbeRead::read(file as Pointer, offset!(file_private_data));
        // Since Linux 6.14 a struct ovl_file is in between.
        if !real.is_null() && offset!(overlay_real_file) != ABSENT {
            real = ProbeRead::read(real, offset!(overlay_real_file));
        }
        if real.is_null() { 0 } else { ProbeRead::read(real, offset!(file_inode)) }
    }
}
