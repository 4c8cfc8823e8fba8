//! Range of its file that a bio of a loop device writes or discards.
//!
//! *In*: a bio that is queued at a loop device and changes its content. *Out*: a [`BioPagesRecord`] of
//! the kind PAGES_OF_LOOP, with the range in the file. *Invariant*: file and offset are those of the
//! driver's own `struct loop_device` when the bio was queued. They stay so until the bio ends: a loop device
//! that is in use gets no other file, except by LOOP_CHANGE_FD, which accepts read-only devices alone
//! (drivers/block/loop.c).
//!
//! *Which devices*: those whose worker writes the file through its page cache, and only if the file
//! system needs a block device (FS_REQUIRES_DEV) that passes the filter of devices. With direct I/O a
//! pointer leads from the lower bio to the loop device's request ([`stacked`](super::stacked)).
//!
//! *Why a range*: the worker makes pages of the file dirty, and the kernel writes them back later,
//! from another task. So the bio is a writer of these bytes, as a system call is.
//!
//! *Not here*: reads. The worker reads the file's pages itself, and reads ahead.
//!
//! *Rejected*: the device's file by LOOP_GET_STATUS64, once a second. A device that gets another file
//! meanwhile would be given the wrong writers.

use super::device::device_passes;
use crate::file::{inode, overlay};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use blkkin_probe_abi::counters::{PAGES_DROPPED, PAGES_FIRED};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// Major number of loop devices (LOOP_MAJOR, include/uapi/linux/major.h).
const LOOP_MAJOR: u32 = 7;
/// The device uses direct I/O (LO_FLAGS_DIRECT_IO, include/uapi/linux/loop.h).
const DIRECT_IO: u32 = 16;
/// The file system is on a block device (include/linux/fs.h).
const FS_REQUIRES_DEV: u32 = 1;
const SECTOR_SHIFT: u64 = 9;

/// Returns whether the disk of this number is a loop device.
#[inline(always)]
pub fn is_loop(disk: u32) -> bool {
    inode::major(disk) == LOOP_MAJOR
}

/// Writes the record of a bio that writes bytes of a loop device, or discards them if `writes` is 0. A
/// global function, which the verifier checks once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn emit_loop_range(bio: u64, span: u64, root: u64, writes: u64, now: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    if offset!(loop_file) == ABSENT || offset!(loop_offset) == ABSENT || offset!(loop_flags) == ABSENT {
        return 0;
    }
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let bio = bio as Pointer;
        let bdev: Pointer = ProbeRead::read(bio, offset!(bio_bdev));
        let disk: Pointer = ProbeRead::read(bdev, offset!(bdev_disk));
        let device: Pointer = ProbeRead::read(disk, offset!(disk_private));
        let file: Pointer = ProbeRead::read(device, offset!(loop_file));
        let flags: u32 = ProbeRead::read(device, offset!(loop_flags));
        if file.is_null() || flags & DIRECT_IO != 0 {
            return 0;
        }
        let inode = overlay::data_inode(file as u64) as Pointer;
        let sb: Pointer = ProbeRead::read(inode, offset!(inode_sb));
        let kind: Pointer = ProbeRead::read(sb, offset!(sb_type));
        let needs_disk = ProbeRead::read::<u32>(kind, offset!(fstype_flags)) & FS_REQUIRES_DEV != 0;
        let dev: u32 = ProbeRead::read(sb, offset!(sb_dev));
        let is_regular = inode::file_type::<ProbeRead>(inode) == inode::S_IFREG;
        if !needs_disk || !is_regular || !device_passes(dev, dev) {
            return 0;
        }
        let start: u64 = ProbeRead::read(device, offset!(loop_offset));
        let sector: u64 = ProbeRead::read(bio, offset!(bio_sector));
        percpu.pages = BioPagesRecord {
            header: Header {
                tag: TAG_BIO_PAGES,
                sampling: 0,
                flags: if writes != 0 { PAGES_WRITTEN } else { 0 },
                len: size_of::<BioPagesRecord>() as u32,
                time_ns: now,
            },
            span,
            root,
            file: inode::identity::<ProbeRead>(inode),
            offset: start.wrapping_add(sector << SECTOR_SHIFT),
            bytes: ProbeRead::read(bio, offset!(bio_size)),
            open_writes: 0,
            kind: PAGES_OF_LOOP,
            reason: 0,
            dev: ProbeRead::read(bdev, offset!(bdev_dev)),
        };
    }
    // SAFETY: the record is a part of the slot that no counter touches.
    let record = unsafe { &*(&raw const percpu.pages) };
    ring::put_counted(percpu, PAGES_FIRED, PAGES_DROPPED, record) as u64
}
