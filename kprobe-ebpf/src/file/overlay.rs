//! Files of overlayfs: the inode of the layer that has the data.
//!
//! *In*: an open file or directory of overlayfs, as containers have. *Out*: the inode of the file on the upper
//! layer, or on a lower one as long as its data was not copied up; of a directory, that of the upper layer alone. That
//! inode has the page cache, and its file system queues the bios. So the identity of such a file is that of its
//! data, and its path the one by which the program opened it.
//!
//! *Invariant*: the file is looked up at each use. A write copies it up first, at the open or inside the call
//! before (truncate), so a call that writes finds the upper one.
//!
//! *Cost*: a comparison for a file of a file system with a block device number; for a file of overlayfs three
//! to five reads (20 ns each), two more if it was not copied up, and four for its identity.
//!
//! *Rejected*: only the file's own `struct file` of the layer. A descriptor that was opened for reading before
//! the copy keeps the lower one, and reads from the upper.

use super::inode;
use crate::runtime::layout::offset;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use blkkin_probe_abi::layout::ABSENT;

/// `s_magic` of overlayfs (include/uapi/linux/magic.h, OVERLAYFS_SUPER_MAGIC).
pub const MAGIC: u64 = 0x794c_7630;

/// Returns whether a file of this device and type may be one of overlayfs.
#[inline(always)]
pub fn is_possible(dev: u32, file_type: u16) -> bool {
    let has_layers = file_type == inode::S_IFREG || file_type == inode::S_IFDIR;
    inode::major(dev) == 0 && has_layers && offset!(overlay_upper) != ABSENT
}

/// Returns the address of the inode with the data of an open file: its own, unless it is of overlayfs.
#[inline(always)]
pub fn data_inode(file: u64) -> u64 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let own: u64 = ProbeRead::read(file as Pointer, offset!(file_inode));
        let sb: Pointer = ProbeRead::read(own as Pointer, offset!(inode_sb));
        let file_type = inode::file_type::<ProbeRead>(own as Pointer);
        if !is_possible(ProbeRead::read(sb, offset!(sb_dev)), file_type)
            || ProbeRead::read::<u64>(sb, offset!(sb_magic)) != MAGIC
        {
            return own;
        }
        inode_of_layer(file, own, file_type)
    }
}

/// Returns the address of the inode with the data of this file of overlayfs. `own`: its own inode, which is
/// returned for a descriptor by O_PATH of a file that was not copied, and for a directory without an upper one.
///
/// A global function: the verifier checks it once instead of at each caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn overlay_data_inode(file: u64, own: u64, file_type: u64) -> u64 {
    inode_of_layer(file, own, file_type as u16)
}

#[inline(always)]
fn inode_of_layer(file: u64, own: u64, file_type: u16) -> u64 {
    let (inode, real) = layer_of(file, own, file_type);
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        if real == 0 {
            return inode;
        }
        // The kernel allows one overlayfs below another (FILESYSTEM_MAX_STACK_DEPTH, include/linux/fs.h).
        let sb: Pointer = ProbeRead::read(inode as Pointer, offset!(inode_sb));
        match ProbeRead::read::<u64>(sb, offset!(sb_magic)) {
            MAGIC => layer_of(real, inode, file_type).0,
            _ => inode,
        }
    }
}

/// Returns the address of the inode on the layer with the data, and of the open file on a lower layer, 0
/// for the upper one.
#[inline(always)]
fn layer_of(file: u64, own: u64, file_type: u16) -> (u64, u64) {
    let around = own.wrapping_sub(offset!(overlay_vfs_inode) as u64) as Pointer;
    let is_file = file_type == inode::S_IFREG;
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let upper: Pointer = ProbeRead::read(around, offset!(overlay_upper));
        if !upper.is_null() && (!is_file || has_upper_data(around)) {
            return (ProbeRead::read(upper, offset!(dentry_inode)), 0);
        }
        // A directory's private data is of another type.
        if !is_file {
            return (own, 0);
        }
        let mut real: Pointer = ProbeRead::read(file as Pointer, offset!(file_private_data));
        // Since Linux 6.14 a struct ovl_file is in between.
        if !real.is_null() && offset!(overlay_real_file) != ABSENT {
            real = ProbeRead::read(real, offset!(overlay_real_file));
        }
        match real.is_null() {
            true => (own, 0),
            false => (ProbeRead::read(real, offset!(file_inode)), real as u64),
        }
    }
}

/// Returns whether the file on the upper layer has the data: with the option `metacopy` it may have the
/// attributes alone (ovl_has_upperdata, fs/overlayfs/util.c).
///
/// # Safety
/// `around` may be any address.
#[inline(always)]
unsafe fn has_upper_data(around: Pointer) -> bool {
    if offset!(overlay_flags) == ABSENT || offset!(overlay_upper_data_bit) == ABSENT {
        return true;
    }
    // SAFETY: bpf_probe_read_kernel takes any address.
    let flags: u64 = unsafe { ProbeRead::read(around, offset!(overlay_flags)) };
    flags >> (offset!(overlay_upper_data_bit) & 63) & 1 != 0
}
